"""Runs of a Spark that dies, without a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.spark.pipeline import runner
from penstock.spark.pipeline.errors import PipelineError, SparkFailed
from penstock.spark.pipeline.graph import PipelineGraph
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runner import RunFailed, RunReport, run_once, run_with_retries
from penstock.spark.pipeline.runs.status_file import StatusFile, read_status


class Engine:
    project = SimpleNamespace(state=Path("/nowhere"))

    def __init__(self, is_alive: bool) -> None:
        self.is_alive = is_alive
        self.restarted = 0

    def restart(self) -> None:
        self.restarted += 1
        self.is_alive = True


def test_a_spark_that_ended_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def refused(engine: object, left_out: object, definitions: object) -> Iterator[object]:
        raise ConnectionError("<_MultiThreadedRendezvous of RPC that terminated with:")
        yield

    monkeypatch.setattr(runner, "registered", refused)
    with pytest.raises(RunFailed) as failed:
        run_once(cast(Any, Engine(is_alive=False)), cast(Any, SimpleNamespace()))
    assert str(failed.value) == "the run failed: Spark has ended (killed, or out of memory)"
    assert isinstance(failed.value.error, SparkFailed)
    assert failed.value.error.is_transient


def test_a_run_is_tried_again_in_a_new_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(is_alive=True)
    outcomes: list[PipelineError | None] = [SparkFailed("broke", True), SparkFailed("ended", True), None]

    def run(*arguments: object, **options: object) -> RunReport:
        outcome = outcomes.pop(0)
        if outcome is None:
            return RunReport()
        engine.is_alive = "ended" not in str(outcome)
        raise RunFailed(outcome, RunReport())

    monkeypatch.setattr(runner, "run_once", run)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    run_with_retries(cast(Any, engine), cast(Any, None), retries=2)
    assert (engine.restarted, outcomes) == (1, [])


def test_a_run_that_ended_well_leaves_no_flow_running(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does not tell the end of every flow."""
    kept_up: list[object] = []
    upkeep = SimpleNamespace(after_run=kept_up.append)
    engine = SimpleNamespace(project=project, table_location=lambda table: None, is_alive=True, upkeep=upkeep)
    meter = SimpleNamespace(total=lambda offsets: None, know=lambda options: None)
    events = [
        "Flow spark_catalog.default.events is RUNNING.",
        "Flow spark_catalog.default.page_stats is STARTING.",
        "Flow spark_catalog.default.events has COMPLETED.",
        "Flow spark_catalog.default.page_stats is RUNNING.",
    ]
    error: list[Exception] = []

    @contextmanager
    def graph(engine: object, left_out: object, definitions: object) -> Iterator[PipelineGraph]:
        yield PipelineGraph("1")

    @contextmanager
    def nothing(engine: object, news: object) -> Iterator[None]:
        yield

    def told(*arguments: object, **options: object) -> Iterator[str]:
        yield from events
        if error:
            raise error[0]

    monkeypatch.setattr(runner, "registered", graph)
    monkeypatch.setattr(runner, "_progress_to", nothing)
    monkeypatch.setattr(runner, "_events", told)
    status = StatusFile(project, "run")
    report = run_once(cast(Any, engine), cast(Any, meter), status.take)
    watched = read_status(project)["flows"]
    status.end_run(report.flows)
    for flows in (watched, read_status(project)["flows"]):
        assert {name: flow["state"] for name, flow in flows.items()} == {
            "events": "completed",
            "page_stats": "completed",
        }
    assert flows["page_stats"]["rows_written"] is None
    assert kept_up == [project]
    error.append(ValueError("broke"))
    with pytest.raises(RunFailed) as failed:
        run_once(cast(Any, engine), cast(Any, meter))
    assert failed.value.report.flows["page_stats"].state == "running", "nobody knows"
