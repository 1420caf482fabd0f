"""A classic group and its members: stored state, soft state, and checks of the sender.

Stored (set by `replay`): generation, protocol, leader, members with their assignments.
Soft: members that have joined the rebalance in progress, parked requests, members that got
an id and have not returned with it. `classic_protocol.ClassicProtocol` changes the state.
Invariants: `awaiting_join` counts members with a join token; `supporters` counts members per
protocol name; `instances` maps exactly the static members.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from penstock.core.group.exchange import DescribedMember, JoinedMember, JoinRequest, Protocols
from penstock.core.group.records import GroupMetadata, StoredMember
from penstock.core.group.states import ANSWERS, Act, Move, Request, State, moved
from penstock.core.group.story import Reasons
from penstock.core.shard.exchange import Token
from penstock.core.shard.records import Fields
from penstock.model.errors import ApiError, ErrorCode

CONSUMER_PROTOCOL = "consumer"


class ClassicMember:
    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "heartbeat_token",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_token",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False  # waits for its first generation
        self.join_token: Token | None = None
        self.sync_token: Token | None = None
        self.heartbeat_token: Token | None = None

    @property
    def label(self) -> str:
        """The name of the member in log lines."""
        return self.member_id if self.instance_id is None else f"{self.instance_id} ({self.member_id})"

    @property
    def is_parked(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: dict[str, None]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    group_type: ClassVar = "classic"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.state_timestamp_ms: int | None = None
        self.members: dict[str, ClassicMember] = {}
        self.instances: dict[str, str] = {}  # instance id -> member id
        self.supporters: dict[str, int] = {}  # protocol name -> number of members that support it
        self.awaiting_join = 0
        self.pending: dict[str, None] = {}  # ids of members that have not joined yet
        self.pending_sync: dict[str, None] = {}
        # The first rebalance of an empty group waits for more members.
        self.is_initial = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.has_newcomers = False
        # Other rebalances wait until members stop joining and leaving.
        self.is_fresh = False  # the rebalance began in an empty group
        self.prepared_ms = 0
        self.came_ms = 0  # the last member joined
        self.went_ms = 0  # the last member left or was removed
        self.is_settling = False
        self.reasons = Reasons()  # reasons for the rebalance in progress, for the log line
        self._subscribed: frozenset[str] | None = None
        self._subscribed_of = -1  # generation of the line above

    # -- state --------------------------------------------------------------------------

    def move(self, move: Move, wall_ms: int) -> None:
        self.state = moved(self.state, move)
        self.state_timestamp_ms = wall_ms

    def answer(self, request: Request) -> Act:
        """Return the action for a request of a valid sender, or raise ApiError."""
        answer = ANSWERS[self.state, request]
        if isinstance(answer, ErrorCode):
            raise ApiError(answer)
        return answer

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def all_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    def is_leader(self, member_id: str) -> bool:
        return self.leader == member_id

    # -- membership ---------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self._count(member, 1)
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> ClassicMember | None:
        """Remove a member. For a pending member, return None."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.instance_id is not None:
                del self.instances[member.instance_id]
            if member.join_token is not None:
                self.awaiting_join -= 1
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        return member

    def replace_static(self, member: ClassicMember, member_id: str) -> ClassicMember:
        """Move an instance to a new member id. The caller has released the old member's parked requests."""
        del self.members[member.member_id]
        successor = ClassicMember(
            member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.protocols,
            member.assignment,
        )
        self.members[member_id] = successor
        if member.instance_id is not None:
            self.instances[member.instance_id] = member_id
        if self.leader == member.member_id:
            self.leader = member_id
        if self.pending_sync.pop(member.member_id, self) is None:
            self.pending_sync[member_id] = None
        return successor

    def update(self, member: ClassicMember, request: JoinRequest) -> None:
        self._count(member, -1)
        member.protocols = request.protocols
        self._count(member, 1)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms

    def _count(self, member: ClassicMember, change: int) -> None:
        supporters = self.supporters
        for name in dict.fromkeys(name for name, _ in member.protocols):
            supporters[name] = supporters.get(name, 0) + change
            if not supporters[name]:
                del supporters[name]

    def park_join(self, member: ClassicMember, token: Token) -> Token | None:
        """Return the token of the member's older parked join, if any. The caller answers it."""
        older, member.join_token = member.join_token, token
        if older is None:
            self.awaiting_join += 1
        return older

    def release_join(self, member: ClassicMember) -> Token | None:
        token, member.join_token = member.join_token, None
        if token is not None:
            self.awaiting_join -= 1
        return token

    # -- protocols ----------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can join."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supporters.get(name, 0) == count for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those all members support. The first vote wins a tie."""
        count = len(self.members)
        candidates = {name: None for name, supporters in self.supporters.items() if supporters == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def elect_leader(self) -> bool:
        """Keep a leader that has joined, else elect the first member that has. False if no member has joined."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_token is not None:
            return True
        for member in self.members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """The list of members that the leader receives."""
        name = self.protocol_name
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(name))
            for member in self.members.values()
        )

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that any member of a consumer group subscribes to; None if unknown."""
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        if self._subscribed_of != self.generation:
            self._subscribed = self._read_subscriptions(self.protocol_name)
            self._subscribed_of = self.generation
        return self._subscribed

    def _read_subscriptions(self, protocol_name: str) -> frozenset[str] | None:
        topics: dict[str, None] = {}
        for member in self.members.values():
            subscribed = subscribed_topics(member.metadata(protocol_name))
            if subscribed is None:
                return None
            topics.update(dict.fromkeys(subscribed))
        return frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        topics = self.subscribed_topics
        return self.uses_consumer_protocol if topics is None else topic in topics

    # -- checks of the sender -----------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Raise UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance has a newer member id."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """The producer commits on behalf of the member, so neither its session nor the phase of a rebalance matters.

        Requests before version 3 name no member.
        """
        if generation < 0 and (self.is_empty or (not member_id and instance_id is None)):
            return
        self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> ClassicMember | None:
        """Return the committing member, or None for a consumer that assigns partitions itself."""
        if generation < 0 and (self.is_empty or (not member_id and instance_id is None)):
            self.answer(Request.COMMIT_SIMPLE)
            return None
        member = self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        self.answer(Request.COMMIT)
        return member

    # -- stored form --------------------------------------------------------------------

    def metadata_record(self, assignments: dict[str, bytes], wall_ms: int) -> GroupMetadata:
        """The record of a stable group with these assignments."""
        name = self.protocol_name
        return GroupMetadata(
            self.group_id,
            self.protocol_type or "",
            self.generation,
            name,
            self.leader,
            wall_ms,
            tuple(
                StoredMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(name),
                    assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    def empty_record(self, wall_ms: int) -> GroupMetadata:
        """The record of the empty group after the last member has left."""
        return GroupMetadata(self.group_id, self.protocol_type or "", self.generation + 1, None, None, wall_ms, ())

    def replay(self, record: GroupMetadata) -> None:
        """Take over the state of the record. Known members keep their soft state."""
        known = self.members
        self.members, self.instances, self.supporters = {}, {}, {}
        self.awaiting_join = 0
        self.leader = record.leader
        for stored in record.members:
            member = known.get(stored.member_id)
            if member is None:
                member = ClassicMember(
                    stored.member_id,
                    stored.instance_id,
                    stored.client_id,
                    stored.client_host,
                    stored.rebalance_timeout_ms,
                    stored.session_timeout_ms,
                    ((record.protocol_name or "", stored.subscription),),
                )
            member.assignment = stored.assignment
            self.add(member, record.protocol_type)
            self.awaiting_join += member.join_token is not None
        self.protocol_type = record.protocol_type or None
        self.protocol_name = record.protocol_name
        self.leader = record.leader
        self.generation = record.generation
        self._subscribed_of = -1
        self.move(Move.STORE if record.members else Move.STORE_EMPTY, record.state_timestamp_ms)
        if record.state_timestamp_ms < 0:
            self.state_timestamp_ms = None

    def describe_members(self) -> tuple[DescribedMember, ...]:
        """Metadata and assignment are included only for a stable group, as in Kafka."""
        is_stable = self.state is State.STABLE
        return tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol_name) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in self.members.values()
        )


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """Topics of a consumer's subscription: version int16, array of strings, then fields ignored here."""
    try:
        fields = Fields(metadata, 2)
        return [fields.string() for _ in range(fields.int32())]
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
