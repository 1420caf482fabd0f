"""One consumer group (KIP-848): its epoch, members, target and current assignment.

The state that the records describe, changed only by `replay`; `consumer_protocol` makes the records.
Three epochs, each following the one before it:

- the group epoch grows with every change of members, subscriptions or subscribed topics;
- the assignment epoch is the group epoch for which the target was computed;
- a member's epoch is the assignment epoch that the member has reached.

The group epoch starts at 1, as in Kafka. The first subscription by name raises it to 2; a regular expression that
matches nothing yet does not.
Invariant: a partition has at most one member in `owners`: the member that has it assigned or must revoke it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from hashlib import blake2b
from typing import ClassVar, Final, NamedTuple, Protocol

from penstock.core.group.assignors import Assignment
from penstock.core.group.consumer_records import (
    ConsumerGroupCurrentMember,
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    ConsumerGroupPartitionMetadata,
    ConsumerGroupRecord,
    ConsumerGroupRegex,
    ConsumerGroupTargetMember,
    ConsumerGroupTargetMetadata,
    MemberAssignment,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
)
from penstock.model.errors import ApiError, ErrorCode

FIRST_EPOCH: Final = 1
NO_TOPICS_HASH: Final = 0


class TopicInfo(NamedTuple):
    topic_id: bytes
    partitions: int


class Topics(Protocol):
    """The cluster's topics as a group needs them."""

    @property
    def version(self) -> int:
        """Grows whenever a topic is created or deleted or gets partitions."""
        ...

    def find(self, name: str) -> TopicInfo | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def names(self) -> Collection[str]: ...


class NoTopics:
    """For shards that serve only classic groups."""

    version = 0

    def find(self, name: str) -> TopicInfo | None:
        return None

    def name_of(self, topic_id: bytes) -> str | None:
        return None

    def names(self) -> tuple[str, ...]:
        return ()


