"""Rows of tables from their files, without Spark."""

from __future__ import annotations

import datetime as dt
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli.pipeline.show import plain
from penstock.spark.pipeline import tables
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.tables import NamedTable, find_table, read_rows
from support.processes.command_line import CommandLine


class TableWriter:
    """Files as Spark writes them, in the project's warehouse."""

    def __init__(self, project: PipelineProject, name: str) -> None:
        self.directory = project.warehouse / name
        self.directory.mkdir(parents=True)
        self.log = self.directory / "_spark_metadata"
        TableLocations(project).record({("spark_catalog", "default", name): self.directory.as_uri()})

    def file(self, name: str, **columns: list[Any]) -> str:
        """Returns its entry for the log."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), path, row_group_size=2)
        return self.entry(name, "add")

    def entry(self, name: str, action: str) -> str:
        uri = (self.directory / name).resolve().as_uri().replace("///", "/")
        return json.dumps({"path": uri, "size": 1, "isDir": False, "action": action})

    def commit(self, log: str, *entries: str) -> None:
        self.log.mkdir(exist_ok=True)
        (self.log / log).write_text("\n".join(["v1", *entries]))


@pytest.fixture
def events(project: PipelineProject) -> TableWriter:
    return TableWriter(project, "events")


def numbers(project: PipelineProject, limit: int = 100, name: str = "events") -> list[int]:
    return read_rows(find_table(project, name), limit).column("n").to_pylist()  # type: ignore[no-any-return]


def test_a_streaming_table_has_the_files_of_its_log(project: PipelineProject, events: TableWriter) -> None:
    first, second = events.file("part-0 a.parquet", n=[1, 2, 3]), events.file("part-1.parquet", n=[4, 5])
    events.file("part-2.parquet", n=[666])  # of a batch that failed
    events.commit("0", first)
    events.commit("1", second)
    events.commit(".2.abc.tmp", "half")
    assert numbers(project) == [1, 2, 3, 4, 5]
    for limit in range(1, 6):
        assert numbers(project, limit) == [1, 2, 3, 4, 5][-limit:], "the newest"


def test_its_log_is_compacted(project: PipelineProject, events: TableWriter) -> None:
    entries = [events.file(f"part-{n}.parquet", n=[n]) for n in range(12)]
    for n in range(9):
        events.commit(str(n), entries[n])
    events.commit("9.compact", *entries[:10], events.entry("part-3.parquet", "delete"))
    events.commit("10", entries[10])
    events.commit("9", entries[9])  # not deleted yet
    assert numbers(project) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_a_view_has_all_files(project: PipelineProject) -> None:
    view = TableWriter(project, "stats")
    view.file("part-1.parquet", n=[3, 4])
    view.file("part-0.parquet", n=[1, 2])
    view.file("_temporary/part-9.parquet", n=[666])
    assert numbers(project, name="stats") == [1, 2, 3, 4]
    assert numbers(project, 3, name="stats") == [1, 2, 3], "the first"


def test_columns_in_directories_and_columns_that_were_added(project: PipelineProject, events: TableWriter) -> None:
    old = events.file("day=2026-03-01/a.parquet", n=[1])
    new = events.file("day=__HIVE_DEFAULT_PARTITION__/b.parquet", n=[2], word=["x"])
    events.commit("0", old)
    events.commit("1", new)
    assert read_rows(find_table(project, "events"), 10).to_pylist() == [
        {"n": 1, "day": "2026-03-01", "word": None},
        {"n": 2, "day": None, "word": "x"},
    ]


def test_names(project: PipelineProject, events: TableWriter) -> None:
    for name in ("events", "EVENTS", "default.events", "spark_catalog.default.events", "`default`.`events`"):
        assert find_table(project, name).directory == events.directory
    TableWriter(project, "stats")
    with pytest.raises(PipelineError, match=r"there is no table nope \(there are: events, stats\)"):
        find_table(project, "nope")
    other = project.root / "other" / "events"
    other.mkdir(parents=True)
    TableLocations(project).record({("spark_catalog", "other", "events"): str(other)})
    with pytest.raises(PipelineError, match=r"events may be spark_catalog\.default\.events or spark_"):
        find_table(project, "events")
    TableLocations(project).record({("c", "d", "far"): "s3a://bucket/far", ("c", "d", "gone"): "/no/such/place"})
    with pytest.raises(PipelineError, match=r"c\.d\.far are not on this machine"):
        find_table(project, "far")
    with pytest.raises(PipelineError, match=r"c\.d\.gone are not in /no/such/place"):
        find_table(project, "gone")


def test_before_the_first_run(project: PipelineProject) -> None:
    with pytest.raises(PipelineError, match=r"there is no table events .there are: no run has written one yet"):
        find_table(project, "events")


def test_a_table_that_was_moved_is_refused(project: PipelineProject, events: TableWriter) -> None:
    events.commit("0", '{"path": "file:/elsewhere/events/a.parquet", "action": "add"}')
    with pytest.raises(PipelineError, match=r"lists /elsewhere/events/a\.parquet: the table was written elsewhere"):
        numbers(project)


def test_a_view_that_is_replaced_meanwhile(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    TableWriter(project, "stats").file("part-1.parquet", n=[1])
    real, calls = tables._data_files, [0]

    def stale(directory: Path) -> Any:
        calls[0] += 1
        return iter([directory / "gone.parquet"]) if calls[0] in (1, 3, 4) else real(directory)

    monkeypatch.setattr(tables, "_data_files", stale)
    assert numbers(project, name="stats") == [1]
    with pytest.raises(PipelineError, match=r"a run is replacing table spark_catalog\.default\.stats just now"):
        numbers(project, name="stats")


def test_values() -> None:
    assert plain({"a": [b"x", b"\xff", 1, None, float("nan")], "b": (True,)}) == {
        "a": ["x", {"base64": "/w=="}, 1, None, "nan"],
        "b": [True],
    }
    assert plain(dt.datetime(2026, 3, 1, 12)) == "2026-03-01T12:00:00"
    assert [plain(dt.date(2026, 3, 1)), plain(Decimal("1.50")), plain(1.5)] == ["2026-03-01", "1.50", 1.5]


def test_the_command(
    project: PipelineProject, events: TableWriter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = CommandLine(monkeypatch, capsys)
    words = ("pipeline", "show", "events", "--project", str(project.root))
    events.commit("0", events.file("a.parquet", word=["x\ny", "z" * 100], n=[1, None], key=[b"k", b"\xff"]))
    assert cli(*words).lines == [
        f"{'word':<60}  n  key",
        f"{'x y':<60}  1  k",
        f'{"z" * 57}...  -  {{"base64": "/w=="}}',
    ]
    told = json.loads(cli(*words, "--limit", "1", "--json").out)
    assert told == {
        "table": "spark_catalog.default.events",
        "rows": [{"word": "z" * 100, "n": None, "key": {"base64": "/w=="}}],
        "error": None,
    }
    unknown = cli("pipeline", "show", "nope", "--project", str(project.root), "--json")
    assert unknown.code == 1
    assert json.loads(unknown.out)["error"] == "there is no table nope (there are: events)"
    events.commit("0", events.file("a.parquet", n=pa.array([], pa.int64())))
    assert cli(*words).out == "Table spark_catalog.default.events has no rows.\n"


def test_without_pyarrow_it_says_how_to_get_it(
    project: PipelineProject, events: TableWriter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events.commit("0", events.file("a.parquet", n=[1]))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    ran = CommandLine(monkeypatch, capsys)("pipeline", "show", "events", "--project", str(project.root))
    assert (ran.code, "pip install 'penstock[spark]'" in ran.err) == (1, True)


def test_a_table_in_the_catalog_without_files(project: PipelineProject, events: TableWriter) -> None:
    assert read_rows(NamedTable("events", events.directory), 5).num_rows == 0
