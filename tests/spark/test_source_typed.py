"""Typed values in a real Spark session: JSON as columns, in batches and as a stream that is started again."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from spark.conftest import Topics

SCHEMA = (
    "id long not null, user struct<country: string, age: int not null>, tags array<string>, "
    "prices map<string, decimal(5, 2)>, at timestamp, day date, ratio float, is_new boolean, raw binary, n byte"
)
FULL = (
    b'{"id": 1, "user": {"country": "NO", "age": 7}, "tags": ["a", null], "prices": {"x": 1.25}, "n": -128, '
    b'"at": "2026-01-31T12:00:00.5+01:00", "day": "2026-01-31", "ratio": 0.5, "is_new": true, "raw": "aGk="}'
)
VALUES = [FULL, b"no json", None, b'{"id": 2}', b'{"id": "3"}']


def options(topics: Topics, topic: str, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": topics.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
        "valueSchema": SCHEMA,
    } | more


def test_typed_columns(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, ((b"k%d" % n, value) for n, value in enumerate(VALUES)), 0)
    frame = spark.read.format("penstock").options(**options(topics, topic)).load()
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,user:struct<country:string,age:int>,tags:array<string>,prices:map<string,decimal(5,2)>,"
        "at:timestamp,day:date,ratio:float,is_new:boolean,raw:binary,n:tinyint>"
    )
    full, broken, tombstone, other, wrong = frame.orderBy("offset").collect()
    assert full.value.asDict(recursive=True) == {
        "id": 1,
        "user": {"country": "NO", "age": 7},
        "tags": ["a", None],
        "prices": {"x": Decimal("1.25")},
        "at": datetime(2026, 1, 31, 11, 0, 0, 500_000),
        "day": date(2026, 1, 31),
        "ratio": 0.5,
        "is_new": True,
        "raw": b"hi",
        "n": -128,
    }
    assert [row.value and row.value.id for row in (full, broken, tombstone, other, wrong)] == [1, None, None, 2, None]
    assert [bytes(row.key) for row in (full, broken)] == [b"k0", b"k1"]
    assert (bytes(broken.badValue), bytes(wrong.badValue), tombstone.badValue) == (b"no json", b'{"id": "3"}', None)
    assert broken.valueError.startswith("JSON is malformed")
    assert (wrong.valueError, tombstone.valueError) == ("Expected `int`, got `str` - at `$.id`", None)

    # Fields that are never null, in rows without a value.
    ids = frame.where("value.id IS NULL").select("offset", "value.id", "value.user.age")
    assert sorted(tuple(row) for row in ids.collect()) == [(1, None, None), (2, None, None), (4, None, None)]
    found = frame.where("value.user.country = 'NO'").select(f.explode("value.prices")).collect()
    assert [tuple(row) for row in found] == [("x", Decimal("1.25"))]

    few = spark.read.format("penstock").options(**options(topics, topic, onBadValue="drop"))
    assert sorted(row.offset for row in few.schema("offset bigint").load().collect()) == [0, 2, 3]
    with pytest.raises(PySparkException, match=r"BadValue: the value at offset 1 of partition 0 of .* JSON is malfor"):
        spark.read.format("penstock").options(**options(topics, topic, onBadValue="fail")).load().collect()
    with pytest.raises(PySparkException, match=r"option 'valueSchema': the schema has 'lng' where .* \(character 4\)"):
        spark.read.format("penstock").options(**options(topics, topic, valueSchema="id lng")).load()


def test_a_stream_that_is_started_again(spark: SparkSession, topics: Topics, checkpoint: str, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    out = str(tmp_path / "out")

    def run(schema: str) -> list[tuple[int | None, str | None]]:
        frame = spark.readStream.format("penstock").options(**options(topics, topic, valueSchema=schema)).load()
        chosen = frame.select("value.*", "valueError").writeStream.format("parquet")
        query = chosen.options(checkpointLocation=checkpoint, path=out).trigger(availableNow=True).start()
        query.awaitTermination()
        rows = spark.read.option("mergeSchema", "true").parquet(out).collect()
        return sorted(((row.id, row.valueError) for row in rows), key=str)

    topics.fill(topic, [(b"%d" % n, b'{"id": %d, "name": "n"}' % n) for n in range(10)])
    assert run("id long not null") == [(n, None) for n in range(10)]
    topics.fill(topic, [(b"%d" % n, b'{"id": %d}' % n) for n in range(10, 12)] + [(b"x", b"[]")])
    found = run("id long not null, name string")
    assert found[:-1] == sorted(((n, None) for n in range(12)), key=str)
    assert found[-1][1] == "Expected `object`, got `array`"


def test_avro_columns(spark: SparkSession, topics: Topics) -> None:
    order = (
        '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "note", '
        '"type": ["null", "string"]}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}'
    )
    topic = topics.create()
    values = [b"\x02\x02\x06caf\x02", b"\x04\x00\x00", b"\x02\x03", None]
    topics.fill(topic, ((b"k", value) for value in values), 0)
    frame = (
        spark.read.format("penstock").options(**options(topics, topic, valueFormat="avro", valueSchema=order)).load()
    )
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,note:string,at:timestamp>"
    first, second, broken, tombstone = frame.orderBy("offset").collect()
    assert first.value.asDict() == {"id": 1, "note": "caf", "at": datetime(1970, 1, 1, 0, 0, 0, 1000)}
    assert second.value.asDict() == {"id": 2, "note": None, "at": datetime(1970, 1, 1)}
    assert (broken.value, bytes(broken.badValue), tombstone.value, tombstone.badValue) == (None, values[2], None, None)
    assert broken.valueError.startswith("Avro is malformed: ")
