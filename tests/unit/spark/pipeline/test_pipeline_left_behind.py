"""Flows that were killed in mid-batch, and then reset."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from written_checkpoints import CheckpointWriter

from penstock.spark.pipeline.checkpoints import flow_checkpoints
from penstock.spark.pipeline.left_behind import all_queries, end_queries, replaced_queries
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.sink.deciding import Decider
from penstock.spark.sink.decisions import Decisions
from penstock.spark.sink.operating import sink_queries
from penstock.testing import Broker
from penstock.wire_client.blocking.cluster import BlockingCluster
from support.clients.sink_tasks import PATIENCE_S, connected, is_held_back, write_task
from support.processes.command_line import CommandLine


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[BlockingCluster]:
    made = connected(broker)
    yield made
    made.close()


def name_queries(checkpoint: CheckpointWriter) -> None:
    for number, query_id in enumerate(("old", "new")):
        directory = checkpoint("output_topic", "results", [{"0": 1}], number=number)
        (directory / "metadata").write_text(json.dumps({"id": query_id}))


def test_queries_of_flows_into_topics(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    name_queries(checkpoint)
    checkpoint("spark_catalog/default/events", "events", [{"0": 1}])
    assert project.checkpoints is not None
    found = flow_checkpoints(project.checkpoints)
    assert sorted(all_queries(found)) == ["new", "old"]
    assert replaced_queries(found) == ["old"]
    (project.checkpoints / "output_topic" / "results" / "0" / "metadata").write_text("half")
    assert replaced_queries(found) == []


def test_what_they_have_left_is_ended_and_others_are_left_alone(broker: Broker, cluster: BlockingCluster) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    assert end_queries(options, ["old"]) == []
    write_task(broker, "undecided", 0)
    decisions = Decisions(cluster, "decided")
    decisions.decide(decisions.take_over(), 0, [write_task(broker, "decided", 0)])
    Decider(cluster, cluster, "another").commit(0, [write_task(broker, "another", 0)])
    assert is_held_back(cluster)
    assert end_queries(options, ["old", "undecided", "decided"]) == ["decided", "undecided"]
    assert not is_held_back(cluster, PATIENCE_S)
    assert [one.query_id for one in sink_queries(cluster)] == ["another"]


def test_reset(
    broker: Broker,
    cluster: BlockingCluster,
    project: PipelineProject,
    checkpoint: CheckpointWriter,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = CommandLine(monkeypatch, capsys)
    words = ("pipeline", "reset", "--project", str(project.root), "--yes")
    name_queries(checkpoint)
    write_task(broker, "new", 0)
    ran = run(*words, "--bootstrap-server", broker.bootstrap_servers)
    assert (ran.code, ran.err) == (0, "")
    assert not is_held_back(cluster, PATIENCE_S)
    name_queries(checkpoint)
    ran = run(*words)  # no broker
    assert ran.code == 0
    assert ran.out.endswith("Done.\n")
    assert ran.err.startswith("penstock: the former flows may have left transactions open: cannot connect to ")
