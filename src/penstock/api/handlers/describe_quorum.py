"""DescribeQuorum (key 55), versions 0-2: the quorum of the metadata log, as seen by its leader.

- The only partition is __cluster_metadata-0; anything else is UNKNOWN_TOPIC_OR_PARTITION.
- Offsets are indexes of the Raft log: a log end is one past the last entry, the high watermark one past the last
  committed entry.
- Times are the leader's: when a replica was last heard, and when it was last caught up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.core.metadata.decisions import METADATA_TOPIC
from penstock.core.metadata.requests import uuid_bytes
from penstock.core.raft.core import Replica, Status
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.clock import Clock
from penstock.wire.apis import Api
from penstock.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)


class QuorumStatus(Protocol):
    @property
    def status(self) -> Status: ...


class DescribeQuorumHandler:
    api: ClassVar = Api.DESCRIBE_QUORUM
    min_version: ClassVar = 0
    max_version: ClassVar = 2
    is_for_controller: ClassVar = True

    def __init__(self, quorum: QuorumStatus, cluster: ClusterView, clock: Clock) -> None:
        self._quorum = quorum
        self._cluster = cluster
        self._clock = clock

    def handle(self, ctx: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        asked = [(topic.topic_name, each.partition_index) for topic in request.topics for each in topic.partitions]
        if asked != [(METADATA_TOPIC, 0)]:
            return _unknown(request)
        status = self._quorum.status
        if not status.replicas:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return DescribeQuorumResponse(
            error_message=None,
            topics=[ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[self._describe(status)])],
            nodes=self._nodes(status),
        )

    def _describe(self, status: Status) -> ResponsePartitionData:
        replicas = sorted(status.replicas, key=lambda replica: replica.node)
        return ResponsePartitionData(
            error_message=None,
            leader_id=-1 if status.leader is None else status.leader,
            leader_epoch=status.term,
            high_watermark=status.commit_index + 1,
            current_voters=[self._replica(replica, status) for replica in replicas if replica.is_voter],
            observers=[self._replica(replica, status) for replica in replicas if not replica.is_voter],
        )

    def _replica(self, replica: Replica, status: Status) -> ReplicaState:
        # Raft's clock is monotonic; the leader's own entry gives its current value.
        ahead_ms = self._clock.now_ms() - max(each.heard_ms for each in status.replicas)
        broker = self._cluster.image.brokers.get(replica.node)
        return ReplicaState(
            replica_id=replica.node,
            replica_directory_id=uuid_bytes("" if broker is None else broker.directory_id),
            log_end_offset=replica.match_index + 1,
            last_fetch_timestamp=replica.heard_ms + ahead_ms,
            last_caught_up_timestamp=replica.caught_up_ms + ahead_ms,
        )

    def _nodes(self, status: Status) -> list[Node]:
        """The voters' addresses for Raft."""
        addresses: Mapping[int, tuple[str, int]] = dict(self._cluster.controllers())
        return [
            Node(node_id=voter, listeners=[Listener(name="CONTROLLER", host=host, port=port)])
            for voter in status.configuration.voters
            if voter in addresses
            for host, port in [addresses[voter]]
        ]

    def refuse(self, request: DescribeQuorumRequest, code: ErrorCode, message: str | None) -> DescribeQuorumResponse:
        return DescribeQuorumResponse(error_code=code, error_message=message)


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        error_message=None,
        topics=[
            ResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    ResponsePartitionData(
                        partition_index=each.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message="This server does not host this topic-partition.",
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
