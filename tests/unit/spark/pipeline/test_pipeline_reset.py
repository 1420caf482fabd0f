"""The directories here are where Spark's catalog puts them: in lower case, under the warehouse, or wherever it says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from written_checkpoints import CheckpointWriter

from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.reset import FullRefresh, finish_reset, pending_reset, plan_reset, reset
from penstock.spark.pipeline.runs.status_file import StatusFile, read_status

CATALOG = "spark_catalog/default"


def table(directory: Path) -> Path:
    (directory / "_spark_metadata").mkdir(parents=True)
    (directory / "_spark_metadata" / "0").touch()
    (directory / "part-0.parquet").touch()
    return directory


def recorded(project: PipelineProject, **places: Path) -> None:
    """As a run does, of what the catalog says."""
    TableLocations(project).record({("spark_catalog", "default", name): f"file:{at}" for name, at in places.items()})


@pytest.fixture
def ran(project: PipelineProject, checkpoint: CheckpointWriter) -> PipelineProject:
    """Events <- topic; results <- Events; other <- topic; dead_letters <- topic."""
    warehouse = project.root / "warehouse"
    events = table(warehouse / "events")
    other = table(warehouse / "other")
    table(warehouse / "page_stats")
    (project.root / ".penstock" / "metastore").mkdir(parents=True)
    checkpoint(f"{CATALOG}/Events", "Events", [{"0": 5}])
    checkpoint(f"{CATALOG}/events", "late_events", [{"0": 5}])
    checkpoint("output_topic", "results", [], reads=events)
    checkpoint(f"{CATALOG}/other", "other", [{"0": 5}])
    checkpoint("dead_letter_topic", "dead_letters", [{"0": 5}])
    recorded(project, Events=events, other=other)
    status = StatusFile(project, "run")
    status.end_run(
        {
            name: FlowProgress(name, FlowState.COMPLETED, rows_read=5, rows_written=5)
            for name in ("Events", "results", "other", "dead_letters")
        }
    )
    return project


def flows_left(project: PipelineProject) -> set[str]:
    return {path.parent.parent.name for path in (project.root / "storage" / "_checkpoints").glob("**/metadata")}


def test_all_of_it(ran: PipelineProject) -> None:
    plan = plan_reset(ran, None)
    assert set(plan.flows) == {"Events", "late_events", "results", "other", "dead_letters"}
    assert plan.sinks == ("dead_letter_topic", "output_topic")
    reset(ran, plan)
    assert not (ran.root / "warehouse").exists()
    assert not (ran.root / ".penstock" / "metastore").exists()
    assert not (ran.root / "storage" / "_checkpoints").exists()
    assert read_status(ran) == {}
    assert TableLocations(ran).tables() == []
    assert plan_reset(ran, None).directories == ()
    assert not ran.reset_path.exists()


def test_a_table_takes_its_other_flows_and_its_readers_along_however_its_name_is_written(ran: PipelineProject) -> None:
    for flow in ("late_events", "Events"):
        plan = plan_reset(ran, flow)
        assert set(plan.flows) == {"late_events", "Events", "results"}
    assert plan.sinks == ("output_topic",)
    reset(ran, plan)
    assert flows_left(ran) == {"other", "dead_letters"}
    assert list((ran.root / "warehouse" / "events").iterdir()) == [], "its log would have batches skipped"
    assert (ran.root / "warehouse" / "other" / "part-0.parquet").exists()
    assert (ran.root / ".penstock" / "metastore").exists()
    assert set(read_status(ran)["flows"]) == {"other", "dead_letters"}


def test_a_sink_alone(ran: PipelineProject) -> None:
    plan = plan_reset(ran, "dead_letters")
    assert plan.flows == ("dead_letters",)
    reset(ran, plan)
    assert (ran.root / "warehouse" / "events" / "part-0.parquet").exists()


def test_a_table_elsewhere_goes_with_its_checkpoint(
    ran: PipelineProject, checkpoint: CheckpointWriter, tmp_path: Path
) -> None:
    """spark.sql.warehouse.dir, or the database has a LOCATION."""
    far = table(tmp_path / "far away" / "sales")
    checkpoint(f"{CATALOG}/sales", "sales", [{"0": 5}])
    checkpoint("output_topic", "reader", [], reads=far)
    recorded(ran, sales=far)
    plan = plan_reset(ran, "sales")
    assert set(plan.flows) == {"sales", "reader"}
    reset(ran, plan)
    assert list(far.iterdir()) == []
    checkpoint(f"{CATALOG}/sales", "sales", [{"0": 5}])
    reset(ran, plan_reset(ran, None))
    assert not far.exists()


def test_without_its_table_no_checkpoint_goes(
    ran: PipelineProject, checkpoint: CheckpointWriter, tmp_path: Path
) -> None:
    checkpoint(f"{CATALOG}/unrecorded", "unrecorded", [{"0": 5}])
    for flow in ("unrecorded", None):
        with pytest.raises(PipelineError, match=r"flow unrecorded cannot be .* was not recorded: `penstock pipeline r"):
            plan_reset(ran, flow)
    recorded(ran, unrecorded=tmp_path / "gone")
    with pytest.raises(PipelineError, match=r"its table spark_catalog\.default\.unrecorded, .* not in .*gone, where"):
        plan_reset(ran, "unrecorded")
    TableLocations(ran).record({("spark_catalog", "default", "unrecorded"): "s3a://bucket/unrecorded"})
    for flow in ("unrecorded", None):
        with pytest.raises(PipelineError, match="its files are not on this machine"):
            plan_reset(ran, flow)
    assert "unrecorded" in flows_left(ran)


def test_a_table_in_the_projects_own_warehouse_need_not_be_recorded_when_all_goes(
    ran: PipelineProject, checkpoint: CheckpointWriter
) -> None:
    checkpoint("spark_catalog/shop/New", "New", [{"0": 5}])
    table(ran.root / "warehouse" / "shop.db" / "new")
    with pytest.raises(PipelineError, match="was not recorded"):
        plan_reset(ran, "New")
    reset(ran, plan_reset(ran, None))
    assert flows_left(ran) == set()


def test_a_copy_deletes_nothing_of_the_first(ran: PipelineProject, tmp_path: Path) -> None:
    far = table(tmp_path / "far" / "sales")
    recorded(ran, sales=far)
    shutil.copytree(ran.root, tmp_path / "copy")
    copy = PipelineProject.find(tmp_path / "copy")
    with pytest.raises(PipelineError, match="has run elsewhere before"):
        plan_reset(copy, "Events")
    reset(copy, plan_reset(copy, None))
    assert not (copy.root / "warehouse").exists()
    assert (far / "part-0.parquet").exists()
    assert (ran.root / "warehouse" / "events" / "part-0.parquet").exists()


def test_what_cannot_be_reset(ran: PipelineProject) -> None:
    with pytest.raises(PipelineError, match="--flow nope: no flow of that name has a checkpoint"):
        plan_reset(ran, "nope")
    spec = ran.spec_path.read_text().replace("storage: storage", "storage: s3a://bucket/x")
    ran.spec_path.write_text(spec)
    with pytest.raises(PipelineError, match="not on this machine"):
        plan_reset(PipelineProject.load(ran.spec_path), None)


# -- crashes ----------------------------------------------------------------------------


class Killed(BaseException):
    pass


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The process ends instead of its `step`th call that changes a disk. The calls that were made are in the list."""
    calls: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if len(calls) == step:
                raise Killed
            calls.append(name)
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for name in ("unlink", "rmdir", "mkdir", "fsync", "replace", "rename"):
            patched.setattr(os, name, counted(name, getattr(os, name)))
        patched.setattr(shutil, "rmtree", slowly_removed)
        yield calls


