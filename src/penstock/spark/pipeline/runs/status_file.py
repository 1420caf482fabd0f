"""The status file of a project: what runs now, and what the last run has done in each flow.

It is replaced atomically, so a reader gets a consistent version. When a run ends, it goes to the history as well. A
process that is killed leaves its run open in the file: readers, and the next process, count that run as killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runs.history import FlowOutcome, PastRun, add_run, first_sentence, past_runs
from penstock.spark.state_files import replace_text

VERSION = 1
UNDER_WAY = ("starting", "running", "waiting")


class StatusFile:
    """The status file of the current process. `*_total` count since the project's last reset.

    The caller holds the project's lock.
    """

    def __init__(self, project: PipelineProject, mode: str) -> None:
        self._project = project
        before = read_status(project)
        killed = open_run(before, "killed")
        if killed is not None:
            add_run(project, killed)
        self._state: dict[str, Any] = {
            "version": VERSION,
            "pipeline": project.name,
            "mode": mode,
            "pid": os.getpid(),
            "state": "starting",
            "started": _now(),
            "ended": None,
            "runs": 0,
            "failures": 0,
            "message": "",
            "broken": None,
            "run_started": _now("milliseconds"),
            "last_run": before.get("last_run"),
            "defined": before.get("defined"),
            "flows": dict(before.get("flows", {})),
        }
        self._totals = {name: dict(flow) for name, flow in self._state["flows"].items()}
        self.write()

    def change(self, **fields: Any) -> None:
        self._state.update(fields)
        self.write()

    def begin_run(self, **fields: Any) -> None:
        self.change(state="running", run_started=_now("milliseconds"), **fields)

    def withdraw_run(self) -> None:
        """It has not begun with anything: its definitions were wrong, and others run in their place."""
        self.change(run_started=None)

    def take(self, flow: FlowProgress) -> None:
        """Takes the progress of a flow in the current run."""
        before = self._totals.get(flow.name, {})
        self._state["flows"][flow.name] = {
            "state": str(flow.state),
            "rows_read": None if flow.is_batch else flow.rows_read,
            "rows_written": flow.rows_written,
            "rows_read_total": _sum(before.get("rows_read_total"), None if flow.is_batch else flow.rows_read),
            "rows_written_total": _sum(before.get("rows_written_total"), None if flow.is_batch else flow.rows_written),
            "failures_total": int(before.get("failures_total", 0)) + (flow.state is FlowState.FAILED),
            "violations": dict(flow.violations),
            "violations_total": _added(before.get("violations_total", {}), {} if flow.is_batch else flow.violations),
            "error": flow.cause,
            "at": _now("milliseconds"),
        }
        self._note_defined(flow.name)
        self.write()

    def end_run(
        self, flows: Mapping[str, FlowProgress], seconds: float = 0.0, error: str = "", *, is_whole: bool = True
    ) -> None:
        """Adds the run to the totals and to the history. `is_whole`: no flow was left out."""
        for flow in flows.values():
            self.take(flow)
        if is_whole and not error:
            self._state["defined"] = sorted(flows)
        self._state["runs"] += 1
        self._totals = {name: dict(flow) for name, flow in self._state["flows"].items()}
        self._record("failed" if error else "completed", error, seconds)
        self.write()

    def end(self, state: str, message: str = "") -> None:
        """Ends the process. A run that is open ends as well; so does a process that fails before its first run."""
        if self._state["run_started"] is not None and state in ("failed", "interrupted"):
            self._record(state, message)
        self.change(state=state, message=message, ended=_now(), run_started=None)

    def write(self) -> None:
        told = self._project.secrets.hide_all(self._state)
        replace_text(self._project.status_path, json.dumps(told, indent=2) + "\n")

    def _note_defined(self, flow: str) -> None:
        """A flow that runs is defined, even if it is new and no whole run has completed since."""
        defined = self._state["defined"]
        if isinstance(defined, list) and flow.lower() not in {str(name).lower() for name in defined}:
            self._state["defined"] = sorted([*defined, flow])

    def _record(self, state: str, error: str, seconds: float | None = None) -> None:
        run = open_run(self._state, state)
        if run is None:  # no run has begun since the last one: Spark did not start
            return
        now = datetime.now(UTC)
        if seconds is None:
            seconds = (now - datetime.fromisoformat(run.started)).total_seconds()
        ended = now.isoformat(timespec="milliseconds")
        done = PastRun(run.started, ended, round(seconds, 3), run.mode, state, first_sentence(error), run.flows)
        add_run(self._project, done)
        self._state["run_started"] = None
        self._state["last_run"] = {"ended": ended, "seconds": done.seconds, "state": state}


def read_status(project: PipelineProject) -> dict[str, Any]:
    """The last status; empty if there was no run, or one of another version."""
    try:
        given = json.loads(project.status_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return given if isinstance(given, dict) and given.get("version") == VERSION else {}


def open_run(told: Mapping[str, Any], state: str) -> PastRun | None:
    """The run without an end in a status file, as `state`; None if there is none."""
    started = told.get("run_started")
    if started is None or told.get("state") not in UNDER_WAY:
        return None
    return PastRun(str(started), None, None, str(told.get("mode", "")), state, "", tuple(_touched_since(told, started)))


def last_runs(project: PipelineProject, holder: str | None) -> list[PastRun]:
    """The history, and the run that has not ended, oldest first. `holder`: who holds the project's lock now."""
    runs = past_runs(project)
    unfinished = open_run(read_status(project), "killed" if holder is None else "running")
    if unfinished is not None and all(one.started != unfinished.started for one in runs):
        runs.append(unfinished)
    return runs


def _touched_since(told: Mapping[str, Any], started: str) -> Iterator[FlowOutcome]:
    """The flows that have moved in this run. Others are there with what an earlier run did."""
    for name, flow in told.get("flows", {}).items():
        if str(flow.get("at", "")) >= started:
            yield FlowOutcome(
                name,
                str(flow.get("state", "")),
                flow.get("rows_read"),
                flow.get("rows_written"),
                first_sentence(str(flow.get("error", ""))),
            )


def _sum(before: int | None, now: int | None) -> int | None:
    return before if now is None else (before or 0) + now


def _added(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: before.get(name, 0) + now.get(name, 0) for name in {**before, **now}}


def _now(precision: str = "seconds") -> str:
    return datetime.now(UTC).isoformat(timespec=precision)