class ConsumerState(Enum):
    """Kafka's state names, as clients see them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    group_type: ClassVar = "consumer"
    protocol_type: ClassVar = "consumer"
    uses_consumer_protocol: ClassVar = True
    pending: ClassVar[dict[str, None]] = {}  # consumer groups have no pending members

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = NO_TOPICS_HASH
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.members: dict[str, MemberMetadata] = {}
        self.current: dict[str, MemberAssignment] = {}
        self.target: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.static_members: dict[str, str] = {}
        self.owners: dict[tuple[bytes, int], str] = {}
        self.topics_version = -1
        """Soft state: the version of the topics against which `metadata_hash` and `regexes` were last checked."""

    def draft(self) -> ConsumerGroup:
        """Return a copy on which records can be tried. Values are immutable, so copying the dictionaries is enough."""
        copy = ConsumerGroup.__new__(ConsumerGroup)
        copy.__dict__.update(self.__dict__)
        for name in ("members", "current", "target", "regexes", "static_members", "owners"):
            setattr(copy, name, dict(getattr(self, name)))
        return copy

    # --- replay ---

    def replay(self, record: ConsumerGroupRecord) -> None:
        match record:
            case ConsumerGroupMetadata(_, epochs):
                self.epoch, self.metadata_hash = epochs or (FIRST_EPOCH, NO_TOPICS_HASH)
            case ConsumerGroupPartitionMetadata():
                pass  # the metadata hash took its place
            case ConsumerGroupMember(_, member_id, member):
                self._replay_member(member_id, member)
            case ConsumerGroupTargetMetadata(_, target_epoch):
                self.assignment_epoch, self.assignment_timestamp_ms = target_epoch or (0, 0)
            case ConsumerGroupTargetMember(_, member_id, target):
                if target is None:
                    self.target.pop(member_id, None)
                else:
                    self.target[member_id] = target
            case ConsumerGroupCurrentMember(_, member_id, current):
                self._replay_current(member_id, current)
            case ConsumerGroupRegex(_, regex, resolved):
                if resolved is None:
                    self.regexes.pop(regex, None)
                else:
                    self.regexes[regex] = resolved

    def _replay_member(self, member_id: str, value: MemberMetadata | None) -> None:
        old = self.members.pop(member_id, None) if value is None else self.members.get(member_id)
        if old is not None and old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            del self.static_members[old.instance_id]
        if value is not None:
            self.members[member_id] = value
            if value.instance_id is not None:
                self.static_members[value.instance_id] = member_id

    def _replay_current(self, member_id: str, value: MemberAssignment | None) -> None:
        old = self.current.pop(member_id, None) if value is None else self.current.get(member_id)
        if old is not None:
            for key in _keys(old):
                # Compaction may have dropped the record that released it, so check the owner.
                if self.owners.get(key) == member_id:
                    del self.owners[key]
        if value is not None:
            self.current[member_id] = value
            for key in _keys(value):
                self.owners[key] = member_id

    # --- questions ---

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(self.is_reconciled(member_id) for member_id in self.members):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def assignment_of(self, member_id: str) -> MemberAssignment:
        return self.current.get(member_id, _NOTHING)

    def is_reconciled(self, member_id: str) -> bool:
        current = self.assignment_of(member_id)
        return current.state == MemberState.STABLE and current.epoch == self.assignment_epoch

    def topic_names_of(self, member: MemberMetadata) -> tuple[str, ...]:
        resolved = self.regexes.get(member.topic_regex) if member.topic_regex else None
        if resolved is None or not resolved.topics:
            return member.topic_names
        return tuple(sorted({*member.topic_names, *resolved.topics}))

    def subscribed_names(self) -> list[str]:
        return sorted({name for member in self.members.values() for name in self.topic_names_of(member)})

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.topic_names_of(member) for member in self.members.values())

    def subscribed_ids(self, member: MemberMetadata, topics: Topics) -> frozenset[bytes]:
        found = (topics.find(name) for name in self.topic_names_of(member))
        return frozenset(info.topic_id for info in found if info is not None)

    def hash_of(self, topics: Topics) -> int:
        """A hash that changes when a subscribed topic is created, deleted or gets partitions."""
        found = [info for name in self.subscribed_names() if (info := topics.find(name)) is not None]
        if not found:
            return NO_TOPICS_HASH
        digest = blake2b(digest_size=8)
        for info in found:
            digest.update(info.topic_id + info.partitions.to_bytes(4, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True)

    def preferred_assignor(self, default: str) -> str:
        """The assignor that most members request; the first by name wins a tie."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name)) if votes else default

    def is_taken_from(self, member_id: str, topic_id: bytes, partition: int) -> bool:
        return self.owners.get((topic_id, partition), member_id) != member_id

    # --- checks of commits and fetches of offsets ---

    def check_commit(
        self, member_id: str, epoch: int, partitions: Iterable[tuple[bytes, int]] = (), *, is_old_version: bool = False
    ) -> None:
        """A request without member id and epoch is accepted only while the group has no members.

        A member may commit with an older epoch for partitions that it owned then and still owns: no other
        member had them. All partitions pass or none, as in Kafka.
        """
        if epoch < 0 and not self.members:
            return
        if is_old_version and member_id in self.members and self.members[member_id].classic is None:
            # Before version 9, clients do not know STALE_MEMBER_EPOCH.
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        current = self.assignment_of(member_id)
        if member_id in self.members and epoch < current.epoch:
            since = current.since
            if all(epoch >= since.get(topic_id, {}).get(index, current.epoch) for topic_id, index in partitions):
                return
        self._check_epoch(member_id, epoch)

    def check_transactional_commit(self, member_id: str, instance_id: str | None, epoch: int) -> None:
        """The same check as for a classic group. Producers know ILLEGAL_GENERATION, but not STALE_MEMBER_EPOCH."""
        if epoch < 0 and (not self.members or (not member_id and instance_id is None)):
            return
        try:
            self._check_epoch(member_id, epoch)
        except ApiError as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION, str(error)) from error
            raise

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """A request without a member id and epoch may read."""
        if member_id or epoch >= 0:
            self._check_epoch(member_id or "", epoch)

    def _check_epoch(self, member_id: str, epoch: int) -> None:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        if epoch != self.assignment_of(member_id).epoch:
            is_classic = member.classic is not None
            raise ApiError(ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH)

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def tombstones(self) -> list[ConsumerGroupRecord]:
        """Tombstones that erase the group, members first."""
        records: list[ConsumerGroupRecord] = []
        records += (ConsumerGroupCurrentMember(self.group_id, member_id, None) for member_id in self.members)
        records += (ConsumerGroupTargetMember(self.group_id, member_id, None) for member_id in self.members)
        records.append(ConsumerGroupTargetMetadata(self.group_id, None))
        records += (ConsumerGroupMember(self.group_id, member_id, None) for member_id in self.members)
        records += (ConsumerGroupRegex(self.group_id, regex, None) for regex in self.regexes)
        records.append(ConsumerGroupMetadata(self.group_id, None))
        return records


_NOTHING = MemberAssignment()


def _keys(value: MemberAssignment) -> Iterable[tuple[bytes, int]]:
    for assignment in (value.assigned, value.pending_revocation):
        for topic_id, partitions in assignment.items():
            for partition in partitions:
                yield topic_id, partition
