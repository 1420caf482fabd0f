"""What a shard is asked and what it answers: values without versions, bytes or connections.

An operation is `shard.<op>(request, token, now_ms) -> Outcome`. The token is the caller's
name for whoever waits; each token is answered exactly once, perhaps by a later operation
or tick (a parked join or sync).

Durability order: `replies` may leave only when `records` are committed, and so may every
later reply of the shard. Without records they leave as soon as what was appended before is.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from penstock.core.group.records import CoordinatorRecord
from penstock.model.errors import ErrorCode

Token: TypeAlias = int
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""(name, metadata) in the member's order of preference."""


class Outcome:
    """Intentions: what to append, whom to answer once that is committed, what to log."""

    __slots__ = ("idle_notices", "is_continued", "notices", "records", "reload_if_lost", "replies")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.replies: list[tuple[Token, Reply]] = []
        self.notices: list[str] = []
        self.idle_notices: list[str] = []
        """Of groups that have nothing to read."""
        self.reload_if_lost = False
        """Soft state moved together with the records: if they cannot be appended, load the shard anew."""
        self.is_continued = False
        """More is to be done as soon as the records are replayed, before anybody asks again: tick then."""

    def reply(self, token: Token, reply: Reply) -> None:
        self.replies.append((token, reply))


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
    """Used when the member has none yet: chance is an argument."""
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
    """The answer may be held back, so that the member hears of a rebalance when it begins."""


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
    """One a member of the request, in its order."""
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
    """Or the member epoch of a KIP-848 member; below 0 for those who are no members."""
    offsets: tuple[OffsetToCommit, ...]
    retention_time_ms: int = -1
    knows_group_not_found: bool = True
    """The version has GROUP_ID_NOT_FOUND; older ones are told ILLEGAL_GENERATION."""


class CommitReply(NamedTuple):
    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()
    """One an offset of the request, in its order, unless `error` holds for all."""


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    topic_id: bytes = b""
    """Of the topic it was committed for; empty where that was not stored."""

    def is_of(self, topic_id: bytes) -> bool:
        """False for an earlier topic of the same name."""
        return not topic_id or not self.topic_id or topic_id == self.topic_id


class FetchOffsetsRequest(NamedTuple):
    group_id: str
    topics: dict[str, tuple[int, ...]] | None
    """None asks for all."""
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


class FetchOffsetsReply(NamedTuple):
    error: ErrorCode
    topics: dict[str, dict[int, Committed | None]]


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
"""Any of the above; who sent the request knows which."""
