"""The metadata quorum: its voters and observers, and requests that add or remove a voter."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.model.addresses import Address
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

METADATA_TOPIC: Final = "__cluster_metadata"
# Every listener serves all requests, so its name does not matter.
VOTER_LISTENER: Final = "CONTROLLER"


class QuorumReplica(NamedTuple):
    node_id: int
    is_voter: bool
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None
    address: Address | None


class QuorumInfo(NamedTuple):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    replicas: tuple[QuorumReplica, ...]
    """Voters first, each sorted by id."""

    def lag(self, replica: QuorumReplica) -> int:
        end = max(one.log_end_offset for one in self.replicas)
        return end - replica.log_end_offset


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


def read_quorum_info(answer: DescribeQuorumResponse) -> QuorumInfo:
    """Raises ApiError."""
    found = read_quorum(answer)
    addresses = read_voter_addresses(answer)
    replicas = [
        QuorumReplica(
            one.replica_id,
            is_voter,
            one.log_end_offset,
            _time(one.last_fetch_timestamp),
            _time(one.last_caught_up_timestamp),
            addresses.get(one.replica_id),
        )
        for is_voter, group in ((True, found.current_voters), (False, found.observers))
        for one in sorted(group, key=lambda one: one.replica_id)
    ]
    return QuorumInfo(found.leader_id, found.leader_epoch, found.high_watermark, tuple(replicas))


def _time(timestamp_ms: int) -> int | None:
    return timestamp_ms if timestamp_ms >= 0 else None


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
