from __future__ import annotations

import json
import os

from written_checkpoints import CheckpointWriter

from penstock.sdk import BlockingProducer
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.lock import ProjectLock
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runs.status_file import StatusFile, read_status
from penstock.spark.pipeline.status import pipeline_status
from penstock.testing import Broker

TABLE = "spark_catalog/default/events"


def events(rows: int, state: FlowState = FlowState.COMPLETED) -> FlowProgress:
    return FlowProgress("events", state, rows_read=rows, rows_written=rows - 1)


def test_totals_count_over_runs(project: PipelineProject) -> None:
    first = StatusFile(project, "run")
    first.take(events(3, FlowState.RUNNING))
    first.end_run({"events": events(5)})
    first.end("completed")
    second = StatusFile(project, "serve")
    for rows in (7, 2):
        second.take(events(1, FlowState.RUNNING))
        second.end_run({"events": events(rows)})
    told = read_status(project)
    assert (told["mode"], told["pid"], told["runs"], told["state"]) == ("serve", os.getpid(), 2, "starting")
    flow = told["flows"]["events"]
    assert (flow["rows_read"], flow["rows_read_total"], flow["rows_written_total"]) == (2, 14, 11)


def test_a_view_is_not_added_up(project: PipelineProject) -> None:
    status = StatusFile(project, "run")
    for _ in range(2):
        status.end_run({"stats": FlowProgress("stats", FlowState.COMPLETED, is_batch=True, rows_written=3)})
    flow = read_status(project)["flows"]["stats"]
    assert (flow["rows_written"], flow["rows_written_total"]) == (3, None)


def test_a_status_nobody_can_read_is_none(project: PipelineProject) -> None:
    project.state.mkdir()
    for text in ("", "[]", '{"version": 99}', "{"):
        project.status_path.write_text(text)
        assert read_status(project) == {}


def test_before_the_first_run(project: PipelineProject) -> None:
    found = pipeline_status(project, 0.2)
    assert (found.state, found.holder, found.flows, found.problems) == ("never run", None, (), ())


def test_lag_is_asked_of_the_broker(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    checkpoint(TABLE, "events", [{"0": 5, "7": 1}])
    StatusFile(project, "run").end_run({"events": events(5)})
    with Broker() as broker:
        with BlockingProducer(broker.bootstrap_servers) as producer:
            for _ in range(9):
                producer.submit("clicks", "x", partition=0)
        found = pipeline_status(project.with_servers(broker.bootstrap_servers), 10)
    (flow,) = found.flows
    assert [(one.partition, one.position, one.end) for one in flow.partitions] == [(0, 5, 9), (7, 1, None)]
    assert (flow.lag, flow.groups, flow.target) == (4, ("shop-events",), "events")
    assert found.problems == ()


def test_a_topic_created_anew_is_a_problem(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    checkpoint(TABLE, "events", [{"0": 5}], topic_id="B" * 21 + "A")
    with Broker() as broker:
        with BlockingProducer(broker.bootstrap_servers) as producer:
            for _ in range(9):
                producer.submit("clicks", "x", partition=0)
        found = pipeline_status(project.with_servers(broker.bootstrap_servers), 10)
    (problem,) = found.problems
    assert problem.startswith("flow events: topic clicks was deleted and created again since it was read. ")
    assert problem.endswith("to read the topic from the start: penstock pipeline reset --flow events")
    assert (found.flows[0].lag, found.flows[0].partitions[0].end) == (None, 9)


def test_without_a_broker_the_offsets_are_still_there(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    checkpoint(TABLE, "events", [{"0": 5}])
    checkpoint("output_topic", "results", [{"0": 4}])
    found = pipeline_status(project, 0.2)
    assert [(flow.name, flow.partitions[0].position, flow.lag) for flow in found.flows] == [
        ("events", 5, None),
        ("results", 4, None),
    ]
    assert len(found.problems) == 1
    assert found.problems[0].startswith("the lag is unknown: ")


def test_a_run_that_was_killed_is_told_from_one_under_way(project: PipelineProject) -> None:
    with ProjectLock(project, "pipeline serve"):
        StatusFile(project, "serve").change(state="running")
        assert pipeline_status(project, 0.2).state == "running"
    assert pipeline_status(project, 0.2).state == "killed"
    assert json.loads(project.status_path.read_text())["state"] == "running"
