"""The administration that librdkafka does not speak: reassignments, the quorum's voters, brokers that go for good.

One request to any node that runs; it forwards what only the active controller can do. An error code is an
AssertionError with its name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from support.clients.raw import RawClient
from support.processes.cluster import ClusterProcesses, NodeProcess

TopicPartition = tuple[str, int]
METADATA_TOPIC = "__cluster_metadata"
_BUSY = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE)
PATIENCE_S = 30.0


def ask(cluster: ClusterProcesses) -> RawClient:
    node = next(node for node in cluster.running if not node.is_aside)
    return RawClient(node.port, host=node.host)


def _check(what: str, code: int, message: str | None) -> None:
    assert code == 0, f"{what}: {ErrorCode(code).name}: {message}"


def reassign(cluster: ClusterProcesses, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """Begin to move partitions to these replicas; None calls a move off."""
    by_topic: dict[str, list[ReassignablePartition]] = {}
    for (topic, partition), replicas in targets.items():
        wanted = None if replicas is None else list(replicas)
        by_topic.setdefault(topic, []).append(ReassignablePartition(partition_index=partition, replicas=wanted))
    topics = [ReassignableTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()]
    with ask(cluster) as client:
        answer = client.call(
            Api.ALTER_PARTITION_REASSIGNMENTS,
            AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=topics),
            AlterPartitionReassignmentsResponse,
            version=1,
        )
    _check("AlterPartitionReassignments", answer.error_code, answer.error_message)
    for answered in answer.responses:
        for one in answered.partitions:
            _check(f"reassignment of {answered.name}-{one.partition_index}", one.error_code, one.error_message)


def reassignments(cluster: ClusterProcesses) -> dict[TopicPartition, tuple[list[int], list[int]]]:
    """The reassignments under way: the replicas that are added and those that will go, by partition."""
    with ask(cluster) as client:
        answer = client.call(
            Api.LIST_PARTITION_REASSIGNMENTS,
            ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=None),
            ListPartitionReassignmentsResponse,
            version=0,
        )
    _check("ListPartitionReassignments", answer.error_code, answer.error_message)
    return {
        (topic.name, one.partition_index): (list(one.adding_replicas), list(one.removing_replicas))
        for topic in answer.topics
        for one in topic.partitions
    }


def quorum(cluster: ClusterProcesses) -> ResponsePartitionData:
    asked = RequestTopicData(topic_name=METADATA_TOPIC, partitions=[RequestPartitionData(partition_index=0)])
    with ask(cluster) as client:
        answer = client.call(
            Api.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=[asked]), DescribeQuorumResponse, version=2
        )
    _check("DescribeQuorum", answer.error_code, answer.error_message)
    found = answer.topics[0].partitions[0]
    _check("DescribeQuorum", found.error_code, found.error_message)
    return found


def voter_addresses(cluster: ClusterProcesses) -> dict[int, tuple[str, int]]:
    """The addresses of the quorum's voters."""
    asked = RequestTopicData(topic_name=METADATA_TOPIC, partitions=[RequestPartitionData(partition_index=0)])
    with ask(cluster) as client:
        answer = client.call(
            Api.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=[asked]), DescribeQuorumResponse, version=2
        )
    _check("DescribeQuorum", answer.error_code, answer.error_message)
    return {node.node_id: (node.listeners[0].host, node.listeners[0].port) for node in answer.nodes}


def voter_ids(cluster: ClusterProcesses) -> list[int]:
    return sorted(one.replica_id for one in quorum(cluster).current_voters)


def add_voter(cluster: ClusterProcesses, node: NodeProcess) -> None:
    """A node that follows the quorum as an observer gets a vote."""
    known = {one.replica_id: one for one in quorum(cluster).observers}
    assert node.node_id in known, f"node {node.node_id} is no observer: {sorted(known)}"
    request = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=30_000,
        voter_id=node.node_id,
        voter_directory_id=known[node.node_id].replica_directory_id,
        listeners=[Listener(name="PLAINTEXT", host=node.host, port=node.port)],
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with ask(cluster) as client:
            answer = client.call(Api.ADD_RAFT_VOTER, request, AddRaftVoterResponse, version=1)
        if answer.error_code not in _BUSY or time.monotonic() > deadline:
            return _check("AddRaftVoter", answer.error_code, answer.error_message)
        time.sleep(0.2)


def remove_voter(cluster: ClusterProcesses, node: NodeProcess) -> None:
    known = {one.replica_id: one for one in quorum(cluster).current_voters}
    request = RemoveRaftVoterRequest(
        cluster_id=None, voter_id=node.node_id, voter_directory_id=known[node.node_id].replica_directory_id
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with ask(cluster) as client:
            answer = client.call(Api.REMOVE_RAFT_VOTER, request, RemoveRaftVoterResponse, version=0)
        if answer.error_code not in _BUSY or time.monotonic() > deadline:
            return _check("RemoveRaftVoter", answer.error_code, answer.error_message)
        time.sleep(0.2)


def unregister(cluster: ClusterProcesses, node_id: int) -> None:
    with ask(cluster) as client:
        answer = client.call(
            Api.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=node_id), UnregisterBrokerResponse, version=0
        )
    _check("UnregisterBroker", answer.error_code, answer.error_message)
