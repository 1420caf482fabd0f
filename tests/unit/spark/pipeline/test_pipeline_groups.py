"""The consumer groups of flows, against a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from written_checkpoints import CheckpointWriter

from penstock.model.topic_partition import TopicPartition
from penstock.sdk import BlockingAdmin
from penstock.spark.pipeline.checkpoints import flow_checkpoints
from penstock.spark.pipeline.groups import FlowGroups, delete_groups, flow_group
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.pipeline.left_behind import replaced_groups
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.reset import pending_reset, plan_reset
from penstock.spark.pipeline.reset import reset as forget
from penstock.spark.source.group_progress import GROUPS_BY_FLOW, MARK, new_group
from penstock.spark.source.offsets import NO_GROUP, SourceOffset
from penstock.spark.source.options import GroupOptions
from penstock.testing import Broker
from penstock.wire_client.blocking.cluster import BlockingCluster
from support.clients.sink_tasks import connected
from support.processes.command_line import CommandLine

TABLE = "spark_catalog/default/events"
ZERO, ONE = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
TOPIC_ID = bytes(16)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running, BlockingAdmin(running.bootstrap_servers) as admin:
        admin.create_topic("clicks", 2)
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[BlockingCluster]:
    made = connected(broker)
    yield made
    made.close()


@pytest.fixture
def meter(broker: Broker) -> Iterator[LagMeter]:
    with LagMeter({"kafka.bootstrap.servers": broker.bootstrap_servers}) as made:
        yield made


def offset(positions: dict[TopicPartition, int], group: str = NO_GROUP, cluster: str = "") -> SourceOffset:
    return SourceOffset(group, {"clicks": TOPIC_ID}, positions, cluster=cluster)


def test_queries_of_a_pipeline_have_no_groups_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert new_group(GroupOptions(prefix="p")).startswith("p-")
    monkeypatch.setenv(GROUPS_BY_FLOW, "1")
    assert new_group(GroupOptions(prefix="p")) == NO_GROUP
    assert new_group(GroupOptions("mine")) == "mine"


def test_a_flow_commits_for_its_sources(project: PipelineProject, meter: LagMeter, cluster: BlockingCluster) -> None:
    groups = FlowGroups(project, meter)
    groups.report("events", [])
    groups.report("events", [offset({ZERO: 5, ONE: 2}), offset({ZERO: 3})])
    assert cluster.committed_offsets("shop-events", [ZERO, ONE]) == {ZERO: 3, ONE: 2}
    groups.report("events", [offset({ZERO: 7, ONE: 2})])
    assert cluster.committed_offsets("shop-events", [ZERO, ONE]) == {ZERO: 7, ONE: 2}
    groups.report("others", [offset({ZERO: 1}, group="its-own"), offset({ZERO: 1}, cluster="another")])
    for group in ("shop-others", "its-own"):
        assert cluster.committed_offsets(group, [ZERO]) == {}


def test_the_prefix_can_be_chosen(project: PipelineProject) -> None:
    assert flow_group(project, "events") == "shop-events"
    text = project.spec_path.read_text()
    project.spec_path.write_text(text.replace("configuration:\n", 'configuration:\n  penstock.groupIdPrefix: "ada"\n'))
    assert flow_group(PipelineProject.load(project.spec_path), "events") == "ada-events"


def test_groups_of_flows_are_deleted_and_no_others(broker: Broker, cluster: BlockingCluster) -> None:
    cluster.commit_offsets("flow-1", {ZERO: 1}, MARK)
    cluster.commit_offsets("foreign-1", {ZERO: 1}, MARK)
    cluster.commit_offsets("foreign-1", {ONE: 1}, "an application's")
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    deleted, kept = delete_groups(options, ["flow-1", "foreign-1", "flow-1", "no-such"])
    assert (deleted, kept) == (["flow-1"], {"foreign-1": "it has offsets of another consumer"})
    assert cluster.committed_offsets("flow-1", [ZERO]) == {}
    assert cluster.committed_offsets("foreign-1", [ZERO]) == {ZERO: 1}
    assert delete_groups({"kafka.bootstrap.servers": "127.0.0.1:1"}, []) == ([], {})


def test_a_reset_knows_the_groups(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    checkpoint("output_topic", "results", [{"0": 1}, {"0": 2}])
    directory = checkpoint("dead_letter_topic", "dead_letters", [{"0": 1}])
    (directory / "offsets" / "0").write_text('v1\n{"version": 1, "group": "", "topics": {}}')
    checkpoint("other_topic", "others", [])
    plan = plan_reset(project, None)
    assert set(plan.groups) == {"shop-results", "shop-dead_letters", "shop-others"}
    assert plan_reset(project, "results").groups == ("shop-results",)


def test_an_interrupted_reset_remembers_them(
    project: PipelineProject, checkpoint: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint("output_topic", "results", [{"0": 1}])
    monkeypatch.setattr("penstock.spark.pipeline.reset._carry_out", lambda project, plan: None)
    forget(project, plan_reset(project, None))
    pending = pending_reset(project)
    assert pending is not None
    assert pending.groups == ("shop-results",)
    told = json.loads(project.reset_path.read_text())
    del told["groups"]
    project.reset_path.write_text(json.dumps(told))
    earlier = pending_reset(project)
    assert earlier is not None
    assert earlier.groups == ()


def test_a_full_refresh_leaves_the_group_of_the_flow(project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    for number, group in enumerate(("shop-0a1b2c3d", "shop-results", "shop-4d5e6f70")):
        directory = checkpoint("output_topic", "results", [{"0": 1}], number=number)
        told = json.dumps({"version": 1, "group": group, "topics": {}})
        (directory / "offsets" / "0").write_text(f"v1\n{told}")
    assert project.checkpoints is not None
    assert replaced_groups(project, flow_checkpoints(project.checkpoints)) == ["shop-0a1b2c3d"]


def test_reset_deletes_them_and_says_so(
    project: PipelineProject,
    checkpoint: CheckpointWriter,
    broker: Broker,
    cluster: BlockingCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = CommandLine(monkeypatch, capsys)
    words = ("pipeline", "reset", "--project", str(project.root), "--yes")
    cluster.commit_offsets("shop-events", {ZERO: 1}, MARK)
    cluster.commit_offsets("shop-results", {ZERO: 1}, "an application's")
    checkpoint("output_topic", "events", [{"0": 1}])
    checkpoint("output_topic", "results", [{"0": 1}])
    ran = cli(*words, "--bootstrap-server", broker.bootstrap_servers)
    assert "Consumer groups deleted: shop-events\n" in ran.out
    assert ran.err == (
        "penstock: the former flows have left consumer groups: shop-results (it has offsets of another consumer)\n"
    )
    checkpoint("output_topic", "events", [{"0": 1}])
    ran = cli(*words)
    assert ran.code == 0
    assert "penstock: the former flows have left consumer groups: shop-events (cannot connect to 127.0.0.1:1" in ran.err
