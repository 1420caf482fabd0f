"""The sink in a real Spark session against a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_topics import Topics

from support.processes.broker import BrokerProcess


def write(frame: DataFrame, servers: str, **options: str) -> None:
    settings = {"kafka.bootstrap.servers": servers} | {name.replace("__", "."): text for name, text in options.items()}
    frame.write.format("penstock").options(**settings).mode("append").save()


def read(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format("penstock").options(**options).load()


def values(spark: SparkSession, servers: str, topic: str) -> dict[int, list[int]]:
    """By partition, in the order of the log."""
    found: dict[int, list[int]] = {}
    for row in read(spark, servers, topic).orderBy("partition", "offset").collect():
        found.setdefault(row.partition, []).append(int(bytes(row.value)))
    return found


def test_rows_come_back_as_they_were_written(spark: SparkSession, topics: Topics) -> None:
    servers = topics.bootstrap_servers
    source, copy = topics.create(partitions=3), topics.create(partitions=3)
    numbers = spark.range(500)
    headers = f.when(f.col("id") % 2 == 0, f.array(f.struct(f.lit("n").alias("key"), f.lit(b"\x01").alias("value"))))
    rows = numbers.select(
        f.when(f.col("id") % 5 > 0, f.concat(f.lit("k"), f.col("id"))).alias("key"),
        f.when(f.col("id") % 7 > 0, f.encode(f.col("id").cast("string"), "utf-8")).alias("value"),
        headers.alias("headers"),
        f.timestamp_millis(f.col("id") * 1000 + 1_600_000_000_123).alias("timestamp"),
        f.lit(source).alias("topic"),
    )
    write(rows, servers, kafka__compression__type="zstd")
    columns = ["key", "value", "headers", "timestamp"]
    expected = rows.withColumn("key", f.encode("key", "utf-8")).select(columns)
    assert sorted(map(repr, read(spark, servers, source).select(columns).collect())) == sorted(
        map(repr, expected.collect())
    )
    # A topic copied with its partitions is the same topic, offsets included.
    write(read(spark, servers, source).repartition(1).sortWithinPartitions("partition", "offset"), servers, topic=copy)
    kept = ["partition", "offset", *columns]
    first, second = (
        read(spark, servers, topic).select(kept).orderBy("partition", "offset") for topic in (source, copy)
    )
    assert first.collect() == second.collect()


def test_a_stream_goes_on_where_it_was_and_writes_nothing_twice(
    spark: SparkSession, topics: Topics, checkpoint: str
) -> None:
    source, target = topics.create(partitions=2), topics.create(partitions=2)

    def run() -> None:
        servers = topics.bootstrap_servers
        options = {"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"}
        frame = spark.readStream.format("penstock").options(**options).load().select("key", "value")
        sink = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", servers).option("topic", target)
        query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    topics.fill(source, [(b"%d" % n, b"%d" % n) for n in range(200)])
    run()
    topics.fill(source, [(b"%d" % n, b"%d" % n) for n in range(200, 250)])
    run()
    found = values(spark, topics.bootstrap_servers, target)
    assert sorted(n for numbers in found.values() for n in numbers) == list(range(250))


def test_a_broker_killed_while_rows_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """Unacknowledged records are sent again, and stored ones are not stored again. A broker of its own."""
    count = 200_000
    under_way, over = tmp_path / "under-way", Event()

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 3:
                under_way.touch()
            yield batch
            time.sleep(0.05)

    numbers = spark.range(count, numPartitions=2).select(f.col("id").cast("string").alias("value"))
    rows = numbers.mapInArrow(slowly, numbers.schema)
    with BrokerProcess(tmp_path, {"num.partitions": "2"}) as broker:

        def kill() -> None:
            while not under_way.exists():
                if over.wait(0.01):
                    return
            broker.freeze()  # from here on requests are taken by the system and not answered
            time.sleep(0.2)
            broker.kill()
            broker.start()

        # Not the write in the thread: Spark finds data sources of Python only where a session is active.
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            options = {"topic": "rows", "kafka.batch.size": "8192", "kafka.max.request.size": "32768"}
            try:
                write(rows, broker.bootstrap_servers, **options)
                assert killing.done(), "it was over before the broker was killed"
            finally:
                over.set()
            killing.result()
        found = values(spark, broker.bootstrap_servers, "rows")
    assert sorted(n for numbers in found.values() for n in numbers) == list(range(count))
    for task in (range(count // 2), range(count // 2, count)):
        for numbers_of_partition in found.values():
            mine = [n for n in numbers_of_partition if n in task]
            assert mine == sorted(mine)


def test_a_task_that_is_run_again_may_write_again_and_loses_nothing(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(partitions=1)

    def fails_at_first(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("after the last row, on purpose")

    numbers = spark.range(30_000, numPartitions=1).select(f.col("id").cast("string").alias("value"))
    failing = numbers.mapInArrow(fails_at_first, numbers.schema)
    write(failing, topics.bootstrap_servers, topic=topic, kafka__batch__size="16384")
    (found,) = values(spark, topics.bootstrap_servers, topic).values()
    assert found[-30_000:] == list(range(30_000))
    assert set(found) == set(range(30_000))


@pytest.mark.parametrize(
    ("options", "columns", "sentence"),
    [
        ({}, ["value"], "no column 'topic': set the option 'topic'"),
        ({"topic": "t", "deliveryGuarantee": "exactly-once"}, ["value"], "which is for streaming queries"),
        ({}, ["value", "topic"], "column topic is null in row 0"),
    ],
)
def test_what_cannot_be_written_is_said(
    spark: SparkSession, topics: Topics, options: dict[str, str], columns: list[str], sentence: str
) -> None:
    frame = spark.range(1).select("id", f.lit("v").alias("value"), f.lit(None).cast("string").alias("topic"))
    with pytest.raises(Exception, match=sentence):
        write(frame.select(columns), topics.bootstrap_servers, **options)
