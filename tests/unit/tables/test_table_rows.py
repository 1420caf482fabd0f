"""Rows and positions go into a table together, and other readers of Delta see them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.tables import PositionsMoved, SchemaMismatch, Span, Table
from support.tables.rows import EVENTS, STREAM, append, events, ids, parquet_files


def test_rows_and_positions_are_one_version(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    assert append(table, 0, 10) == 1
    assert append(table, 10, 30) == 2
    assert table.positions == {STREAM: 30}
    again = Table.open(tmp_path)
    assert (again.version, again.positions, ids(again)) == (2, {STREAM: 30}, list(range(30)))
    assert again.at().arrow().sort_by("id").equals(events(0, 30))


def test_a_replay_is_recognised(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    append(table, 0, 10)
    append(table, 10, 30)
    files = parquet_files(tmp_path)
    for first, end in ((10, 30), (0, 10), (5, 25)):
        committed = Table.open(tmp_path).append(events(first, end), {STREAM: Span(first, end)})
        assert (committed.is_replay, committed.version, committed.rows) == (True, 2, 0)
    assert ids(tmp_path) == list(range(30))
    assert parquet_files(tmp_path) == files


def test_a_gap_is_refused(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    append(table, 0, 10)
    files = parquet_files(tmp_path)
    with pytest.raises(PositionsMoved, match="up to offset 10, and the commit has 11 to 20") as refused:
        append(table, 11, 20)
    assert refused.value.positions == {STREAM: 10}
    assert (table.version, parquet_files(tmp_path)) == (1, files)


def test_streams_are_apart_and_positions_move_without_rows(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    table.append(events(0, 2), {"a": Span(0, 2), "b": Span(700, 900)})
    table.append([], {"b": Span(900, 905)})  # an aborted transaction
    assert Table.open(tmp_path).positions == {"a": 2, "b": 905}
    assert (table.version, ids(table)) == (2, [0, 1])
    assert table.append([], {"b": Span(905, 905)}).version == 2
    assert table.append([]).version == 2


def test_partitions(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS, ["day"])
    append(table, 0, 30)
    append(table, 30, 60)
    assert {path.rpartition("/")[0] for path in parquet_files(tmp_path)} == {
        "day=2026-01-31",
        "day=2026-02-01",
        "day=2026-02-02",
        "day=2026-02-03",
    }
    assert table.at().arrow().sort_by("id").equals(events(0, 60))
    scan = pl.scan_delta(tmp_path).filter(pl.col("day") == date(2026, 2, 1))
    assert scan.select("id").collect().to_series().to_list() == list(range(2, 26))


def test_partitions_of_any_value(tmp_path: Path) -> None:
    schema = pa.schema([("word", pa.string()), ("yes", pa.bool_()), ("n", pa.int32()), ("id", pa.int64())])
    words = ["plain", "a/b", "100% sure?", "ünï=cøde", None, "..", "x" * 200]
    place = tmp_path / "table"
    table = Table.create(place, schema, ["word", "yes", "n"])
    given = pa.table(
        {"word": words, "yes": [True, False, None] * 2 + [True], "n": [1, -2, None, 4, 5, 6, 7], "id": range(7)},
        schema=schema,
    )
    table.append(given)
    assert table.at().arrow().sort_by("id").equals(given)
    assert pl.read_delta(str(place)).sort("id").to_arrow().column("word").to_pylist() == words
    table.compact(is_thorough=True)
    table.merge(["id"], given.slice(0, 3))
    assert table.at().arrow().sort_by("id").equals(given)
    assert list(tmp_path.iterdir()) == [place]
    with pytest.raises(SchemaMismatch, match=r"column word: x{40}... is too long for a partition"):
        table.append(pa.table({"word": ["x" * 300], "id": [8]}))


@pytest.mark.parametrize("word", ["", None])
def test_a_partition_column_without_nulls(tmp_path: Path, word: str | None) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("word", pa.string(), nullable=False)])
    table = Table.create(tmp_path, schema, ["word"])
    with pytest.raises(SchemaMismatch, match="column word is"):
        table.append(pa.table({"id": [1, 2], "word": ["a", word]}))
    assert (table.version, parquet_files(tmp_path)) == (0, set())


def test_many_partitions_at_once_are_written_with_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tables.files.MAX_OPEN", 3)
    table = Table.create(tmp_path, EVENTS, ["day"])
    append(table, 0, 24 * 10)
    assert ids(table) == list(range(240))


def test_large_appends_make_files_of_the_target_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tables.files.ROW_GROUP_BYTES", 1000)
    schema = pa.schema([("id", pa.int64())])
    table = Table.create(tmp_path, schema, properties={"delta.targetFileSize": "3000"})
    table.append(pa.RecordBatch.from_pydict({"id": range(first, first + 100)}, schema) for first in range(0, 5000, 100))
    assert 2 < table.files < 50
    assert ids(table) == list(range(5000))


def test_other_readers_see_the_same_rows(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS, ["day"])
    append(table, 0, 50)
    append(table, 50, 100)
    wanted = events(0, 100)
    found = pl.read_delta(str(tmp_path)).sort("id").to_arrow()
    assert [found.column(name).to_pylist() for name in EVENTS.names] == [
        wanted.column(name).to_pylist() for name in EVENTS.names
    ]
    rows = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    assert duckdb.sql("select count(*), min(id), max(day) from rows").fetchall() == [(100, 0, date(2026, 2, 5))]
    frame = DeltaTable(str(tmp_path)).to_pandas().sort_values("id")
    assert frame["name"].tolist() == wanted.column("name").to_pylist()
    assert DeltaTable(str(tmp_path)).transaction_version(STREAM) == 100
    assert rows is not None


def test_readers_skip_files_by_their_limits(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    for first in range(0, 50, 10):
        append(table, first, first + 10)
    told = DeltaTable(str(tmp_path))
    assert len(told.file_uris(file_pruning_predicate="id >= 40")) == 1
    assert len(told.file_uris(file_pruning_predicate="name = 'event 3'")) == 1
    assert len(told.file_uris(file_pruning_predicate="at > '2026-02-02T21:00:00Z'")) == 1


def test_times_beyond_the_calendar_do_no_harm(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    table = Table.create(tmp_path, schema)
    times = [-(2**63) + 1000, 0, 2**63 - 1000]
    table.append(pa.table({"at": pa.array(times, schema.field("at").type)}))
    assert table.at().arrow().column("at").cast(pa.int64()).to_pylist() == times
    assert pl.read_delta(str(tmp_path))["at"].to_physical().to_list() == times


def test_rows_of_another_schema(tmp_path: Path) -> None:
    table = Table.create(tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]))
    table.append(pa.table({"name": pa.array(["a"], pa.large_string()), "id": pa.array([1], pa.int8())}))
    table.append(pa.table({"ID": pa.array([2], pa.int64())}))
    assert table.at().arrow().sort_by("id").to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    for rows, reason in (
        ({"id": ["x"]}, "column id is int64 in the table and string in the rows: evolve it first"),
        ({"id": [1], "more": [2]}, "the table has no column more: evolve it first"),
        ({"id": pa.array([1, None], pa.int64())}, "column id is never null in the table, and 1 rows have none"),
        ({"name": ["a"]}, "column id is never null"),
    ):
        with pytest.raises(SchemaMismatch, match=reason):
            table.append(pa.table(rows))
    assert table.version == 2
    assert len(parquet_files(tmp_path)) == 2


def test_replacing_all_rows(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS, ["day"])
    append(table, 0, 50)
    assert table.replace(events(7, 9), {STREAM: Span(50, 60)}).version == 2
    assert (ids(table), table.positions) == ([7, 8], {STREAM: 60})
    assert table.replace(events(0, 1), {STREAM: Span(50, 60)}).is_replay
    assert ids(table, 1) == list(range(50))
    assert pl.read_delta(str(tmp_path)).height == 2
    table.replace([])
    assert ids(table) == []


@pytest.mark.parametrize("keys", [["id"], ["id", "name"]])
def test_merging_by_key(tmp_path: Path, keys: list[str]) -> None:
    table = Table.create(tmp_path, EVENTS, ["day"])
    for first in range(0, 100, 20):
        append(table, first, first + 20)
    before = parquet_files(tmp_path)
    changed = events(30, 33).set_column(4, EVENTS.field("value"), pa.array([b"new"] * 3))
    rows = pa.concat_tables([changed, events(200, 202)])
    done = table.merge(keys, rows, events(5, 8).select(keys), {STREAM: Span(100, 105)})
    assert (done.version, table.positions) == (6, {STREAM: 105})
    found = table.at().arrow().sort_by("id")
    wanted = pa.concat_tables([events(0, 5), events(8, 30), changed, events(33, 100), events(200, 202)])
    assert found.equals(wanted)
    assert table.merge(keys, rows, None, {STREAM: Span(100, 105)}).is_replay
    table.merge(keys, rows.slice(0, 0), events(500, 501).select(keys))  # nothing to do
    assert table.version == 6
    untouched = [one for one in DeltaTable(str(tmp_path)).file_uris() if one.removeprefix(f"{tmp_path}/") in before]
    assert len(untouched) >= 5


def test_rows_are_found_by_key_in_the_version_that_is_known(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS, ["day"])
    append(table, 0, 60)
    append(table, 60, 100)
    wanted = pa.concat_tables([events(3, 5), events(70, 72), events(500, 501)])
    for keys in (["id"], ["name", "day"], ["at"]):
        found = table.find(keys, wanted.select(keys), ["id", "day", "value"])
        assert found.sort_by("id").equals(wanted.slice(0, 4).select(["id", "day", "value"]))
    assert table.find(["id"], wanted.slice(0, 0).select(["id"]), ["name"]).num_rows == 0
    with pytest.raises(SchemaMismatch, match="key column id is null in 1 rows"):
        table.find(["id"], pa.table({"id": pa.array([None], pa.int64())}), ["name"])
    append(Table.open(tmp_path), 100, 120)
    assert pa.Table.from_batches(table.scan()).sort_by("id").equals(events(0, 100))
    assert table.find(["id"], events(100, 101).select(["id"]), ["id"]).num_rows == 0
    table.refresh()
    assert table.find(["id"], events(100, 101).select(["id"]), ["id"]).num_rows == 1


def test_a_merge_needs_keys_that_are_unique_and_there(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    twice = pa.concat_tables([events(0, 2), events(1, 3)])
    nameless = events(0, 1).set_column(0, EVENTS.field("id"), pa.array([None], pa.int64()))
    for keys, rows, deletes, reason in (
        (["id"], twice, None, "1 rows have the same id as another one"),
        (["id"], events(0, 2), events(1, 2), "1 rows have the same id as another one"),
        (["id"], nameless, None, "key column id is null in 1 rows"),
        (["key"], events(0, 2), None, "no column 'key' to merge by"),
    ):
        with pytest.raises(SchemaMismatch, match=reason):
            table.merge(keys, rows, deletes)
    assert table.version == 0
    assert parquet_files(tmp_path) == set()
