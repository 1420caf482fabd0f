"""Requests and replies of a shard: values without versions, bytes or connections.

An operation is `shard.<op>(request, token, now_ms) -> Outcome`. The token identifies the
caller's pending request. Each token is answered exactly once, perhaps by a later operation
or tick (a parked join or sync).
Durability order: `replies`, and every later reply of the shard, may leave only after
`records` are committed. Without records, they may leave once all earlier appends are committed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from penstock.core.shard.exchange import Producer
from penstock.model.errors import ErrorCode

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""(name, metadata) in the member's order of preference."""


class JoinRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    new_member_id: str
    """Used if the member has no id yet. Randomness is an argument."""
    reason: str = ""
    requires_known_member_id: bool = True
    can_skip_assignment: bool = True


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


class SyncReply(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    may_wait: bool = False
    """The reply may be delayed, so that the member learns of a rebalance as soon as it begins."""


class HeartbeatReply(NamedTuple):
    error: ErrorCode


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None
    reason: str = ""


class LeaveRequest(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeaveReply(NamedTuple):
    errors: tuple[ErrorCode, ...]
    """One per member of the request, in its order."""
    error: ErrorCode = ErrorCode.NONE


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """For a KIP-848 member: its member epoch. Below 0 for consumers that are not members."""
    offsets: tuple[OffsetToCommit, ...]
    retention_time_ms: int = -1
    knows_group_not_found: bool = True
    """The version knows GROUP_ID_NOT_FOUND; older versions get ILLEGAL_GENERATION."""


class TransactionalCommitRequest(NamedTuple):
    """`commit`: the offsets and group metadata of the consumer, committed by a producer in its transaction.

    Requests before version 3 have no group metadata.
    """

    commit: CommitRequest
    producer: Producer


class EndTransactionReply(NamedTuple):
    """The marker is written and committed."""


class CommitReply(NamedTuple):
    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()
    """One per offset of the request, in its order, unless `error` applies to all."""


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    topic_id: bytes = b""
    """Id of the topic at the time of the commit; empty if it was not stored."""

    def is_of(self, topic_id: bytes) -> bool:
        """False if the offset belongs to an earlier topic of the same name."""
        return not topic_id or not self.topic_id or topic_id == self.topic_id


class Unstable(Enum):
    """An open transaction has committed another offset for this partition, and the reader waits for its end."""

    OFFSET = "unstable"


class FetchOffsetsRequest(NamedTuple):
    group_id: str
    topics: dict[str, tuple[int, ...]] | None
    """None requests all."""
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


class FetchOffsetsReply(NamedTuple):
    error: ErrorCode
    topics: dict[str, dict[int, Committed | Unstable | None]]
    """None: nothing was committed."""


class DeleteOffsetsRequest(NamedTuple):
    group_id: str
    partitions: tuple[tuple[str, int], ...]


class DeleteOffsetsReply(NamedTuple):
    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


class DeleteGroupReply(NamedTuple):
    error: ErrorCode


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str


class ListGroupsReply(NamedTuple):
    groups: tuple[ListedGroup, ...]


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribeGroupReply(NamedTuple):
    error: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


Reply: TypeAlias = object
"""Any of the replies above; the sender of the request knows which one."""
