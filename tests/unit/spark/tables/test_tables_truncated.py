"""A table that a pipeline computes anew: readers see the old rows until the new ones are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.spark.tables.truncating import ASKED
from penstock.spark.tables.writing import TableStreamWriter, TableWriter
from penstock.tables import Table, TableFailed

SCHEMA = StructType([StructField("id", LongType())])


def ask(directory: Path, number: int) -> None:
    """As `TableCatalog.java` does at TRUNCATE."""
    (directory / ASKED).write_text(str(number))


def write(directory: Path, *ids: Any, schema: StructType = SCHEMA) -> None:
    writer = TableWriter({"path": str(directory), "mergeSchema": "true"}, schema, False)
    writer.commit([writer.write(iter([pa.record_batch({"id": pa.array(ids)})]))])


def stream(directory: Path, query: str, batch: int, *ids: int) -> None:
    writer = TableStreamWriter({"path": str(directory)}, SCHEMA, False)
    written = writer.write(iter([pa.record_batch({"id": pa.array(ids, pa.int64())})]))
    object.__setattr__(written, "query_id", query)
    TableStreamWriter({"path": str(directory)}, SCHEMA, False).commit([written], batch)


def found(directory: Path) -> list[Any]:
    return sorted(Table.open(directory).at().arrow().column("id").to_pylist())


def test_a_view_is_replaced_in_one_version(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    ask(tmp_path, 10)
    assert found(tmp_path) == [1, 2]
    write(tmp_path, 3)
    assert found(tmp_path) == [3]
    write(tmp_path, 4)  # asked for once, carried out once
    assert found(tmp_path) == [3, 4]
    ask(tmp_path, 11)
    write(tmp_path, 5)
    assert (found(tmp_path), Table.open(tmp_path).version) == ([5], 4)


def test_a_view_may_get_other_types(tmp_path: Path) -> None:
    write(tmp_path, 1)
    ask(tmp_path, 10)
    write(tmp_path, "one", schema=StructType([StructField("id", StringType())]))
    assert found(tmp_path) == ["one"]


def test_a_view_may_lose_columns(tmp_path: Path) -> None:
    wider = StructType([StructField("id", LongType()), StructField("name", StringType())])
    writer = TableWriter({"path": str(tmp_path)}, wider, False)
    writer.commit([writer.write(iter([pa.record_batch({"id": [1], "name": ["a"]})]))])
    ask(tmp_path, 10)
    write(tmp_path, 2)
    assert Table.open(tmp_path).at().arrow().to_pylist() == [{"id": 2}]


def test_streams_that_begin_anew_empty_their_table_once(tmp_path: Path) -> None:
    stream(tmp_path, "old", 0, 1, 2)
    ask(tmp_path, 10)
    stream(tmp_path, "new", 0, 1)
    stream(tmp_path, "other", 0, 7)
    stream(tmp_path, "new", 0, 1)  # repeated
    stream(tmp_path, "new", 1, 2)
    assert found(tmp_path) == [1, 2, 7]


def test_a_table_that_is_not_there_yet(tmp_path: Path) -> None:
    stream(tmp_path, "new", 0, 1)
    assert found(tmp_path) == [1]


def test_an_unreadable_request_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / ASKED).write_text("x")
    with pytest.raises(TableFailed, match=f"cannot read .*{ASKED}"):
        write(tmp_path, 2)
    assert found(tmp_path) == [1]
