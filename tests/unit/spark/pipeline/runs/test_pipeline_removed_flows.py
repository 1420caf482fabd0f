"""Flows that are gone from the definitions, and keep versions of tables by their checkpoints."""

from __future__ import annotations

import json

import pytest

from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.reset import plan_reset, reset
from penstock.spark.pipeline.runs.status_file import StatusFile, read_status
from penstock.spark.pipeline.status import pipeline_status
from penstock.tables import Table
from support.processes.command_line import CommandLine
from support.tables.rows import EVENTS, append

CATALOG = ("spark_catalog", "default")


def table(project: PipelineProject, name: str, versions: int) -> None:
    directory = project.warehouse / name
    TableLocations(project).record({(*CATALOG, name): directory.as_uri()})
    made = Table.open_or_create(directory, EVENTS)
    for first in range(0, versions * 10, 10):
        append(made, first, first + 10, stream="spark-x")


def reader(project: PipelineProject, target: str, flow: str, version: int, *, of: str = "events") -> None:
    """The checkpoint of a flow that has read this version of a table."""
    directory = project.root / "storage" / "_checkpoints" / target / flow / "0"
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text('{"id":"3af66410-3e2f-46e8-a75f-375d4b6bdde6"}')
    offset = json.dumps({"table": "t", "path": str(project.warehouse / of), "version": version})
    (directory / "offsets" / "0").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offset}')
    (directory / "commits" / "0").write_text("v1\n{}")


def ran(project: PipelineProject, *flows: str, error: str = "", is_whole: bool = True) -> None:
    state = FlowState.FAILED if error else FlowState.COMPLETED
    status = StatusFile(project, "run")
    status.end_run({name: FlowProgress(name, state) for name in flows}, 1.0, error, is_whole=is_whole)
    status.end("completed")


def problems(project: PipelineProject) -> list[str]:
    return [one for one in pipeline_status(project, 0.2).problems if not one.startswith("the lag is unknown")]


def test_a_removed_flow_is_named_with_the_command_that_lets_go(project: PipelineProject) -> None:
    table(project, "events", 5)
    reader(project, "output", "results", 2)
    reader(project, "output", "kept", 4)
    ran(project, "events", "results", "kept")
    assert problems(project) == []
    ran(project, "events", "Kept")
    assert problems(project) == [
        "flow results is no longer in the definitions, and its checkpoint keeps the versions of table events from 2 on "
        "(the newest is 5). This lets go of them: penstock pipeline reset --flow results"
    ]
    reset(project, plan_reset(project, "results"))
    assert problems(project) == []


def test_what_the_command_deletes_besides_is_said(project: PipelineProject) -> None:
    table(project, "events", 2)
    table(project, "copies", 3)
    reader(project, "spark_catalog/default/copies", "copy", 1)
    reader(project, "output", "results", 3, of="copies")
    ran(project, "events", "results")
    (problem,) = problems(project)
    assert problem.endswith(
        "reset --flow copy. It also deletes the rows of warehouse/copies and resets the flows results"
    )


def test_a_flow_that_reads_no_table_keeps_nothing(project: PipelineProject) -> None:
    table(project, "events", 2)
    reader(project, "output", "results", 2, of="elsewhere")
    ran(project, "events")
    assert problems(project) == []


@pytest.mark.parametrize(("error", "is_whole"), [("flow events failed: x", True), ("", False)])
def test_only_a_whole_run_knows_the_flows(project: PipelineProject, error: str, is_whole: bool) -> None:
    table(project, "events", 2)
    reader(project, "output", "results", 2)
    ran(project, "events", error=error, is_whole=is_whole)
    assert problems(project) == [], "no run has completed"
    ran(project, "events", "results")
    ran(project, "events", error=error, is_whole=is_whole)
    assert problems(project) == []


def test_a_new_flow_is_defined_as_soon_as_it_runs(project: PipelineProject) -> None:
    table(project, "events", 2)
    ran(project, "Events")
    reader(project, "output", "copy", 1)
    status = StatusFile(project, "run")
    status.begin_run()
    for name in ("copy", "events"):
        status.take(FlowProgress(name, FlowState.RUNNING))
    assert problems(project) == [], "it runs"
    StatusFile(project, "run")
    assert problems(project) == [], "the run was killed"
    ran(project, "events", "copy", error="flow copy failed: x")
    assert problems(project) == []
    assert read_status(project)["defined"] == ["Events", "copy"]
    ran(project, "events")
    assert [one.partition(" is ")[0] for one in problems(project)] == ["flow copy"], "removed after all"


def test_a_reset_that_is_not_possible_is_said(project: PipelineProject) -> None:
    table(project, "events", 2)
    reader(project, "spark_catalog/default/lost", "lost", 1)
    ran(project, "events")
    (problem,) = problems(project)
    assert "reset --flow lost. It will say: flow lost cannot be reset without its table" in problem


def test_for_people_and_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], project: PipelineProject
) -> None:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVERS", raising=False)
    cli = CommandLine(monkeypatch, capsys)
    table(project, "events", 5)
    reader(project, "output", "results", 2)
    ran(project, "events")
    words = ("pipeline", "status", "--timeout", "0.2", "--project", str(project.root))
    assert "flow results is no longer in the definitions" in cli(*words).err
    assert json.loads(cli(*words, "--json").out)["removed_flows"] == [
        {
            "flow": "results",
            "keeps_versions": [{"table": "events", "from": 2, "newest": 5}],
            "released_by": "penstock pipeline reset --flow results",
            "also_resets": [],
            "also_deletes": [],
        }
    ]
