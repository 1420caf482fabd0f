"""The requests of a group member (the classic protocol): join, sync, heartbeat, leave.

Must not know: how the coordinator is reached, when a member joins again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.wire_client.requests.subscription import encode_assignment, encode_subscription

CONSUMER: Final = "consumer"
"""The protocol type of members that share partitions."""
ASSIGNOR: Final = "range"


class Timeouts(NamedTuple):
    session_ms: int
    rebalance_ms: int


def join_request(group: str, member_id: str, topics: Sequence[str], timeouts: Timeouts) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=timeouts.session_ms,
        rebalance_timeout_ms=timeouts.rebalance_ms,
        member_id=member_id,
        protocol_type=CONSUMER,
        protocols=[JoinGroupRequestProtocol(name=ASSIGNOR, metadata=encode_subscription(topics))],
    )


def sync_request(
    group: str, joined: JoinGroupResponse, assignments: Mapping[str, Sequence[TopicPartition]]
) -> SyncGroupRequest:
    """`assignments`: the partitions of each member, from the leader of the group; from others nothing."""
    return SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type=CONSUMER,
        protocol_name=joined.protocol_name or ASSIGNOR,
        assignments=[
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
            for member, partitions in assignments.items()
        ],
    )


def heartbeat_request(group: str, generation: int, member_id: str) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)


def leave_request(group: str, member_id: str) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id=group, member_id=member_id, members=[MemberIdentity(member_id=member_id)])
