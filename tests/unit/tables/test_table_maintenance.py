"""Small files are merged, old versions expire, checkpoints sum up; readers are not disturbed."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.tables import NoTable, Table, TableDamaged
from penstock.tables.actions import AddFile
from penstock.tables.compaction import groups
from support.tables.rows import EVENTS, STREAM, append, events, ids, parquet_files


def small_files(directory: Path, count: int, **options: Any) -> Table:
    table = Table.create(directory, EVENTS, **options)
    for first in range(0, count * 5, 5):
        append(table, first, first + 5)
    return table


def entries(directory: Path) -> list[str]:
    return sorted(path.name.lstrip("0") for path in (directory / "_delta_log").iterdir())


def test_merged_files_have_the_same_rows_in_their_order(tmp_path: Path) -> None:
    table = small_files(tmp_path, 20, partition_by=["day"])
    done = table.compact()
    assert (done.merged, done.made) == (22, 4)  # of four whole days; the first and the last day have one file
    assert table.files == 6
    assert Table.open(tmp_path).at().arrow().sort_by("id").equals(events(0, 100))
    for file in table._state.files:
        found = pq.read_table(tmp_path / file, partitioning=None).column("id").to_pylist()
        assert found == sorted(found)
    assert table.compact().merged == 0
    assert table.positions == {STREAM: 100}
    assert DeltaTable(str(tmp_path)).transaction_version(STREAM) == 100
    assert all(line["add"]["dataChange"] is False for line in _lines(tmp_path, table.version) if "add" in line)


def _lines(directory: Path, version: int) -> list[dict[str, Any]]:
    text = (directory / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def file_of(size: int, age: int, day: str | None = "a") -> AddFile:
    return AddFile(f"{age}.parquet", {"day": day}, size, age, True)


def test_files_are_merged_when_it_is_worthwhile() -> None:
    def sizes(files: list[AddFile], **options: Any) -> list[list[int]]:
        return [[file.size for file in group] for group in groups(files, 100, **options)]

    grown = [file_of(80, 1), file_of(60, 2), file_of(10, 3), file_of(4, 4), file_of(4, 5), file_of(4, 6), file_of(4, 7)]
    assert sizes(grown) == [[10, 4, 4, 4, 4]]
    assert sizes(grown, is_thorough=True) == [[60, 10, 4, 4, 4, 4]]
    assert sizes(list(reversed(grown))) == [[10, 4, 4, 4, 4]]
    apart = [file_of(1, 1), file_of(1, 2, "b"), file_of(1, 3, None), file_of(1, 4)]
    assert sizes(apart) == []
    assert sizes(apart, is_thorough=True) == [[1, 1]]
    assert all(sum(group) <= 100 for group in sizes([file_of(30, age) for age in range(20)], is_thorough=True))


def test_a_row_is_rewritten_a_few_times_however_often_files_are_merged(tmp_path: Path) -> None:
    rewritten = 0
    files: list[AddFile] = []
    for age in range(1000):
        files.append(file_of(1, age))
        for group in groups(files, 10_000):
            size = sum(file.size for file in group)
            rewritten += size
            files = [file for file in files if file not in group]
            files.append(file_of(size, group[-1].modification_time))
    assert len(files) < 25
    assert rewritten < 1000 * 12


def test_merging_can_be_stopped_between_groups(tmp_path: Path) -> None:
    table = small_files(tmp_path, 20, partition_by=["day"])
    answers = iter([False, True])
    assert table.compact(is_stopping=lambda: next(answers)).made == 1
    assert Table.open(tmp_path).at().arrow().num_rows == 100


def test_a_reader_never_sees_half_of_a_change(tmp_path: Path) -> None:
    """Every view is the events from 0 up to a multiple of 5, while files come, are merged, and expire."""
    table = small_files(tmp_path, 2, partition_by=["day"])
    ended = threading.Event()
    seen: list[int] = []
    wrong: list[object] = []

    def look(read: Any) -> None:
        while not ended.is_set():
            try:
                found = sorted(read())
            except Exception as error:
                wrong.append(error)
                return
            seen.append(len(found))
            if found != list(range(len(found))) or len(found) % 5:
                wrong.append(found)

    readers = (
        lambda: DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["id"]).column("id").to_pylist(),
        lambda: pl.scan_delta(str(tmp_path)).select("id").collect()["id"].to_list(),
    )
    threads = [threading.Thread(target=look, args=(read,)) for read in readers]
    for thread in threads:
        thread.start()
    for first in range(10, 200, 5):
        append(table, first, first + 5)
        if first % 20 == 0:
            table.compact()
        if first % 50 == 0:
            table.checkpoint()
            table.expire(timedelta(seconds=30))
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(seen) >= 2
    assert ids(tmp_path) == list(range(200))


def test_versions_expire_with_their_files(tmp_path: Path) -> None:
    table = small_files(tmp_path, 6)
    kept_from = datetime.now(UTC)
    time.sleep(0.005)
    table.compact()
    append(table, 30, 35)
    assert len(parquet_files(tmp_path)) == 8
    done = table.expire(kept_from)
    assert (done.oldest_version, done.files, done.entries) == (6, 0, 6)  # version 6 was current then
    assert ids(table, 6) == list(range(30))
    with pytest.raises(NoTable, match="has versions 6 to 8, not 5"):
        table.at(5)
    done = table.expire(timedelta(0))
    assert (done.oldest_version, done.files, done.entries) == (8, 6, 2)
    assert parquet_files(tmp_path) == set(table._state.files)
    assert ids(Table.open(tmp_path)) == list(range(35))
    assert entries(tmp_path) == ["8.checkpoint.parquet", "8.json", "_last_checkpoint"]
    assert sorted(pl.read_delta(str(tmp_path))["id"].to_list()) == list(range(35))
    assert table.expire(timedelta(0)).entries == 0
    append(table, 35, 40)
    assert (table.version, Table.open(tmp_path).positions) == (9, {STREAM: 40})


def test_an_age_may_be_longer_than_there_are_years(tmp_path: Path) -> None:
    table = small_files(tmp_path, 2)
    assert table.expire(timedelta.max).entries == 0


def test_leftovers_of_killed_writers_go_when_they_are_old(tmp_path: Path) -> None:
    table = small_files(tmp_path, 2)
    left = [
        tmp_path / "part-00000-killed.zstd.parquet",
        tmp_path / "_delta_log" / "_commit_00ff.json.tmp",
        tmp_path / "_penstock" / "checkpoint-00ff",
    ]
    left[2].mkdir(parents=True)
    for path in left[:2]:
        path.write_bytes(b"half")
    others = [tmp_path / "_other" / "x.parquet", tmp_path / "notes.txt"]
    others[0].parent.mkdir()
    for path in others:
        path.write_bytes(b"")
    table.expire(timedelta(0))
    assert all(path.exists() for path in left)
    days_ago = time.time() - 2 * 24 * 3600
    for path in (*left, *others):
        os.utime(path, (days_ago, days_ago))
    assert table.expire(timedelta(0)).files == 1
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)
    assert ids(tmp_path) == list(range(10))


def test_a_table_within_the_table_is_left_alone(tmp_path: Path) -> None:
    small_files(tmp_path, 2)
    inner = small_files(tmp_path / "more" / "inner", 2)
    days_ago = time.time() - 2 * 24 * 3600
    for name in parquet_files(tmp_path):
        os.utime(tmp_path / name, (days_ago, days_ago))
    assert Table.open(tmp_path).expire(timedelta(0)).files == 0
    assert ids(inner.directory) == list(range(10))


def test_checkpoints_come_by_themselves_and_hold_everything(tmp_path: Path) -> None:
    table = small_files(tmp_path, 12, properties={"delta.checkpointInterval": "5"})
    assert [name for name in entries(tmp_path) if "checkpoint" in name] == [
        "10.checkpoint.parquet",
        "5.checkpoint.parquet",
        "_last_checkpoint",
    ]
    for version in range(10):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    again = Table.open(tmp_path)
    assert again.positions == {STREAM: 60}
    summed_up = set(list(table._state.files)[:10])
    assert again._state.files == {
        path: msgspec.structs.replace(file, data_change=path not in summed_up)
        for path, file in table._state.files.items()
    }
    assert again.properties == table.properties
    assert ids(again) == list(range(60))
    append(again, 60, 65)
    assert DeltaTable(str(tmp_path)).transaction_version(STREAM) == 65
    assert not list((tmp_path / "_penstock").iterdir())


def test_a_commit_counts_without_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise TableDamaged("delta-rs does not like it")

    monkeypatch.setattr("penstock.tables.table.write_checkpoint", fails)
    table = small_files(tmp_path, 4, properties={"delta.checkpointInterval": "2"})
    assert table.version == 4
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: no checkpoint of version {version}: delta-rs does not like it" for version in (2, 4)
    ]


def test_history_and_time_travel(tmp_path: Path) -> None:
    table = small_files(tmp_path, 3)
    between = datetime.now(UTC)
    time.sleep(0.005)
    table.compact(is_thorough=True)
    table.replace(events(0, 1))
    told = list(table.history())
    assert [entry.version for entry in told] == [5, 4, 3, 2, 1, 0]
    assert [entry.operation for entry in told] == ["WRITE", "OPTIMIZE", "WRITE", "WRITE", "WRITE", "CREATE TABLE"]
    assert told[2].positions == {STREAM: (10, 15)}
    assert told[0].parameters == {"mode": "Overwrite"}
    assert told[1].metrics["numRemovedFiles"] == "3"
    assert [entry.version for entry in table.history(2)] == [5, 4]
    assert ids(table, 2) == list(range(10))
    assert ids(table, 4) == list(range(15))
    assert table.at(when=between).version == 3
    assert table.at().version == 5
    with pytest.raises(NoTable, match="has no version from 2020"):
        table.at(when=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(NoTable, match="has versions 0 to 5, not 9"):
        table.at(9)
    assert DeltaTable(str(tmp_path), version=2).to_pyarrow_table().num_rows == 10
