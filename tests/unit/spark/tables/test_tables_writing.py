"""The sink for tables, without Spark: its writers are called as Spark calls them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict as Insensitive
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampNTZType

from penstock.spark.options.known import InvalidOption
from penstock.spark.tables.options import WriteOptions
from penstock.spark.tables.writing import TableStreamWriter, TableWriter, TaskStaged
from penstock.tables import SchemaMismatch, Table, TableFailed
from support.tables.rows import parquet_files

SCHEMA = StructType([StructField("id", LongType(), nullable=False), StructField("name", StringType())])


def rows(first: int, end: int) -> Any:
    names = pa.array([f"n{n}" for n in range(first, end)], pa.string())
    return pa.record_batch({"id": pa.array(range(first, end), pa.int64()), "name": names})


def run_batch(
    directory: Path, batch: int, parts: list[Any], query: str = "q", overwrite: bool = False, **options: str
) -> None:
    """As Spark: a writer plans and is pickled to the tasks, and another one commits."""
    given = {"path": str(directory), **options}
    planned = pickle.loads(pickle.dumps(TableStreamWriter(given, SCHEMA, overwrite)))
    written = [replace(planned.write(iter([part])), query_id=query) for part in parts]
    TableStreamWriter(given, SCHEMA, overwrite).commit(pickle.loads(pickle.dumps(written)), batch)


def found(directory: Path) -> list[int]:
    return sorted(Table.open(directory).at().arrow().column("id").to_pylist())


def test_a_batch_is_one_version_with_the_position_of_its_query(tmp_path: Path) -> None:
    run_batch(tmp_path, 0, [rows(0, 3), rows(3, 5)])
    run_batch(tmp_path, 1, [rows(5, 6)])
    table = Table.open(tmp_path)
    assert (table.version, table.positions) == (2, {"spark-q": 2})
    assert found(tmp_path) == list(range(6))


def test_a_repeated_batch_is_recognised_whoever_repeats_it(tmp_path: Path) -> None:
    for _ in range(3):
        run_batch(tmp_path, 0, [rows(0, 3)])
    run_batch(tmp_path, 1, [rows(3, 4)])
    run_batch(tmp_path, 0, [rows(0, 3)])
    assert found(tmp_path) == [0, 1, 2, 3]
    assert len(parquet_files(tmp_path)) == 2
    run_batch(tmp_path, 0, [rows(4, 5)], query="another")
    assert found(tmp_path) == [0, 1, 2, 3, 4]


def test_batches_without_rows_make_no_version(tmp_path: Path) -> None:
    run_batch(tmp_path, 0, [rows(0, 1)])
    run_batch(tmp_path, 1, [rows(0, 0), rows(0, 0)])
    TableStreamWriter({"path": str(tmp_path)}, SCHEMA, False).commit([], 2)
    run_batch(tmp_path, 3, [rows(1, 2)])
    run_batch(tmp_path, 3, [rows(1, 2)])
    assert (found(tmp_path), Table.open(tmp_path).version) == ([0, 1], 2)


def test_a_failed_commit_and_its_abort_leave_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_batch(tmp_path, 0, [rows(0, 1)])
    writer = TableStreamWriter({"path": str(tmp_path)}, SCHEMA, False)
    written = [replace(writer.write(iter([rows(1, 2)])), query_id="q"), None]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.link", full)
        with pytest.raises(TableFailed, match="no space left on device"):
            writer.commit(written, 1)
        writer.abort(written, 1)
    assert found(tmp_path) == [0]
    run_batch(tmp_path, 1, [rows(1, 2)])
    assert found(tmp_path) == [0, 1]


def test_complete_mode_replaces_all_rows(tmp_path: Path) -> None:
    run_batch(tmp_path, 0, [rows(0, 5)], overwrite=True)
    run_batch(tmp_path, 1, [rows(7, 9)], overwrite=True)
    run_batch(tmp_path, 1, [rows(7, 9)], overwrite=True)
    assert (found(tmp_path), Table.open(tmp_path).version) == ([7, 8], 2)


def test_batch_writes_append_and_overwrite(tmp_path: Path) -> None:
    for overwrite, first in ((False, 0), (False, 3), (True, 6)):
        writer = TableWriter({"path": tmp_path.as_uri()}, SCHEMA, overwrite)
        writer.commit([writer.write(iter([rows(first, first + 3)])), writer.write(iter([]))])
        assert len(found(tmp_path)) == (6 if first == 3 else 3)
    assert found(tmp_path) == [6, 7, 8]


def columns(**kinds: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def test_columns_that_the_table_lacks(tmp_path: Path) -> None:
    options = {"path": str(tmp_path)}
    TableWriter(options, columns(id=IntegerType()), False)
    wider = columns(id=LongType(), name=StringType())
    with pytest.raises(SchemaMismatch, match="column name, id of the rows: set the option mergeSchema=true"):
        TableWriter(options, wider, False)
    TableWriter({**options, "mergeSchema": "true"}, wider, False)
    assert Table.open(tmp_path).schema == pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pytest.raises(SchemaMismatch, match="column id is int64 in the table and string in the rows"):
        TableWriter({**options, "mergeSchema": "true"}, columns(id=StringType()), True)


def test_overwrite_may_change_the_schema(tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "overwriteSchema": "true"}
    writer = TableWriter(options, SCHEMA, True)
    writer.commit([writer.write(iter([rows(0, 2)]))])
    other = TableWriter(options, columns(id=StringType()), True)
    assert found(tmp_path) == [0, 1]  # until the commit
    other.commit([other.write(iter([pa.record_batch({"id": ["a"]})]))])
    assert Table.open(tmp_path).at().arrow().to_pylist() == [{"id": "a"}]


def test_a_table_needs_times_with_a_zone(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'at' is .* give it a time zone"):
        TableWriter({"path": str(tmp_path)}, columns(at=TimestampNTZType()), False)


def test_partitions(tmp_path: Path) -> None:
    writer = TableWriter({"path": str(tmp_path), "partitionBy": "name"}, SCHEMA, False)
    writer.commit([writer.write(iter([rows(0, 3)]))])
    assert {path.split("/")[0] for path in parquet_files(tmp_path)} == {"name=n0", "name=n1", "name=n2"}
    assert TableWriter({"path": str(tmp_path)}, SCHEMA, False)._target.partition_by == ("name",)
    with pytest.raises(InvalidOption, match=r"'partitionBy' is 'id', and .* is partitioned by name"):
        TableWriter({"path": str(tmp_path), "partitionBy": "id"}, SCHEMA, False)


def test_files_and_log_stay_bounded(tmp_path: Path) -> None:
    for batch in range(60):
        run_batch(tmp_path, batch, [rows(batch, batch + 1)], compactInterval="2", keep="0s")
    assert Table.open(tmp_path).files <= 12
    assert len(parquet_files(tmp_path)) <= 36
    assert len(list((tmp_path / "_delta_log").glob("*.json"))) <= 36
    assert found(tmp_path) == list(range(60))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "needs a directory: .option\\('path', '/data/clicks'\\)"),
        ({"path": "s3://bucket/t"}, "tables are in local or mounted file systems"),
        ({"path": "/t", "mergeschem": "true"}, "'mergeschem' is not known .* did you mean 'mergeSchema'"),
        ({"path": "/t", "mergeSchema": "yes"}, "'mergeSchema' is 'yes': write true or false"),
        ({"path": "/t", "keep": "soon"}, "'keep' is 'soon': write a time as 90s"),
        ({"path": "/t", "compactInterval": "-1"}, "write a whole number from 0 on"),
        ({"path": "/t", "targetFileSize": "0"}, "write a whole number from 1 on"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        WriteOptions.parse(Insensitive(options))


def test_options_in_any_spelling() -> None:
    parsed = WriteOptions.parse(Insensitive({"PATH": "file:///data/a%20b", "KEEP": "90m", "partitionby": "a, b"}))
    assert (parsed.directory, parsed.keep) == (Path("/data/a b"), timedelta(minutes=90))
    assert parsed.partition_by == ("a", "b")
    assert parsed.directory == WriteOptions.parse({"path": "file:/data/a b"}).directory
    assert WriteOptions.parse(Insensitive({"path": "/data/t", "keep": "forever"})).keep is None


def test_staged_rows_go_from_process_to_process(tmp_path: Path) -> None:
    written = TableWriter({"path": str(tmp_path)}, SCHEMA, False).write(iter([rows(0, 2)]))
    assert pickle.loads(pickle.dumps(written)) == written
    assert isinstance(written, TaskStaged)
    assert written.query_id is None
