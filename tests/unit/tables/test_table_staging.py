"""Rows that one process writes and another commits; the files that versions added; replacement with another schema."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.tables import CommitConflict, NoTable, SchemaMismatch, Span, Table, stage
from support.tables.rows import EVENTS, STREAM, append, events, ids, parquet_files


def test_staged_rows_of_several_processes_become_one_version(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS, ["day"])
    parts = [stage(tmp_path, EVENTS, ["day"], events(first, first + 10)) for first in (0, 10)]
    assert table.at().arrow().num_rows == 0
    first, second = (pickle.loads(pickle.dumps(part)) for part in parts)
    done = table.append(first.with_all([second]), {STREAM: Span(0, 20)})
    assert (done.version, done.rows) == (1, 20)
    assert ids(table) == list(range(20))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 20


def test_staged_rows_of_a_replay_leave_nothing(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    table.append(stage(tmp_path, EVENTS, (), events(0, 5)), {STREAM: Span(0, 5)})
    before = parquet_files(tmp_path)
    assert table.append(stage(tmp_path, EVENTS, (), events(0, 5)), {STREAM: Span(0, 5)}).is_replay
    assert parquet_files(tmp_path) == before
    assert ids(table) == list(range(5))


def test_staged_rows_that_nobody_commits_expire(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    append(table, 0, 5)
    stage(tmp_path, EVENTS, (), events(5, 10))
    assert table.expire(timedelta(0), unfinished_s=0).files == 1
    assert ids(table) == list(range(5))


def test_rows_that_do_not_fit_leave_no_file(tmp_path: Path) -> None:
    Table.create(tmp_path, EVENTS)
    with pytest.raises(SchemaMismatch, match="no column other"):
        stage(tmp_path, EVENTS, (), iter([events(0, 3).to_batches()[0], pa.record_batch({"other": [1]})]))
    assert not parquet_files(tmp_path)


def test_staged_rows_of_an_earlier_schema(tmp_path: Path) -> None:
    table = Table.create(tmp_path, pa.schema([("id", pa.int32())]))
    narrow = table.schema
    staged = [stage(tmp_path, narrow, (), pa.table({"id": [one]}, narrow)) for one in (1, 2)]
    table.evolve(pa.schema([("id", pa.int32()), ("name", pa.string())]))
    table.append(staged[0])
    assert table.at().arrow().to_pylist() == [{"id": 1, "name": None}]
    table.evolve(pa.schema([("id", pa.int64())]))
    with pytest.raises(CommitConflict, match="write them again"):
        table.append(staged[1])
    with pytest.raises(CommitConflict, match="write them again"):
        staged[0].with_all([stage(tmp_path, table.schema, (), pa.table({"id": [3]}))])


def test_a_replacement_may_have_another_schema(tmp_path: Path) -> None:
    table = Table.create(tmp_path, pa.schema([("day", pa.string()), ("n", pa.int64())]), ["day"])
    table.append(pa.table({"day": ["a"], "n": [1]}))
    schema = pa.schema([("day", pa.string()), ("n", pa.string()), ("more", pa.float64())])
    table.replace(pa.table({"day": ["b"], "n": ["x"], "more": [0.5]}, schema), schema=schema)
    assert table.schema == schema
    found = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert found == [{"day": "b", "n": "x", "more": 0.5}]
    assert table.at(1).arrow().to_pylist() == [{"day": "a", "n": 1}]
    with pytest.raises(SchemaMismatch, match="cannot partition by 'day'"):
        table.replace(pa.table({"n": [1]}), schema=pa.schema([("n", pa.int64())]))


def test_what_versions_added(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    for first in range(0, 40, 10):
        append(table, first, first + 10)
    assert table.compact().made == 1
    append(table, 40, 50)
    found = list(table.additions(1, table.version))
    assert [(one.version, len(one.files), one.is_replacing) for one in found] == [
        (2, 1, False),
        (3, 1, False),
        (4, 1, False),
        (6, 1, False),
    ]
    table.replace(events(0, 1))
    assert [one.is_replacing for one in table.additions(6, table.version)] == [True]
    assert [len(table.snapshot(version).files) for version in (4, 5, 6, 7)] == [4, 1, 2, 1]


def test_versions_that_a_reader_needs_do_not_expire(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    for first in range(0, 40, 10):
        append(table, first, first + 10)
    table.compact()
    assert table.expire(timedelta(0), keep_from=3).oldest_version == 3
    assert [one.version for one in table.additions(3, table.version)] == [4]
    assert ids(table, 3) == list(range(30))
    assert table.expire(timedelta(0)).oldest_version == 5
    with pytest.raises(NoTable, match="version 4 has expired"):
        list(table.additions(3, table.version))
