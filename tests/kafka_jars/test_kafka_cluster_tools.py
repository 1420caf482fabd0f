"""Apache Kafka's own tools on a cluster of three: quorum, voters, features, elections, reassignments, settings.

They ask whichever broker they are pointed to, so most of what they change is sent on to the controller. Needs Java and
Apache Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.cluster import ClusterProcesses, NodeProcess

pytestmark = pytest.mark.kafka_jars

TOOL_TIMEOUT_S = 120
QUORUM = "MetadataQuorumCommand"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _class_name(tool: str) -> str:
    return tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"


class KafkaTools:
    """A cluster whose nodes have a listener for controllers, and the tools pointed to it."""

    def __init__(self, jars: Path, directory: Path) -> None:
        self._jars = jars
        self.directory = directory
        self.cluster = ClusterProcesses(directory / "cluster")
        self.controllers = {node_id: free_port() for node_id in self.cluster.nodes}
        for node in self.cluster.nodes.values():
            self._listen_for_controllers(node)

    def _listen_for_controllers(self, node: NodeProcess) -> None:
        given = dict(line.split("=", 1) for line in node.properties_path.read_text().splitlines())
        controller = f"CONTROLLER://127.0.0.1:{self.controllers[node.node_id]}"
        voters = (f"{node_id}@127.0.0.1:{port}" for node_id, port in self.controllers.items())
        node.configure(
            given
            | {
                "listeners": f"PLAINTEXT://{node.address},{controller}",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "controller.quorum.voters": ",".join(voters),
            }
        )

    def run(self, tool: str, *arguments: str, node_id: int = 3, succeeds: bool = True) -> str:
        """The output of a tool; `node_id` is the broker it is told of."""
        place = ("--bootstrap-server", self.cluster.nodes[node_id].address)
        return self.java(tool, *place, *arguments, succeeds=succeeds)

    def run_on_controllers(self, tool: str, *arguments: str) -> str:
        return self.java(tool, "--bootstrap-controller", f"127.0.0.1:{self.controllers[3]}", *arguments)

    def java(self, tool: str, *arguments: str, succeeds: bool = True) -> str:
        command = ["java", "-cp", f"{self._jars}/*", _class_name(tool), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        said = done.stdout + done.stderr
        assert (done.returncode == 0) is succeeds, said
        return said

    def replication(self) -> dict[int, tuple[str, str]]:
        """Node -> (directory id, status), as the leader of the quorum tells it."""
        rows = self.run(QUORUM, "describe", "--replication").splitlines()
        start = next(at for at, row in enumerate(rows) if row.startswith("NodeId"))
        fields = [row.split() for row in rows[start + 1 :] if row.strip()]
        return {int(row[0]): (row[1], row[-1]) for row in fields}


@pytest.fixture(scope="module")
def tools(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTools]:
    made = KafkaTools(kafka_libs, tmp_path_factory.mktemp("tools"))
    with made.cluster:
        made.cluster.create_topic("t", assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        yield made


def test_the_quorum_is_described_from_both_sides(tools: KafkaTools) -> None:
    for said in (
        tools.run(QUORUM, "describe", "--status"),
        tools.run_on_controllers(QUORUM, "describe", "--status"),
    ):
        (voters,) = (line.partition(":")[2] for line in said.splitlines() if line.startswith("CurrentVoters"))
        assert {voter["id"]: voter["endpoints"] for voter in json.loads(voters)} == {
            node_id: [f"CONTROLLER://127.0.0.1:{port}"] for node_id, port in tools.controllers.items()
        }


def test_controllers_are_found_by_their_listener(tools: KafkaTools) -> None:
    said = tools.java("ClusterTool", "list-endpoints", "--bootstrap-controller", f"127.0.0.1:{tools.controllers[2]}")
    rows = [line.split() for line in said.splitlines() if line.strip().endswith("controller")]
    assert [(int(row[0]), int(row[2])) for row in rows] == sorted(tools.controllers.items())


def test_a_voter_goes_and_comes_back(tools: KafkaTools) -> None:
    node_id, directory = next((node, row[0]) for node, row in tools.replication().items() if row[1] == "Follower")
    tools.run(QUORUM, "remove-controller", "--controller-id", str(node_id), "--controller-directory-id", directory)
    assert tools.replication()[node_id] == (directory, "Observer")
    place = tools.cluster.nodes[node_id]
    tools.run(QUORUM, "--command-config", str(place.properties_path), "add-controller")
    assert tools.replication()[node_id] == (directory, "Follower")


def test_features_are_described_and_no_unknown_level_is_taken(tools: KafkaTools) -> None:
    for said in (tools.run("FeatureCommand", "describe"), tools.run_on_controllers("FeatureCommand", "describe")):
        assert "Feature: metadata.version" in said
        assert "FinalizedVersionLevel: 4.0-IV3" in said
    refused = tools.run("FeatureCommand", "upgrade", "--feature", "group.version=2", succeeds=False)
    assert "Invalid update version 2 for feature group.version." in refused


def test_leaders_are_where_they_should_be(tools: KafkaTools) -> None:
    tools.run("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    said = tools.run(
        "LeaderElectionCommand", "--election-type", "unclean", "--topic", "t", "--partition", "0", node_id=1
    )
    assert "Valid replica already elected for partitions t-0" in said


def test_a_partition_moves(tools: KafkaTools) -> None:
    plan = tools.directory / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2, 3]}]}))
    command = "reassign.ReassignPartitionsCommand"
    file = ("--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignment for t-0" in tools.run(command, *file, "--execute")

    def is_through() -> bool:
        return sorted(tools.cluster.partitions("t")[0].replicas) == [2, 3]

    tools.cluster.wait_until(is_through, "t-0 is on brokers 2 and 3")
    assert "Reassignment of partition t-0 is completed." in tools.run(command, *file, "--verify")
    assert "No partition reassignments found." in tools.run(command, "--list")


def test_only_brokers_that_are_there_are_forgotten(tools: KafkaTools) -> None:
    command = ("ClusterTool", "unregister", "--bootstrap-server", tools.cluster.nodes[3].address, "--id", "77")
    assert "Broker ID 77 is not currently registered" in tools.java(*command, succeeds=False)


def test_settings_are_changed_through_any_broker_and_a_brokers_own_through_itself(tools: KafkaTools) -> None:
    command = "kafka.admin.ConfigCommand"
    for entity, setting in (
        (("--entity-type", "topics", "--entity-name", "t"), "retention.ms=12345"),
        (("--entity-type", "brokers", "--entity-name", "2"), "log.cleaner.threads=2"),
        (("--entity-type", "brokers", "--entity-default"), "log.cleaner.threads=3"),
    ):
        tools.run(command, *entity, "--alter", "--add-config", setting)
        for node_id in tools.cluster.nodes:
            assert f"  {setting} " in tools.run(command, *entity, "--describe", node_id=node_id)
