from __future__ import annotations

from pathlib import Path

import pytest
from written_checkpoints import CheckpointWriter

from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.reset import plan_reset, reset
from penstock.spark.pipeline.status import StatusFile, read_status

TABLE = "spark_catalog/default/events"
OTHER = "spark_catalog/default/other"


@pytest.fixture
def ran(project: PipelineProject, checkpoint: CheckpointWriter) -> PipelineProject:
    """events <- topic; results <- events; other <- topic; dead_letters <- topic."""
    events = project.table_directory("events")
    for table in (events, project.table_directory("other"), project.table_directory("page_stats")):
        (table / "_spark_metadata").mkdir(parents=True)
        (table / "part-0.parquet").touch()
    project.metastore.mkdir(parents=True)
    checkpoint(TABLE, "events", [{"0": 5}])
    checkpoint(TABLE, "late_events", [{"0": 5}])
    checkpoint("output_topic", "results", [], reads=events)
    checkpoint(OTHER, "other", [{"0": 5}])
    checkpoint("dead_letter_topic", "dead_letters", [{"0": 5}])
    status = StatusFile(project, "run")
    status.end_run(
        {
            name: FlowProgress(name, FlowState.COMPLETED, rows_read=5, rows_written=5)
            for name in ("events", "results", "other", "dead_letters")
        }
    )
    return project


def test_all_of_it(ran: PipelineProject) -> None:
    plan = plan_reset(ran, None)
    assert set(plan.flows) == {"events", "late_events", "results", "other", "dead_letters"}
    assert plan.sinks == ("dead_letter_topic", "output_topic")
    reset(ran, plan)
    assert not ran.warehouse.exists()
    assert not ran.metastore.exists()
    assert ran.checkpoints is not None
    assert not ran.checkpoints.exists()
    assert read_status(ran) == {}
    assert plan_reset(ran, None).directories == ()


def test_a_table_takes_its_other_flows_and_its_readers_along(ran: PipelineProject) -> None:
    plan = plan_reset(ran, "late_events")
    assert set(plan.flows) == {"late_events", "events", "results"}
    assert plan.sinks == ("output_topic",)
    reset(ran, plan)
    assert ran.checkpoints is not None
    left = {path.name for path in ran.checkpoints.glob("**/metadata") for path in [path.parent.parent]}
    assert left == {"other", "dead_letters"}
    assert list(ran.table_directory("events").iterdir()) == []
    assert (ran.table_directory("other") / "part-0.parquet").exists()
    assert ran.metastore.exists()
    assert set(read_status(ran)["flows"]) == {"other", "dead_letters"}


def test_a_sink_alone(ran: PipelineProject) -> None:
    plan = plan_reset(ran, "dead_letters")
    assert plan.flows == ("dead_letters",)
    reset(ran, plan)
    assert (ran.table_directory("events") / "part-0.parquet").exists()


def test_what_cannot_be_reset(ran: PipelineProject, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="--flow nope: no flow of that name has a checkpoint"):
        plan_reset(ran, "nope")
    spec = ran.spec_path.read_text().replace("storage: storage", "storage: s3a://bucket/x")
    ran.spec_path.write_text(spec)
    with pytest.raises(PipelineError, match="not on this machine"):
        plan_reset(PipelineProject.load(ran.spec_path), None)
