"""Several writers of a table: each change is decided in view of the newest state."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.tables import CommitConflict, PositionsMoved, Span, Table
from penstock.tables.commits import Change
from penstock.tables.state import TableState
from support.tables.rows import EVENTS, STREAM, append, events, ids, parquet_files


def two_writers(directory: Path) -> tuple[Table, Table]:
    table = Table.create(directory, EVENTS)
    append(table, 0, 10)
    return table, Table.open(directory)


class Overtaken:
    """Calls something right before the next change is put into the log, when it has been decided."""

    def __init__(self, table: Table, by: object) -> None:
        self._put = table._log.put
        self._by = by
        table._log.put = self  # type: ignore[method-assign,assignment]

    def __call__(self, version: int, lines: object) -> bool:
        by, self._by = self._by, None
        if by is not None:
            by()  # type: ignore[operator]
        return self._put(version, lines)  # type: ignore[arg-type]


def test_the_second_of_two_committers_of_the_same_rows_sees_a_replay(tmp_path: Path) -> None:
    one, other = two_writers(tmp_path)
    Overtaken(one, lambda: append(other, 10, 20))
    done = one.append(events(10, 20), {STREAM: Span(10, 20)})
    assert (done.is_replay, done.version) == (True, 2)
    assert ids(tmp_path) == list(range(20))
    assert len(parquet_files(tmp_path)) == 2  # the loser's is deleted


def test_a_committer_that_was_overtaken_is_told_where_the_table_is(tmp_path: Path) -> None:
    one, other = two_writers(tmp_path)
    Overtaken(one, lambda: append(other, 10, 15))
    with pytest.raises(PositionsMoved, match="a part of the rows is already in it") as refused:
        append(one, 10, 20)
    assert refused.value.positions == {STREAM: 15}
    assert len(parquet_files(tmp_path)) == 2
    append(one, 15, 20)
    assert ids(tmp_path) == list(range(20))


def test_streams_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, other = two_writers(tmp_path)
    Overtaken(one, lambda: other.append(events(100, 110), {"other": Span(0, 10)}))
    assert append(one, 10, 20) == 3
    assert one.positions == {STREAM: 20, "other": 10}
    assert ids(tmp_path) == [*range(20), *range(100, 110)]


def test_many_committers_at_once(tmp_path: Path) -> None:
    Table.create(tmp_path, EVENTS)
    failures: list[Exception] = []

    def commit(number: int) -> None:
        try:
            table = Table.open(tmp_path)
            for one in range(10):
                first = number * 1000 + one * 5
                append(table, first, first + 5, f"stream {number}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    table = Table.open(tmp_path)
    assert table.version == 40
    assert table.positions == {f"stream {number}": number * 1000 + 50 for number in range(4)}
    assert ids(table) == [number * 1000 + one for number in range(4) for one in range(50)]


def test_a_merge_that_was_overtaken_looks_again(tmp_path: Path) -> None:
    one, other = two_writers(tmp_path)
    Overtaken(one, lambda: append(other, 10, 20))
    one.merge(["id"], events(300, 301), events(15, 18))
    assert ids(tmp_path) == [*range(15), 18, 19, 300]
    named = {file.removeprefix(f"{tmp_path}/") for file in DeltaTable(str(tmp_path)).file_uris()}
    assert named == set(Table.open(tmp_path)._state.files)
    assert len(parquet_files(tmp_path)) == 3  # two appends, and the merge; nothing of its first attempt


def test_a_compaction_survives_appends_and_gives_way_to_changes(tmp_path: Path) -> None:
    one, other = two_writers(tmp_path)
    for first in range(10, 50, 10):
        append(one, first, first + 10)
    Overtaken(one, lambda: append(other, 50, 60))
    assert one.compact().merged == 5
    assert ids(tmp_path) == list(range(60))
    Overtaken(one, lambda: other.merge(["id"], events(0, 0), events(55, 56)))
    before = one.files
    assert one.compact(is_thorough=True).merged == 0
    assert ids(tmp_path) == [*range(55), *range(56, 60)]
    one.refresh()
    assert one.files == before


def test_a_schema_that_another_writer_changed(tmp_path: Path) -> None:
    one, other = two_writers(tmp_path)
    Overtaken(one, lambda: other.evolve(pa.schema([("more", pa.int32())])))
    with pytest.raises(CommitConflict, match="changed its schema or settings at the same time"):
        append(one, 10, 20)
    assert len(parquet_files(tmp_path)) == 1
    append(one, 10, 20)
    assert "more" in one.schema.names


def test_widening_takes_in_what_was_appended_meanwhile(tmp_path: Path) -> None:
    table = Table.create(tmp_path, pa.schema([("id", pa.int32())]))
    table.append(pa.table({"id": pa.array([1], pa.int32())}))
    other = Table.open(tmp_path)
    Overtaken(table, lambda: other.append(pa.table({"id": pa.array([2], pa.int32())})))
    assert table.evolve(pa.schema([("id", pa.int64())])).widened == ("id",)
    table.append(pa.table({"id": [2**40]}))
    assert ids(tmp_path) == [1, 2, 2**40]


def test_a_writer_that_slept_while_its_versions_expired(tmp_path: Path) -> None:
    """The name of its next version is free again. Taking it would hide the rows for ever."""
    one, other = two_writers(tmp_path)
    for first in range(10, 60, 10):
        append(other, first, first + 10)
    other.checkpoint()
    other.expire(timedelta(0))
    assert not one._log.entry(2).exists()
    versions = []

    def decide(state: TableState) -> Change:
        versions.append(state.version)
        return Change("WRITE", {}, [])

    assert one._committer.commit(decide)  # as an append does, after it has looked for new versions
    assert versions == [1, 6]
    assert one.version == 7
    assert append(Table.open(tmp_path), 60, 70) == 8
    assert ids(tmp_path) == list(range(70))


def test_other_writers_of_delta(tmp_path: Path) -> None:
    """delta-rs appends, compacts and recognises our positions; we go on."""
    one, _ = two_writers(tmp_path)
    properties = CommitProperties(app_transactions=[Transaction(STREAM, 20)])
    write_deltalake(str(tmp_path), events(10, 20), mode="append", commit_properties=properties)
    with pytest.raises(PositionsMoved):
        append(one, 12, 24)
    append(one, 20, 30)
    stale = DeltaTable(str(tmp_path))
    append(one, 30, 40)
    with pytest.raises(Exception, match="Concurrent transaction failed"):
        write_deltalake(
            stale,
            events(30, 40),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(STREAM, 40)]),
        )
    DeltaTable(str(tmp_path)).optimize.compact()
    DeltaTable(str(tmp_path)).create_checkpoint()
    append(one, 40, 50)
    again = Table.open(tmp_path)
    assert (ids(again), again.positions) == (list(range(50)), {STREAM: 50})
    assert again.version == one.version
    assert again._state.files.keys() == one._state.files.keys()
