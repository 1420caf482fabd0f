from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.model.topic_partition import TopicPartition
from penstock.spark.pipeline import serving
from penstock.spark.pipeline.errors import DefinitionError, FlowFailed, Mistake, PipelineError, SparkFailed
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runner import RunFailed, RunReport, RunScope
from penstock.spark.pipeline.runs.status_file import StatusFile, read_status
from penstock.spark.pipeline.serving import LOOK_EVERY_S, Server, Setbacks
from penstock.spark.source.offsets import SourceOffset

SINKS = {"results": "output_topic", "dead_letters": "dead_letter_topic"}


def test_setbacks_grow_and_end() -> None:
    setbacks = Setbacks(limit=2)
    assert setbacks.failed("a", 100.0) == 1.0
    assert setbacks.failed("a", 101.0) == 2.0
    assert setbacks.resting(102.9) == {"a"}
    assert setbacks.resting(103.0) == set()
    assert setbacks.exhausted == []
    setbacks.forgive()
    assert setbacks.resting(101.0) == set()
    setbacks.failed("b", 103.0)
    setbacks.failed("a", 103.0)
    assert (setbacks.exhausted, setbacks.failures) == (["a"], 3)
    setbacks.succeeded("a")
    assert (setbacks.exhausted, setbacks.failures) == ([], 1)


READ = SourceOffset("g", {"clicks": b"i" * 16}, {TopicPartition("clicks", 0): 5})


class Played:
    """Runs as they are dealt; None is one that succeeds. After the last the server is told to stop."""

    def __init__(self, project: PipelineProject, monkeypatch: pytest.MonkeyPatch, limit: int = 3) -> None:
        self.outcomes: list[PipelineError | None] = []
        self.left_out: list[frozenset[str]] = []
        self.said: list[str] = []
        self.now = 1000.0
        self.waited: list[float] = []
        """The pauses after runs."""
        self.contents: list[str] = []
        """Of transformations/a.sql in each run."""
        self.edits: dict[float, str] = {}
        """What is written to that file, by time."""
        self.project = project
        self.caught_up: list[bool] = []
        self.answered: list[bool] = []
        self.server = Server(
            cast(Any, self),
            cast(Any, self),
            StatusFile(project, "serve"),
            interval_s=5.0,
            max_failures=limit,
            say=self.said.append,
            stopping=cast(Any, self),
        )
        self._pause = self.server._pause
        monkeypatch.setattr(self.server, "_pause", self.pause)
        monkeypatch.setattr(serving, "run_once", self.run_once)
        monkeypatch.setattr(serving.time, "monotonic", lambda: self.now)
        self.has_other_sources = False
        self.is_alive = True
        self.renewed = self.restarted = 0
        self.dies_at: set[int] = set()
        self.renewals: list[bool | PipelineError] = []
        self.used: list[dict[str, str]] = []

    def run_once(self, engine: object, meter: object, watch: Any, scope: RunScope, groups: object) -> RunReport:
        assert scope.definitions is not None
        left_out = scope.left_out
        self.contents.append(scope.definitions.files.get(self.edited, b"").decode())
        self.is_alive = len(self.left_out) not in self.dies_at
        self.left_out.append(left_out)
        outcome = self.outcomes.pop(0)
        flows = {name: FlowProgress(name, FlowState.COMPLETED, rows_read=1) for name in ("events", *SINKS)}
        for sink in left_out:
            flows.pop(next(flow for flow, target in SINKS.items() if target == sink))
        failing = [name for name, _ in outcome.flows] if isinstance(outcome, FlowFailed) else []
        for name in failing:
            flows[name] = FlowProgress(name, FlowState.FAILED, error="x")
        for flow in flows.values():
            watch(flow)
        flows["events"].offsets = [READ]
        sinks = {flow: sink for flow, sink in SINKS.items() if flow in flows}
        report = RunReport(flows, 0.1, sinks, has_other_sources=self.has_other_sources)
        if outcome is not None:
            raise RunFailed(outcome, report)
        return report

    # What the server asks of its engine, its meter and its event:
    def trim_log(self) -> None:
        pass

    def poll_without_pause(self) -> None:
        pass

    def renew_settings(self) -> bool:
        found = self.renewals.pop(0) if self.renewals else False
        if isinstance(found, PipelineError):
            raise found
        return found

    def use(self, client_options: dict[str, str]) -> None:
        self.used.append(client_options)

    def renew_session(self) -> None:
        self.renewed += 1

    def restart(self) -> None:
        self.restarted += 1
        self.is_alive = True

    def close(self) -> None:
        self.is_alive = False

    def refuse(self) -> None:
        raise PipelineError("Spark did not start: no memory")

    def is_caught_up(self, offsets: list[SourceOffset]) -> bool:
        assert offsets == [READ]
        return self.caught_up.pop(0) if self.caught_up else False

    def is_answered(self) -> bool:
        return self.answered.pop(0) if self.answered else True

    def is_set(self) -> bool:
        return not self.outcomes

    @property
    def edited(self) -> Path:
        return self.project.root / "transformations" / "a.sql"

    def pause(self, seconds: float) -> None:
        self.waited.append(seconds)
        self._pause(seconds)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for due in [due for due in self.edits if due <= self.now]:
            self.edited.write_text(self.edits.pop(due))

    def serve(self, *outcomes: PipelineError | None) -> None:
        self.outcomes = list(outcomes)
        self.server.serve()


