"""The batch source in a real Spark session against a real broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from spark.conftest import Topics

RECORDS = 300


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    """Records 0, 1, 2, ... by turns in three partitions: number n is at offset n // 3 of partition n % 3."""
    name = topics.create(partitions=3)
    for partition in range(3):
        numbers = range(partition, RECORDS, 3)
        headers: list[tuple[str, bytes | None]] = [("trace", b"\x01"), ("empty", None)]
        topics.fill(name, ((b"k%d" % n, b"v%d" % n) for n in numbers), partition, headers, {"compression.type": "zstd"})
    return name


def read(spark: SparkSession, topics: Topics, topic: str, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", topics.bootstrap_servers)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**({"subscribe": topic} | options)).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)[1:]) for row in frame.collect())


def test_rows_are_those_of_spark_s_kafka_source(spark: SparkSession, topics: Topics, topic: str) -> None:
    frame = read(spark, topics, topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    rows = sorted(frame.collect(), key=lambda row: (row.partition, row.offset))
    found = [(row.topic, row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in rows]
    wanted = [(topic, n % 3, n // 3, b"k%d" % n, b"v%d" % n) for n in range(RECORDS)]
    assert found == sorted(wanted)
    assert [(h.key, h.value and bytes(h.value)) for h in rows[0].headers] == [("trace", b"\x01"), ("empty", None)]
    assert {row.timestampType for row in rows} == {0}
    assert abs(rows[0].timestamp.replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(hours=1)


def test_user_schema_chooses_columns(spark: SparkSession, topics: Topics, topic: str) -> None:
    frame = read(spark, topics, topic, "offset bigint, value binary", minPartitions="6")
    assert frame.columns == ["offset", "value"]
    assert numbers(frame) == list(range(RECORDS))
    assert frame.rdd.getNumPartitions() == 6

    with pytest.raises(PySparkException, match=r"'value' as string.*reads it as binary: cast it"):
        read(spark, topics, topic, "value string").collect()


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters(spark: SparkSession, topics: Topics, topic: str, pushdown: str) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, pushdown)
    try:
        frame = read(spark, topics, topic, filterPushdown="true").where(
            "partition in (0, 2) and offset >= 10 and offset < 20"
        )
        assert numbers(frame) == sorted(3 * offset + partition for offset in range(10, 20) for partition in (0, 2))
        # Two cores: small ranges share a task.
        one = read(spark, topics, topic, filterPushdown="true").where("partition = 1")
        assert one.rdd.getNumPartitions() == (1 if pushdown == "true" else 2)
        assert numbers(one) == list(range(1, RECORDS, 3))
        later = read(spark, topics, topic, filterPushdown="true").where(
            f.col("timestamp") > f.current_timestamp() + f.expr("interval 1 hour")
        )
        assert later.count() == 0
        sooner = read(spark, topics, topic, filterPushdown="true").where(
            f.col("timestamp") > f.current_timestamp() - f.expr("interval 1 hour")
        )
        assert sooner.count() == RECORDS
    finally:
        spark.conf.set(name, before)


def test_one_frame_for_several_queries(spark: SparkSession, topics: Topics, topic: str) -> None:
    """Spark keeps one plan of reading for all of them, so conditions must not limit it unless a user says so."""
    frame = read(spark, topics, topic)
    assert numbers(frame.where("partition = 1")) == list(range(1, RECORDS, 3))
    assert numbers(frame) == list(range(RECORDS))
    both = frame.where("partition = 0").union(frame.where("partition = 2 AND offset < 50"))
    assert numbers(both) == sorted([*range(0, RECORDS, 3), *range(2, 152, 3)])


def test_ranges(spark: SparkSession, topics: Topics, topic: str) -> None:
    starting = json.dumps({topic: {"0": 95, "1": -2, "2": 50}})
    ending = json.dumps({topic: {"0": -1, "1": 2, "2": 50}})
    found = read(spark, topics, topic, startingOffsets=starting, endingOffsets=ending)
    assert numbers(found) == sorted([*range(285, 300, 3), 1, 4])

    assigned = json.dumps({topic: [1]})
    with pytest.raises(PySparkException, match="exactly one of the options subscribe, subscribePattern, assign"):
        read(spark, topics, topic, assign=assigned).collect()
    reader = spark.read.format("penstock").options(assign=assigned, startingTimestamp="0", maxRecordsPerPartition="30")
    frame = reader.option("kafka.bootstrap.servers", topics.bootstrap_servers).load()
    assert numbers(frame) == list(range(1, RECORDS, 3))
    assert frame.rdd.getNumPartitions() == 4


def test_sql(spark: SparkSession, topics: Topics, topic: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW source_batch USING penstock OPTIONS (subscribePattern '^{topic}$', "
        f"`kafka.bootstrap.servers` '{topics.bootstrap_servers}')"
    )
    found = spark.sql("SELECT partition, count(*) AS n, max(offset) AS last FROM source_batch GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in found.collect()] == [(0, 100, 99), (1, 100, 99), (2, 100, 99)]


def test_errors_name_what_is_wrong(spark: SparkSession, topics: Topics, topic: str) -> None:
    with pytest.raises(PySparkException, match="there is no topic 'no-such-topic': create it first"):
        read(spark, topics, "no-such-topic").collect()
    with pytest.raises(PySparkException, match=r"option 'startingoffset' is not known.*did you mean 'startingOffsets'"):
        read(spark, topics, topic, startingOffset="earliest").collect()
