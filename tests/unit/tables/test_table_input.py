"""What is not a table, or cannot be written, is said in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.tables import (
    NoTable,
    NotATable,
    SchemaMismatch,
    Table,
    TableDamaged,
    UnsupportedTable,
)
from support.tables.rows import EVENTS, append, events, ids


def test_a_missing_table(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "not" / "there"):
        with pytest.raises(NoTable, match=f"there is no table in {place}"):
            Table.open(place)
    assert Table.open_or_create(tmp_path / "not" / "there", EVENTS).version == 0
    assert Table.open_or_create(tmp_path / "not" / "there", pa.schema([("a", pa.int8())])).schema == EVENTS


def test_something_else_is_there(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no table")
    for make in (Table.open, lambda path: Table.create(path, EVENTS)):
        with pytest.raises(NotATable, match="file is not a directory"):
            make(file)
    with pytest.raises(NotATable, match="is a directory with other files"):
        Table.open(tmp_path)
    with pytest.raises(NotATable, match="has other files: choose an empty directory"):
        Table.create(tmp_path, EVENTS)
    Table.create(tmp_path / "table", EVENTS)
    with pytest.raises(NotATable, match="has a table already"):
        Table.create(tmp_path / "table", EVENTS)


def test_a_creation_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "_commit_00ff.json.tmp").write_text("half")
    with pytest.raises(NoTable):
        Table.open(tmp_path)
    assert append(Table.open_or_create(tmp_path, EVENTS), 0, 5) == 1


@pytest.mark.parametrize(
    ("partition_by", "reason"),
    [
        (["nothing"], "cannot partition by 'nothing': the columns are id, name"),
        (["at"], "cannot partition by 'at', which is timestamp"),
        (["day", "day"], "cannot partition by a column twice"),
        (["id", "name", "day"], "one must be left"),
    ],
)
def test_partition_columns_are_checked(tmp_path: Path, partition_by: list[str], reason: str) -> None:
    schema = EVENTS if len(partition_by) < 3 else pa.schema([EVENTS.field(name) for name in partition_by])
    with pytest.raises(SchemaMismatch, match=reason):
        Table.create(tmp_path / "t", schema, partition_by)
    assert not (tmp_path / "t").exists()


def test_tables_of_other_writers(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "plain"), events(0, 10).drop(["at"]), partition_by=["day"])
    table = Table.open(tmp_path / "plain")
    table.append(events(10, 20).drop(["at"]))
    table.compact(is_thorough=True)
    assert ids(table) == list(range(20))
    write_deltalake(str(tmp_path / "zoned"), events(0, 10))
    assert ids(Table.open(tmp_path / "zoned")) == list(range(10))


@pytest.mark.parametrize(
    ("configuration", "feature"),
    [
        ({"delta.enableDeletionVectors": "true"}, "deletionVectors"),
        ({"delta.enableChangeDataFeed": "true"}, "changeDataFeed|writer version"),
    ],
)
def test_a_table_that_needs_more_is_left_alone(tmp_path: Path, configuration: dict[str, str], feature: str) -> None:
    DeltaTable.create(str(tmp_path), EVENTS, configuration=configuration)
    with pytest.raises(UnsupportedTable, match=feature):
        Table.open(tmp_path)


def test_an_append_only_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS, properties={"delta.appendOnly": "true"})
    append(table, 0, 10)
    for change in (
        lambda: table.replace(events(0, 1)),
        lambda: table.merge(["id"], events(0, 1)),
    ):
        with pytest.raises(UnsupportedTable, match="is append-only"):
            change()
    append(table, 10, 20)
    table.compact(is_thorough=True)
    assert ids(tmp_path) == list(range(20))


def test_a_damaged_log(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    append(table, 0, 10)
    entry = tmp_path / "_delta_log" / f"{1:020d}.json"
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TableDamaged, match=r"1\.json is not a log entry .* a power failure may have torn"):
        Table.open(tmp_path)
    entry.write_bytes(b"")
    with pytest.raises(TableDamaged, match=r"1\.json is empty: a power failure may have torn it"):
        Table.open(tmp_path)
    entry.write_bytes(whole)
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(TableDamaged, match="lacks entries: it has entries 1 to 1 and checkpoints at no version"):
        Table.open(tmp_path)


def test_a_torn_checkpoint_of_another_writer(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    append(table, 0, 10)
    table.checkpoint()
    checkpoint = tmp_path / "_delta_log" / f"{1:020d}.checkpoint.parquet"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(TableDamaged, match=r"1\.checkpoint\.parquet is not a checkpoint of a Delta table"):
        Table.open(tmp_path)


def test_a_data_file_that_is_gone(tmp_path: Path) -> None:
    table = Table.create(tmp_path, EVENTS)
    append(table, 0, 10)
    append(table, 10, 20)
    (tmp_path / next(iter(table._state.files))).unlink()
    with pytest.raises(TableDamaged, match=r"part-.*parquet of the table cannot be read"):
        table.compact(is_thorough=True)
    assert (table.version, table.files) == (2, 2)


def test_no_permission() -> None:
    """Not in pytest's directory, which only its user can enter."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        append(Table.create(place, EVENTS), 0, 10)
        place.chmod(0o555)
        reason = run_limited(place, "if os.geteuid() == 0: os.setuid(65534)")
        assert reason.startswith(f"TableFailed: cannot write {place}")
        assert reason.endswith(": permission denied")
        assert ids(place) == list(range(10))
        place.chmod(0o755)


@pytest.mark.parametrize("limit", [100, 2000, 3000])
def test_a_full_disk(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files fails at the same places. Whatever fails, the table stays what it was."""
    table = Table.create(tmp_path, EVENTS)
    append(table, 0, 10)
    reason = run_limited(tmp_path, f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))")
    assert reason.startswith("TableFailed: cannot ")
    assert reason.endswith(": file too large")
    again = Table.open(tmp_path)
    assert (again.version, ids(again)) == (1, list(range(10)))
    assert {path.name for path in tmp_path.glob("*.parquet")} == set(again._state.files)
    assert not list((tmp_path / "_delta_log").glob("*.tmp"))


def run_limited(directory: Path, limit: str) -> str:
    """Appends in a process of its own, under a limit. Returns its error."""
    program = f"""
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from pathlib import Path
from penstock.tables import Table, TableError
from support.tables.rows import append
table = Table.open({str(directory)!r})
{limit}
try:
    append(table, 10, 400)
except TableError as error:
    print(type(error).__name__ + ": " + str(error))
"""
    tests = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    return run.stdout.strip()
