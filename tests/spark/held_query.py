"""A query from a topic to Parquet that a test can hold in the middle of a micro-batch, and what it wrote.

Tasks stop at a `Gate` after the first rows they read and before any is written, for as long as the gate is closed: so
what a test does then, it does in mid-batch, on a machine of any speed. Run as a program this is a driver of its own:

    python held_query.py MASTER BOOTSTRAP_SERVERS TOPIC DIRECTORY OPTION=VALUE ...
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark import session

WAIT_S = 90.0
ROWS_AT_A_TIME = "20"
"""Rows reach a task in Arrow batches of this many, so that it comes to the gate long before its split is read."""

Rows = dict[int, list[tuple[int, bytes]]]
"""(offset, value) of each partition, in order."""


class Arrival(NamedTuple):
    batch: int
    task: int
    attempt: int


class Gate:
    """Files of a directory: `closed` has the batch from which on tasks wait, the others are the tasks that came."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "gate"
        self.directory.mkdir(exist_ok=True)

    def close(self, from_batch: int = 0) -> None:
        (self.directory / "closing").write_text(str(from_batch))
        (self.directory / "closing").rename(self.directory / "closed")

    def open(self) -> None:
        (self.directory / "closed").unlink()

    def arrivals(self) -> list[Arrival]:
        names = (path.name.split("-") for path in self.directory.glob("*-*-*"))
        return sorted(Arrival(*map(int, name)) for name in names)

    def held_at(self, batch: int, tasks: int, attempt: int = 0) -> Callable[[], bool]:
        """So many tasks of the batch have come, in this attempt or a later one."""
        return lambda: len({a.task for a in self.arrivals() if a.batch == batch and a.attempt >= attempt}) >= tasks

    def hold(self) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """For mapInArrow. A closure, so that it goes to workers that cannot import this module."""
        directory = str(self.directory)

        def hold(batches: Iterator[Any]) -> Iterator[Any]:
            import os
            import time

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            number = int(context.getLocalProperty("streaming.sql.batchId") or 0)
            for index, batch in enumerate(batches):
                if index == 0:
                    name = f"{number}-{context.partitionId()}-{context.attemptNumber()}"
                    with open(os.path.join(directory, name), "w"):
                        pass
                    while True:
                        try:
                            with open(os.path.join(directory, "closed")) as closed:
                                if number < int(closed.read()):
                                    break
                        except FileNotFoundError:
                            break
                        time.sleep(0.02)
                yield batch

        return hold


def eventually(is_so: Callable[[], bool], failure: Callable[[], object] = lambda: "it did not come about") -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, failure()
        time.sleep(0.02)


def read_topic(spark: SparkSession, servers: str, topic: str, options: Mapping[str, str]) -> DataFrame:
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", servers)
    given = {"subscribe": topic, "startingOffsets": "earliest", **options}
    return reader.options(**given).load().select("partition", "offset", "value")


def start(frame: DataFrame, directory: Path, gate: Gate | None = None, **trigger: Any) -> StreamingQuery:
    """To Parquet below `directory`, by its checkpoint there; until all is read that there is, unless told otherwise."""
    if gate is not None:
        frame = frame.mapInArrow(gate.hold(), frame.schema)
    writer = frame.writeStream.format("parquet").option("path", str(directory / "out"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    frame.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_AT_A_TIME)
    try:
        return writer.trigger(**(trigger or {"availableNow": True})).start()
    finally:
        frame.sparkSession.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def held_since(query: StreamingQuery, gate: Gate, batch: int, tasks: int, attempt: int = 0) -> None:
    """Until the tasks of a batch are held; a query that fails instead says why."""
    is_held = gate.held_at(batch, tasks, attempt)
    eventually(lambda: is_held() or not query.isActive, lambda: f"only {gate.arrivals()} came")
    assert is_held(), query.exception()


def written(directory: Path) -> Rows:
    """In the order of the file sink's log: batch by batch, and as they stand in each file."""
    rows: Rows = {}
    for path in _files(directory / "out" / "_spark_metadata"):
        table = pq.read_table(path, partitioning=None).to_pydict()
        for partition, offset, value in zip(table["partition"], table["offset"], table["value"], strict=True):
            rows.setdefault(partition, []).append((offset, value))
    return rows


def _files(log: Path) -> Iterator[Path]:
    """A file for each batch; now and then one that repeats all before it."""
    entries = {int(entry.name.removesuffix(".compact")): entry for entry in log.iterdir() if entry.name[0].isdigit()}
    compacted = max((number for number, entry in entries.items() if entry.suffix), default=0)
    for number in sorted(entries):
        if number >= compacted:
            for line in entries[number].read_text().splitlines()[1:]:
                yield Path(json.loads(line)["path"].removeprefix("file://"))


def planned(directory: Path) -> int:
    """The last batch that the checkpoint has the offsets of."""
    return max(int(entry.name) for entry in (directory / "checkpoint" / "offsets").glob("[0-9]*"))


def finished(directory: Path) -> int:
    """The last batch that the checkpoint says is done; -1: none."""
    return max((int(entry.name) for entry in (directory / "checkpoint" / "commits").glob("[0-9]*")), default=-1)


def main(master: str, servers: str, topic: str, directory: str, *options: str) -> None:
    place = Path(directory)
    config = {
        "spark.local.dir": str(place / "scratch"),
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    spark = session("held-query", master, config=config, fast_start=True)
    frame = read_topic(spark, servers, topic, dict(option.split("=", 1) for option in options))
    start(frame, place, Gate(place)).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
