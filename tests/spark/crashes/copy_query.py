"""A driver that copies a topic to another one, for tests that crash it: `CopyDriver` starts, watches and kills it.

Run as a program it starts the query of `Setup` again and again, each time as `Plan` says then, until a run with
`until_done` has ended. Its standard output has one `Event` a line.

    python copy_query.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark import session
from penstock.spark.sink.steps import VARIABLE
from support.processes.tree import command_line, descendants

TESTS = Path(__file__).resolve().parents[2]
PAUSE_S = 0.1
LOST = "DecidedButAborted"
"""The reason of a failure after which the query never goes on by itself."""
_OURS = re.compile(r"\b(?:penstock|__main__)\.(?:\w+\.)*(\w+): ")
_SPARKS = re.compile(r"terminated with exception: ([^.(\n]+)")
MOST_CHARACTERS = 80


@dataclass(frozen=True)
class Setup:
    """The same for all drivers and runs."""

    master: str
    servers: str
    source: str
    target: str
    delivery: str
    config: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        (directory / "setup.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> Setup:
        return cls(**json.loads((directory / "setup.json").read_text()))


@dataclass(frozen=True)
class Plan:
    """May change with each run of the query: also the number of tasks of a batch that is repeated."""

    rows_per_batch: int
    min_partitions: int = 1
    """Tasks that read, at least."""
    repartition: int = 0
    """Tasks that write; 0: those that read."""
    straggle_s: float = 0.0
    """How long the first attempt of the first task waits after its last row."""
    until_done: bool = False

    def write(self, directory: Path) -> None:
        new = directory / "plan.new"
        new.write_text(json.dumps(asdict(self)))
        new.rename(directory / "plan.json")

    @classmethod
    def read(cls, directory: Path) -> Plan:
        return cls(**json.loads((directory / "plan.json").read_text()))


@dataclass(frozen=True)
class Event:
    kind: str
    """`started` and `failed` of a run of the query, `done` of the program."""
    reason: str = ""


def checkpoint(directory: Path) -> Path:
    return directory / "checkpoint"


class CopyDriver:
    """The program as a process: a Python process and its JVM."""

    def __init__(self, directory: Path, name: str, crashes: Path) -> None:
        self._events_path = directory / f"{name}.events"
        self.log_path = directory / f"{name}.log"
        paths = filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])  # the tests' own modules, too
        environment = {
            **os.environ,
            VARIABLE: str(crashes),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        with self._events_path.open("ab") as events, self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=log,
                env=environment,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def pids(self) -> list[int]:
        """The JVM first: it alone makes progress."""
        return [*descendants(self._process.pid, "java", "SparkSubmit"), self._process.pid]

    def tree(self) -> list[int]:
        """With all Python workers of the JVM."""
        return [self._process.pid, *descendants(self._process.pid)]

    def kill(self) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def events(self) -> list[Event]:
        """Complete lines only."""
        text = self._events_path.read_text()
        return [Event(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]

    def has_started(self) -> bool:
        return any(event.kind == "started" for event in self.events())


def processes_with(crashes: Path, *words: str) -> Iterator[int]:
    """All live processes that know this directory of crashes, also those whose parents have died."""
    wanted = f"{VARIABLE}={crashes}\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pid = int(entry.name)
            if wanted in (entry / "environ").read_bytes() and all(word in command_line(pid) for word in words):
                yield pid


# -- the program -------------------------------------------------------------------------------------------------------


def straggling(seconds: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For mapInArrow. A closure, so that it goes to workers that cannot import this module."""

    def straggle(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(seconds)

    return straggle


def start(spark: SparkSession, directory: Path, setup: Setup, plan: Plan) -> StreamingQuery:
    servers = {"kafka.bootstrap.servers": setup.servers}
    source = {
        "subscribe": setup.source,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "minPartitions": str(plan.min_partitions),
        "maxOffsetsPerTrigger": str(plan.rows_per_batch),
    }
    rows = spark.readStream.format("penstock").options(**servers, **source).load()
    rows = rows.select("key", "value", "headers", "timestamp")
    if plan.repartition:
        rows = rows.repartition(plan.repartition, "key")
    if plan.straggle_s:
        rows = rows.mapInArrow(straggling(plan.straggle_s), rows.schema)
    sink = {"topic": setup.target, "deliveryGuarantee": setup.delivery}
    writer = rows.writeStream.format("penstock").options(**servers, **sink)
    writer = writer.option("checkpointLocation", str(checkpoint(directory)))
    return (
        writer.trigger(availableNow=True) if plan.until_done else writer.trigger(processingTime="0 seconds")
    ).start()


def reason_of(error: PySparkException) -> str:
    """The sink's own error if there is one, else Spark's first words."""
    text = str(error)
    found = _OURS.search(text) or _SPARKS.search(text)
    return (found[1] if found else text)[:MOST_CHARACTERS]


def tell(event: Event) -> None:
    print(json.dumps(asdict(event)), flush=True)


def main(directory: Path) -> int:
    setup = Setup.read(directory)
    spark = session("copy", setup.master, config=setup.config, fast_start=True)
    while True:
        plan = Plan.read(directory)
        try:
            query = start(spark, directory, setup, plan)
            tell(Event("started"))
            query.awaitTermination()
        except PySparkException as error:
            print(error, file=sys.stderr, flush=True)
            reason = reason_of(error)
            tell(Event("failed", reason))
            if reason == LOST:
                return 1
            time.sleep(PAUSE_S)
        else:
            tell(Event("done"))
            return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
