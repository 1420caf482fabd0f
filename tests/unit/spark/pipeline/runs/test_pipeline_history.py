"""The history of runs: what is in it, how it is kept, and what `penstock pipeline history` and `status` show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written_checkpoints import CheckpointWriter

from penstock.cli.pipeline.metrics import metrics_page
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.lock import ProjectLock
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.reset import plan_reset, reset
from penstock.spark.pipeline.runs.history import KEPT, FlowOutcome, PastRun, add_run, first_sentence, past_runs
from penstock.spark.pipeline.runs.status_file import StatusFile, last_runs, read_status
from support.processes.command_line import CommandLine


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVERS", raising=False)
    return CommandLine(monkeypatch, capsys)


def events(rows: int, state: FlowState = FlowState.COMPLETED, error: str = "") -> FlowProgress:
    return FlowProgress("events", state, rows_read=rows, rows_written=rows, error=error)


def stats() -> FlowProgress:
    return FlowProgress("stats", FlowState.COMPLETED, is_batch=True, rows_written=3)


def test_each_run_is_there_with_its_own_rows(project: PipelineProject) -> None:
    status = StatusFile(project, "serve")
    status.withdraw_run()
    for rows in (5, 7):
        status.begin_run()
        status.end_run({"events": events(rows), "stats": stats()}, 1.25)
    status.end("stopped")
    first, second = past_runs(project)
    assert (first.mode, first.state, first.seconds, first.error) == ("serve", "completed", 1.25, "")
    assert first.ended is not None
    assert first.started <= first.ended <= second.started
    assert first.flows == (
        FlowOutcome("events", "completed", 5, 5),
        FlowOutcome("stats", "completed", None, 3),
    )
    assert second.flows[0] == FlowOutcome("events", "completed", 7, 7), "not the total"


def test_a_failed_run_has_the_first_sentence_of_its_error(project: PipelineProject) -> None:
    status = StatusFile(project, "run")
    status.begin_run()
    status.end_run(
        {"events": events(2, FlowState.FAILED, "no such shelf")}, 2.0, "flow events failed: no such shelf\nx"
    )
    status.end("failed", "flow events failed: no such shelf\nx")
    (run,) = past_runs(project)
    assert (run.state, run.error) == ("failed", "flow events failed: no such shelf")
    assert run.flows == (FlowOutcome("events", "failed", 2, 2, "no such shelf"),)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("", ""),
        ("one\ntwo", "one"),
        (
            "clicks.py:3: `raison` cannot be resolved. Did you mean `reason`?",
            "clicks.py:3: `raison` cannot be resolved.",
        ),
        ("no broker answers at 127.0.0.1:9092: start it", "no broker answers at 127.0.0.1:9092: start it"),
    ],
)
def test_first_sentences(error: str, sentence: str) -> None:
    assert first_sentence(error) == sentence


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_run_that_ends_early_is_there_too(project: PipelineProject, state: str) -> None:
    before_spark = StatusFile(project, "run")
    before_spark.end(state, "no Java")
    under_way = StatusFile(project, "run")
    under_way.begin_run()
    under_way.take(events(4, FlowState.RUNNING))
    under_way.end(state)
    first, second = past_runs(project)
    assert (first.state, first.error, first.flows) == (state, "no Java", ())
    assert (second.state, second.flows) == (state, (FlowOutcome("events", "running", 4, 4),))


def test_serve_that_is_stopped_between_runs_adds_nothing(project: PipelineProject) -> None:
    status = StatusFile(project, "serve")
    status.withdraw_run()
    status.begin_run()
    status.withdraw_run()  # its definitions were wrong
    status.end("stopped")
    StatusFile(project, "serve").end("stopped")
    assert past_runs(project) == []


def test_a_killed_run_is_told_from_one_under_way_and_stays_in_the_history(project: PipelineProject) -> None:
    done = StatusFile(project, "run")
    done.begin_run()
    done.end_run({"stats": stats()})
    done.end("completed")
    with ProjectLock(project, "pipeline run"):
        killed = StatusFile(project, "run")
        killed.begin_run()
        killed.take(events(4, FlowState.RUNNING))
        assert [run.state for run in last_runs(project, "process 1")] == ["completed", "running"]
    told = last_runs(project, None)
    assert [run.state for run in told] == ["completed", "killed"]
    assert told[1].flows == (FlowOutcome("events", "running", 4, 4),), "not those of the run before"
    StatusFile(project, "run")
    assert past_runs(project) == told
    assert (told[1].ended, told[1].seconds) == (None, None)


def test_killed_between_the_history_and_the_status_file(project: PipelineProject) -> None:
    status = StatusFile(project, "run")
    status.begin_run()
    before = project.status_path.read_text()
    status.end_run({"events": events(1)}, 1.0)
    project.status_path.write_text(before)
    assert [run.state for run in last_runs(project, None)] == ["completed"]
    StatusFile(project, "run")
    assert [run.state for run in past_runs(project)] == ["completed"]


def test_the_newest_runs_are_kept_and_unreadable_lines_are_left_out(project: PipelineProject) -> None:
    for number in range(KEPT + 3):
        add_run(project, PastRun(f"{number:04}", None, None, "run", "completed"))
    runs = past_runs(project)
    assert [runs[0].started, runs[-1].started, len(runs)] == ["0003", "0102", KEPT]
    text = project.history_path.read_text()
    project.history_path.write_text(f'{{"torn": \n[]\n{{"flows": 1}}\n{text}')
    assert past_runs(project) == runs
    project.history_path.write_bytes(b"\xff")
    assert past_runs(project) == []


def test_what_cannot_be_read_stays(project: PipelineProject) -> None:
    run = PastRun("0001", None, None, "run", "completed")
    add_run(project, run)
    newer = json.dumps({**json.loads(project.history_path.read_text()), "started": "0000", "of_a_later_version": 1})
    with project.history_path.open("ab") as file:
        file.write(f"{newer}\n".encode() + b"torn \xff\n")
    add_run(project, PastRun("0002", None, None, "run", "completed"))
    assert [one.started for one in past_runs(project)] == ["0001", "0002"]
    lines = project.history_path.read_text().splitlines()
    assert [json.loads(lines[0])["started"], lines[1:3], len(lines)] == [
        "0001",
        [newer, "torn \N{REPLACEMENT CHARACTER}"],
        4,
    ]


def test_a_history_that_cannot_be_read_is_not_replaced(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add_run(project, PastRun("0001", None, None, "run", "completed"))
    before = project.history_path.read_bytes()
    read_text = Path.read_text

    def refuse(path: Path, *args: Any, **kwargs: Any) -> str:
        if path == project.history_path:
            raise PermissionError(13, "Permission denied")
        return read_text(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        status = StatusFile(project, "run")
        status.begin_run()
        status.end_run({"events": events(1)})
        assert past_runs(project) == []
    assert project.history_path.read_bytes() == before
    assert "the run is not added to .penstock/history.jsonl" in caplog.text
    assert read_status(project)["last_run"]["state"] == "completed"


@pytest.mark.parametrize("flow", [None, "events"])
def test_a_reset_leaves_the_killed_run(
    project: PipelineProject, checkpoint: CheckpointWriter, flow: str | None
) -> None:
    checkpoint("output", "events", [{"0": 5}])
    killed = StatusFile(project, "run")
    killed.begin_run()
    killed.take(events(4, FlowState.RUNNING))
    told = last_runs(project, None)
    reset(project, plan_reset(project, flow))
    assert last_runs(project, None) == told
    assert [(run.state, len(run.flows)) for run in told] == [("killed", 1)]
    StatusFile(project, "run")
    assert past_runs(project) == told, "once"


def test_a_reset_leaves_the_history(project: PipelineProject) -> None:
    status = StatusFile(project, "run")
    status.begin_run()
    status.end_run({"events": events(1)})
    status.end("completed")
    assert project.checkpoints is not None
    project.checkpoints.mkdir(parents=True)
    reset(project, plan_reset(project, None))
    assert read_status(project) == {}
    assert len(past_runs(project)) == 1


def test_secrets_are_not_in_the_history(project: PipelineProject, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2hunter2")
    text = project.spec_path.read_text()
    project.spec_path.write_text(
        text.replace("configuration:\n", f'configuration:\n  my.password: "${{file:{tmp_path}/secret}}"\n')
    )
    project = PipelineProject.find(project.root).resolved()
    status = StatusFile(project, "run")
    status.end("failed", "refused hunter2hunter2")
    assert "hunter2" not in project.history_path.read_text()
    assert past_runs(project)[0].error == "refused *****"


def test_the_command(cli: CommandLine, project: PipelineProject) -> None:
    shown = cli("pipeline", "history", "--project", str(project.root))
    assert (shown.code, shown.out) == (0, "Pipeline shop has not run.\n")
    flows = (FlowOutcome("events", "failed", 12, None, "no such shelf"), FlowOutcome("stats", "skipped", None, None))
    add_run(project, PastRun("2026-03-01T12:00:00.000+00:00", None, None, "serve", "killed"))
    add_run(
        project, PastRun("2026-03-01T12:05:00.000+00:00", "2026-03-01", 14.2, "run", "failed", "flow events", flows)
    )
    shown = cli("pipeline", "history", "--project", str(project.root))
    assert [line.split() for line in shown.lines] == [
        ["STARTED", "SECONDS", "BY", "STATE", "FLOW", "FLOW", "STATE", "READ", "WRITTEN"],
        ["2026-03-01T12:00:00.000+00:00", "-", "serve", "killed", "-", "-", "-", "-"],
        ["2026-03-01T12:05:00.000+00:00", "14.2", "run", "failed", "events", "failed", "12", "-"],
        ["stats", "skipped", "-", "-"],
        ["2026-03-01T12:05:00.000+00:00:", "flow", "events"],
    ]
    told = json.loads(cli("pipeline", "history", "--json", "--limit", "1", "--project", str(project.root)).out)
    assert (told["pipeline"], told["error"], len(told["runs"])) == ("shop", None, 1)
    assert told["runs"][0]["flows"][0] == {
        "flow": "events",
        "state": "failed",
        "rows_read": 12,
        "rows_written": None,
        "error": "no such shelf",
    }
    status = cli("pipeline", "status", "--json", "--timeout", "0.2", "--project", str(project.root))
    assert json.loads(status.out)["history"][-1:] == told["runs"]


def test_metrics_of_the_last_run(project: PipelineProject) -> None:
    assert "penstock_pipeline_last_run_seconds{" not in metrics_page("shop", {})
    status = StatusFile(project, "serve")
    for error in ("no such shelf", "", "no such shelf"):
        status.begin_run()
        state = FlowState.FAILED if error else FlowState.COMPLETED
        status.take(events(1, state, error))
        status.end_run({"events": events(1, state, error), "stats": stats()}, 1.5, error)
    page = metrics_page("shop", read_status(project))
    assert 'penstock_pipeline_last_run_seconds{pipeline="shop"} 1.5' in page
    assert 'penstock_pipeline_last_run_ended_seconds{pipeline="shop"} 1' in page
    assert 'penstock_pipeline_flow_failures_total{pipeline="shop",flow="events"} 2' in page
    assert 'penstock_pipeline_flow_failures_total{pipeline="shop",flow="stats"} 0' in page