def failed(*names: str) -> FlowFailed:
    return FlowFailed([(name, "why") for name in names], is_transient=False)


def test_runs_at_the_interval(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.serve(None, None, None)
    assert played.waited == [5.0, 5.0, 5.0]
    told = read_status(project)
    assert (told["runs"], told["state"]) == (3, "waiting")


def test_no_run_without_something_new(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.caught_up = [True, True, True, False]
    played.serve(None, None)
    assert played.waited == [5.0, 5.0]
    assert played.now == 1005.0 + 3 * LOOK_EVERY_S


def test_a_changed_definition_is_something_new(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.caught_up = [True] * 100
    played.edits = {1012.0: "new"}
    played.serve(None, None)
    assert (played.contents, played.now) == (["", "new"], 1012.0)


def test_sources_that_cannot_be_looked_at_are_run(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.has_other_sources = True
    played.caught_up = [True] * 100
    played.serve(None, None, None)
    assert played.waited == [5.0, 5.0, 5.0]


def test_after_a_failure_nothing_is_idle(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.caught_up = [True] * 100
    played.serve(failed("events"), None)
    assert played.waited == [1.0, 5.0]


def test_a_sink_that_fails_is_left_out_while_it_rests_and_the_others_go_on(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch, limit=10)
    played.serve(*[failed("results") if turn < 4 else None for turn in range(9)])
    rests = [bool(left_out) for left_out in played.left_out]
    # 1, 2, 4 s are over within the 5 s of the interval; the fourth failure rests 8 s.
    assert rests == [False, False, False, False, True, False, False, False, False]
    assert set(played.waited) == {5.0}
    assert played.said[-1] != played.said[0]
    assert "flow results runs again" in played.said


def test_a_table_that_fails_holds_everything(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch, limit=10)
    played.serve(*[failed("events")] * 4, None)
    assert played.waited == [1.0, 2.0, 4.0, 8.0, 5.0]
    assert not any(played.left_out)


def test_a_password_may_be_replaced(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch, limit=0)
    gone = PipelineError("'x' needs the file y, which cannot be read: No such file or directory")
    played.renewals = [False, gone, gone, True, gone]
    played.serve(*[None] * 5)
    assert played.used == [project.client_options]
    assert [line for line in played.said if "records" not in line] == [
        f"{gone}: the former value stays in force",
        "a value that the settings refer to has changed",
        f"{gone}: the former value stays in force",
    ]


WRONG = DefinitionError([Mistake("no such column", "transformations/a.sql", 3)])


def test_without_good_definitions_wrong_ones_are_a_failure(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch)
    played.serve(WRONG, None)
    assert played.said[0] == "transformations/a.sql:3: no such column (attempt 1 of 4; again in 1 s)"
    assert "the pipeline runs again" in played.said
    with pytest.raises(DefinitionError, match="no such column"):
        Played(project, monkeypatch, limit=2).serve(*[WRONG] * 10)


def test_the_last_good_definitions_run_while_those_in_the_files_are_wrong(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch, limit=0)
    played.edits = {1003.0: "two", 1010.0: "three"}
    played.edited.write_text("one")
    played.serve(None, WRONG, None, None, None, None)
    assert played.contents == ["one", "two", "one", "one", "three", "three"]
    (refused,) = [line for line in played.said if "no such column" in line]
    assert re.fullmatch(
        r"transformations/a\.sql:3: no such column\nThe definitions of \S+ run until this is repaired\.", refused
    )
    assert "the definitions are repaired" in played.said
    assert read_status(project)["failures"] == 0


def test_the_status_says_what_is_wrong_until_it_is_repaired(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch, limit=0)
    played.edits = {1001.0: "two", 1008.0: "three"}
    told: list[Any] = []
    run_once = played.run_once

    def looked(*arguments: Any, **options: Any) -> RunReport:
        told.append(read_status(project)["broken"])
        return run_once(*arguments, **options)

    monkeypatch.setattr(serving, "run_once", looked)
    played.serve(None, WRONG, None, None, None, None)
    assert told[:2] == [None, None]
    assert told[2]["mistakes"] == [{"file": "transformations/a.sql", "line": 3, "flow": "", "what": "no such column"}]
    assert told[2]["running"]
    assert read_status(project)["broken"] is None


def test_a_repaired_file_is_taken_at_once(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    for failure in (WRONG, failed("events")):
        played = Played(project, monkeypatch, limit=10)
        played.edits = {1003.0 + 2 * LOOK_EVERY_S: "repaired"}
        played.serve(*[failure] * 3, None)
        assert played.now < 1005.0
        assert played.contents[-1] == "repaired"
        played.edited.unlink()
        project.good_definitions_path.unlink()


def test_wrong_syntax_needs_no_spark(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    Played(project, monkeypatch).serve(None)
    (project.root / "transformations" / "b.py").write_text("x = 1\nclass:\n")
    played = Played(project, monkeypatch, limit=0)
    played.serve(None, None)
    assert len(played.left_out) == 2, "those of the last process run"
    assert played.said[0].startswith("transformations/b.py:2: invalid syntax\nThe definitions of ")


def test_good_definitions_that_fail_as_well_are_a_failure(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch, limit=1)
    played.edits = {1001.0: "two"}
    other = DefinitionError([Mistake("no such catalog", "transformations/clicks.py", 7)])
    with pytest.raises(DefinitionError, match=r"a\.sql:3: no such column"):
        played.serve(None, WRONG, *[other] * 10)
    assert len(played.left_out) == 4


def test_too_many_failures_end_it(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch, limit=2)
    with pytest.raises(FlowFailed, match="flow results failed: why"):
        played.serve(*[failed("results")] * 10)
    assert read_status(project)["failures"] == 3


def test_what_is_neither_flow_nor_definition_ends_it_at_once(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch)
    with pytest.raises(PipelineError, match="Spark is not running"):
        played.serve(PipelineError("Spark is not running"), None)


def test_a_session_that_broke_is_made_anew(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.serve(SparkFailed("the session is closed", is_transient=False), None)
    assert played.renewed == 1
    assert played.waited == [1.0, 5.0]


def test_a_jvm_that_died_is_started_anew(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.dies_at = {0}
    played.serve(SparkFailed("connection refused", is_transient=True), None, None)
    assert (played.restarted, played.renewed) == (1, 0)
    assert played.waited == [1.0, 5.0, 5.0]
    assert played.said[:2] == [
        "the run failed: connection refused (attempt 1 of 4; again in 1 s)",
        "Spark has ended: restarting it",
    ]
    assert "the pipeline runs again" in played.said


def test_a_jvm_that_dies_while_nothing_runs_is_started_anew(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch)
    played.dies_at = {0}
    played.serve(None, None)
    assert played.restarted == 1


def test_a_jvm_that_dies_again_and_again_ends_it(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch, limit=2)
    played.dies_at = set(range(10))
    with pytest.raises(SparkFailed, match="the run failed: connection refused"):
        played.serve(*[SparkFailed("connection refused", is_transient=True)] * 10)
    assert (played.restarted, played.waited) == (2, [1.0, 2.0])


def test_a_jvm_that_does_not_start_again_is_a_failure_too(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch, limit=2)
    played.dies_at = {0}
    monkeypatch.setattr(played, "restart", played.refuse)
    with pytest.raises(SparkFailed, match="the run failed: Spark did not start: no memory"):
        played.serve(SparkFailed("connection refused", is_transient=True), None)
    assert played.waited == [1.0, 2.0]


def test_a_server_that_gives_no_session_is_started_anew(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(project, monkeypatch)
    monkeypatch.setattr(played, "renew_session", played.refuse)
    played.serve(SparkFailed("the session is closed", is_transient=False), None)
    assert played.restarted == 1


def test_a_changed_specification_is_told_once(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.caught_up = [True, True, True, False]
    pause_ends = 1000.0 + 5.0

    def wait(seconds: float) -> None:
        Played.wait(played, seconds)
        os.utime(project.spec_path, ns=(7, 7) if played.now < pause_ends + 2 * LOOK_EVERY_S else (8, 8))

    monkeypatch.setattr(played, "wait", wait)
    played.serve(None, None)
    told = [line for line in played.said if line.startswith("spark-pipeline.yml has changed: the old version")]
    assert len(told) == 2


def test_a_broker_that_is_away_is_waited_for(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch, limit=0)
    played.answered = [True, False, False, False, True]
    waiting: list[tuple[str, str]] = []

    def wait(seconds: float) -> None:
        told = read_status(project)
        waiting.append((told["state"], told["message"]))
        Played.wait(played, seconds)

    monkeypatch.setattr(played, "wait", wait)
    played.serve(None, None)
    assert len(played.left_out) == 2
    assert [line for line in played.said if "127.0.0.1:1" in line] == [
        "waiting for 127.0.0.1:1: no broker answers",
        "127.0.0.1:1 answers: continuing",
    ]
    silent = [one for one in waiting if one != ("waiting", "")]
    assert silent == [("waiting", "no broker answers at 127.0.0.1:1")] * 3
    assert read_status(project)["message"] == ""


def test_it_ends_when_told_also_while_it_waits(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(project, monkeypatch)
    played.answered = [False] * 10
    monkeypatch.setattr(played, "wait", lambda seconds: played.outcomes.clear())
    played.serve(None)
    assert played.left_out == []
    assert read_status(project)["runs"] == 0