def slowly_removed(directory: Path) -> None:
    """As rmtree, by calls that a test can count; the order is none that anybody may rely on."""
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            slowly_removed(path)
        else:
            os.unlink(path)
    os.rmdir(directory)


@pytest.mark.parametrize("flow", ["Events", None])
def test_killed_anywhere_it_is_either_not_begun_or_finished_by_the_next(
    ran: PipelineProject, flow: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(ran.root, saved)
    before = files_of(ran.root)
    begun, step, is_over = 0, 0, False
    while not is_over:
        with killed_at(step, monkeypatch):
            try:
                reset(ran, plan_reset(ran, flow))
            except Killed:
                pass
            else:
                is_over = True
        if pending_reset(ran) is None and not is_over:
            assert before <= files_of(ran.root), f"killed at step {step}: nobody knows that it was begun"
        else:
            begun += 1
            # The next one may be killed as well.
            with suppress(Killed), killed_at(step // 2, monkeypatch):
                finish_reset(ran)
            finish_reset(ran)
            assert_done(ran, flow)
        shutil.rmtree(ran.root)
        shutil.copytree(saved, ran.root)
        step += 1
    assert begun > 10


def assert_done(project: PipelineProject, flow: str | None) -> None:
    assert pending_reset(project) is None
    if flow is None:
        assert flows_left(project) == set()
        assert not (project.root / "warehouse").exists()
        assert not (project.root / ".penstock" / "metastore").exists()
        assert read_status(project) == {}
    else:
        assert flows_left(project) == {"other", "dead_letters"}
        assert list((project.root / "warehouse" / "events").iterdir()) == []
        assert set(read_status(project)["flows"]) == {"other", "dead_letters"}


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def interrupted(project: PipelineProject, flow: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    with killed_at(7, monkeypatch), pytest.raises(Killed):
        reset(project, plan_reset(project, flow))
    assert pending_reset(project) is not None


def test_what_was_begun_elsewhere_is_not_finished_here(
    ran: PipelineProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded(ran, far=table(tmp_path / "far"))
    interrupted(ran, None, monkeypatch)
    shutil.copytree(ran.root, tmp_path / "copy")
    copy = PipelineProject.find(tmp_path / "copy")
    with pytest.raises(PipelineError, match=rf"begun in {ran.root} and not finished, and {tmp_path}/far belongs"):
        finish_reset(copy)
    finish_reset(ran)
    assert not (tmp_path / "far").exists()


def test_what_cannot_be_deleted_is_said_and_done_later(ran: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(directory: Path) -> None:
        raise PermissionError(13, "Permission denied", str(directory))

    plan = plan_reset(ran, "Events")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refused)
        with pytest.raises(PipelineError, match=r"not finished: .*: Permission denied\."):
            reset(ran, plan)
    finish_reset(ran)
    assert_done(ran, "Events")


def test_a_plan_that_cannot_be_read_is_said(ran: PipelineProject) -> None:
    for text in ("", "[]", '{"version": 9}', json.dumps({"version": 1})):
        ran.reset_path.write_text(text)
        with pytest.raises(PipelineError, match=r"\.penstock/reset\.json says that a reset was not finished, and can"):
            finish_reset(ran)


def test_a_full_refresh_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    """Between Spark's new checkpoints and its last TRUNCATE a kill would leave rows to come twice."""
    assert FullRefresh(tmp_path).begin(["odd"], False, bool) == (("odd",), False)
    again = FullRefresh(tmp_path)
    assert again.begin(["numbers"], False, bool) == (("numbers", "odd"), False)
    again.end()
    assert FullRefresh(tmp_path).begin([], False, bool) == ((), False)
    assert FullRefresh(tmp_path).begin([], True, bool) == ((), True)
    assert FullRefresh(tmp_path).begin([], False, bool) == ((), True)


def test_a_full_refresh_of_what_is_not_there_is_forgotten(tmp_path: Path) -> None:
    FullRefresh(tmp_path).begin(["odd"], False, bool)
    mistaken = FullRefresh(tmp_path)
    assert mistaken.begin(["od"], False, bool) == (("od", "odd"), False)
    mistaken.withdraw()
    assert FullRefresh(tmp_path).begin([], False, bool) == (("odd",), False)
    assert FullRefresh(tmp_path).begin([], False, lambda table: table != "odd") == ((), False)
    FullRefresh(tmp_path).withdraw()  # a mistake in another file
    assert FullRefresh(tmp_path).begin([], False, bool) == (("odd",), False)
    first = FullRefresh(tmp_path / "other")
    first.begin(["od"], False, bool)
    first.withdraw()
    assert FullRefresh(tmp_path / "other").begin([], False, bool) == ((), False)
