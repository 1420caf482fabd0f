"""A table takes rows of another schema, and old and new readers read all of it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from penstock.tables import Breaking, Table
from support.tables.rows import parquet_files

OLD = pa.schema([("id", pa.int32()), ("price", pa.float32()), ("day", pa.string())])


def table_of(directory: Path) -> Table:
    table = Table.create(directory, OLD, ["day"])
    for day in ("a", "b"):
        columns = {"id": range(3), "price": [0.5, 1.5, None], "day": [day] * 3}
        table.append(pa.table(columns, schema=OLD))
    return table


def test_an_added_column_is_null_in_old_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    files = parquet_files(tmp_path)
    nested = pa.struct([("country", pa.string())])
    found = table.evolve(pa.schema([("id", pa.int32()), ("user", nested)]))
    assert (found.added, found.widened, found.breaking) == (("user",), (), ())
    assert parquet_files(tmp_path) == files
    table.append(pa.table({"id": pa.array([7], pa.int32()), "user": pa.array([{"country": "NO"}], nested)}))
    rows = Table.open(tmp_path).at().arrow().to_pylist()
    assert sorted(str(row["user"]) for row in rows) == ["None"] * 6 + ["{'country': 'NO'}"]
    read = pl.read_delta(str(tmp_path))
    assert read.filter(pl.col("user").is_null()).height == 6
    assert table.at(2).schema.names == ["id", "price", "day"]
    assert table.at(2).arrow().num_rows == 6


def test_wider_types_for_every_reader(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    wide = pa.schema([("id", pa.int64()), ("price", pa.float64())])
    found = table.evolve(wide)
    assert found.widened == ("id", "price")
    assert table.schema == pa.schema([("id", pa.int64()), ("price", pa.float64()), ("day", pa.string())])
    table.append(pa.table({"id": [2**40], "price": [0.1], "day": ["c"]}))
    wanted = [(0, 0.5), (0, 0.5), (1, 1.5), (1, 1.5), (2, None), (2, None), (2**40, 0.1)]
    read = pl.read_delta(str(tmp_path)).sort("id").select("id", "price")
    assert (read.rows(), read.schema["id"]) == (wanted, pl.Int64)
    rows = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    assert duckdb.sql("select id, price from rows order by id").fetchall() == wanted
    assert rows is not None
    assert sorted(DeltaTable(str(tmp_path)).to_pandas()["id"]) == [0, 0, 1, 1, 2, 2, 2**40]
    kinds = {str(DeltaTable(str(tmp_path)).to_pyarrow_table().schema.field("id").type)}
    assert kinds == {"int64"}
    assert table.at(2).arrow().schema.field("id").type == pa.int32()  # the old version has the old files


def test_what_fits_needs_no_version(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    assert table.evolve(pa.schema([("id", pa.int8())])).schema == OLD
    assert table.version == 2


def test_a_breaking_change_is_a_value_and_changes_nothing(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    found = table.evolve(pa.schema([("id", pa.string()), ("price", pa.float64()), ("more", pa.int32())]))
    assert found.breaking == (Breaking("id", "int32", "string"),)
    assert (table.version, table.schema) == (2, OLD)


def test_compaction_merges_files_of_before_and_after(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.evolve(pa.schema([("more", pa.int64())]))
    for day in ("a", "b", "a"):
        table.append(pa.table({"id": pa.array([9], pa.int32()), "day": [day], "more": [1]}))
    before = table.at().arrow().sort_by([("day", "ascending"), ("id", "ascending")])
    assert table.compact(is_thorough=True).made == 2
    assert table.at().arrow().sort_by([("day", "ascending"), ("id", "ascending")]).equals(before)
