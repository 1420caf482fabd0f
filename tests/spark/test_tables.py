"""Tables in an open format, written and read by a real Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.tables import Table

FORMAT = "penstock-table"


def numbers(spark: SparkSession, first: int, end: int) -> DataFrame:
    names = f.concat(f.lit("n"), "id")
    nested = f.struct(f.array("id").alias("list"), f.create_map(names, "id").alias("map"))
    return spark.range(first, end).select("id", names.alias("name"), nested.alias("nested"), f.col("id") % 3 > 0)


def test_batches_and_a_view_that_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "numbers")
    for first in (0, 50):
        numbers(spark, first, first + 50).repartition(3).write.format(FORMAT).mode("append").save(place)
    found = spark.read.format(FORMAT).load(place)
    expected = numbers(spark, 0, 100)
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))
    assert found.where("id between 10 and 14").count() == 5
    assert found.where("id < 10").union(found.where("id >= 90")).count() == 20
    assert found.count() == 100
    exact = spark.read.format(FORMAT).option("filterPushdown", "true").load(place)
    assert exact.where("id between 10 and 14").count() == 5
    assert pl.scan_delta(place).select(pl.len()).collect().item() == 100
    assert Table.open(place).version == 2

    expected.where("id < 7").write.format(FORMAT).mode("overwrite").save(place)
    clicks = DeltaTable(place).to_pyarrow_dataset()  # noqa: F841
    assert duckdb.sql("select count(*) from clicks").fetchall() == [(7,)]
    assert Table.open(place).version == 3
    assert spark.read.format(FORMAT).option("versionAsOf", "1").load(place).count() == 50


def test_a_stream_of_a_table_into_a_table_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    source, copy, checkpoint = (tmp_path / name for name in ("source", "copy", "checkpoint"))

    def run() -> None:
        stream = spark.readStream.format(FORMAT).load(str(source))
        query = (
            stream.select("id", "name")
            .writeStream.format(FORMAT)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(copy))
        )
        assert query.awaitTermination(120)

    numbers(spark, 0, 20).write.format(FORMAT).mode("append").save(str(source))
    run()
    numbers(spark, 20, 30).write.format(FORMAT).mode("append").save(str(source))
    run()
    table = Table.open(copy)
    assert table.version == 2
    # As if Spark had been killed after the commit of the table and before its own: it repeats the batch.
    shutil.rmtree(checkpoint / "commits")
    (checkpoint / "commits").mkdir()
    run()
    table.refresh()
    assert table.version == 2
    assert sorted(table.at().arrow().column("id").to_pylist()) == list(range(30))


def test_errors_are_sentences(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no table in"):
        spark.read.format(FORMAT).load(str(tmp_path / "none")).collect()
    with pytest.raises(PySparkException, match="did you mean 'mergeSchema'") as refused:
        spark.range(1).write.format(FORMAT).option("mergeSchem", "true").mode("append").save(str(tmp_path))
    assert "Traceback" not in str(refused.value)
