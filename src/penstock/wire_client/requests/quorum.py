"""The metadata quorum: its voters and observers, and requests that add or remove a voter."""

from __future__ import annotations

from typing import Final

from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from penstock.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.wire.primitives import NULL_UUID
from penstock.wire_client.requests.errors import check
from penstock.wire_client.requests.metadata import Address

METADATA_TOPIC: Final = "__cluster_metadata"
# Every listener serves all requests, so its name does not matter.
VOTER_LISTENER: Final = "CONTROLLER"


def quorum_request() -> DescribeQuorumRequest:
    partitions = [RequestPartitionData(partition_index=0)]
    return DescribeQuorumRequest(topics=[RequestTopicData(topic_name=METADATA_TOPIC, partitions=partitions)])


def read_quorum(answer: DescribeQuorumResponse) -> ResponsePartitionData:
    """Raises ApiError."""
    check(answer.error_code, answer.error_message)
    found = answer.topics[0].partitions[0]
    check(found.error_code, found.error_message)
    return found


def read_voter_addresses(answer: DescribeQuorumResponse) -> dict[int, Address]:
    """The addresses that the leader knows."""
    return {node.node_id: (node.listeners[0].host, node.listeners[0].port) for node in answer.nodes if node.listeners}


def add_voter_request(
    voter_id: int,
    address: Address,
    timeout_ms: int,
    *,
    directory_id: bytes = NULL_UUID,
    listener_name: str = VOTER_LISTENER,
) -> AddRaftVoterRequest:
    """Without a directory id, any directory of the node matches."""
    host, port = address
    return AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=timeout_ms,
        voter_id=voter_id,
        voter_directory_id=directory_id,
        listeners=[Listener(name=listener_name, host=host, port=port)],
    )


def remove_voter_request(voter_id: int, *, directory_id: bytes = NULL_UUID) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(cluster_id=None, voter_id=voter_id, voter_directory_id=directory_id)


def check_voters(answer: AddRaftVoterResponse | RemoveRaftVoterResponse) -> None:
    """Raises ApiError."""
    check(answer.error_code, answer.error_message)
