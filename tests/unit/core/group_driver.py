"""A shard with the least that hosts one: outcomes are appended to a list, replayed, and answered."""

from __future__ import annotations

from penstock.core.group.exchange import (
    CommitReply,
    CommitRequest,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
    OffsetToCommit,
    Protocols,
    SyncReply,
    SyncRequest,
)
from penstock.core.group.settings import GroupSettings
from penstock.core.group.shard import GroupShard
from penstock.core.group.states import State
from penstock.core.shard.exchange import Outcome, Token
from penstock.model.errors import ErrorCode

GROUP = "g"
NO_DELAY = GroupSettings(initial_rebalance_delay_ms=0)


def subscription(*topics: str) -> bytes:
    body = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"


def assignment(**topics: list[int]) -> bytes:
    body = b""
    for topic, partitions in topics.items():
        body += len(topic).to_bytes(2, "big") + topic.encode() + len(partitions).to_bytes(4, "big")
        body += b"".join(partition.to_bytes(4, "big") for partition in partitions)
    return b"\0\0" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"


RANGE: Protocols = (("range", subscription("t")),)


class Driver:
    def __init__(self, settings: GroupSettings = NO_DELAY, group: str = GROUP) -> None:
        self.settings = settings
        self.group_id = group
        self.shard = GroupShard(settings)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.replies: dict[Token, object] = {}
        self.notices: list[str] = []
        self.now_ms = 1_000_000
        self.tokens = 0
        self.ids = 0
        self.take(self.shard.loaded(self.now_ms))

    def take(self, outcome: Outcome) -> None:
        for record in outcome.records:
            key, value = record.encode_key(), record.encode_value()
            self.log.append((key, value))
            assert self.shard.decode(key, value) == record
            self.shard.replay(record)
        for token, reply in outcome.replies:
            assert token not in self.replies, "a token is answered once"
            self.replies[token] = reply
        self.notices += outcome.notices
        if outcome.is_continued:
            self.take(self.shard.tick(self.now_ms))

    def token(self) -> Token:
        self.tokens += 1
        return self.tokens

    def restart(self) -> None:
        """kill -9: only the log is left."""
        self.shard = GroupShard(self.settings)
        for key, value in self.log:
            record = self.shard.decode(key, value)
            assert record is not None
            self.shard.replay(record)
        self.take(self.shard.loaded(self.now_ms))

    def wait(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (deadline := self.shard.next_deadline()) is not None and deadline <= end_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.take(self.shard.tick(self.now_ms))
        self.now_ms = end_ms

    @property
    def state(self) -> State:
        return self.shard.groups[self.group_id].state

    # -- requests: each returns its token -----------------------------------------------

    def join_request(self, member: str = "", **changes: object) -> JoinRequest:
        self.ids += 1
        request = JoinRequest(
            group_id=self.group_id,
            member_id=member,
            instance_id=None,
            client_id="c",
            client_host="/127.0.0.1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=RANGE,
            new_member_id=f"c-{self.ids}",
        )
        return request._replace(**changes)  # type: ignore[arg-type]

    def join(self, member: str = "", **changes: object) -> Token:
        token = self.token()
        self.take(self.shard.join(self.join_request(member, **changes), token, self.now_ms))
        return token

    def joined(self, token: Token) -> JoinReply:
        reply = self.replies[token]
        assert isinstance(reply, JoinReply)
        return reply

    def new_member(self, **changes: object) -> tuple[str, Token]:
        """An id, and the parked join of its owner."""
        reply = self.joined(self.join(**changes))
        assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
        return reply.member_id, self.join(reply.member_id, **changes)

    def sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Token:
        token = self.token()
        request = SyncRequest(
            self.group_id, member, instance_id, generation, protocol_type, protocol_name, assignments or {}
        )
        self.take(self.shard.sync(request, token, self.now_ms))
        return token

    def synced(self, token: Token) -> SyncReply:
        reply = self.replies[token]
        assert isinstance(reply, SyncReply)
        return reply

    def heartbeat(self, member: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        token = self.token()
        request = HeartbeatRequest(self.group_id, member, instance_id, generation)
        self.take(self.shard.heartbeat(request, token, self.now_ms))
        reply = self.replies[token]
        assert isinstance(reply, HeartbeatReply)
        return reply.error

    def hold_heartbeat(self, member: str, generation: int) -> Token:
        token = self.token()
        request = HeartbeatRequest(self.group_id, member, None, generation, may_wait=True)
        self.take(self.shard.heartbeat(request, token, self.now_ms))
        return token

    def leave(self, *members: str | LeavingMember) -> LeaveReply:
        token = self.token()
        leaving = tuple(m if isinstance(m, LeavingMember) else LeavingMember(m, None) for m in members)
        self.take(self.shard.leave(LeaveRequest(self.group_id, leaving), token, self.now_ms))
        reply = self.replies[token]
        assert isinstance(reply, LeaveReply)
        return reply

    def commit(
        self,
        offset: int,
        member: str = "",
        generation: int = -1,
        *,
        topic: str = "t",
        partition: int = 0,
        metadata: str = "",
        **changes: object,
    ) -> ErrorCode:
        token = self.token()
        request = CommitRequest(
            self.group_id, member, None, generation, (OffsetToCommit(topic, partition, offset, -1, metadata),)
        )._replace(**changes)  # type: ignore[arg-type]
        self.take(self.shard.commit_offsets(request, token, self.now_ms))
        reply = self.replies[token]
        assert isinstance(reply, CommitReply)
        return reply.error or reply.errors[0]

    def committed(self, topic: str = "t", partition: int = 0, group_id: str | None = None) -> int | None:
        token = self.token()
        request = FetchOffsetsRequest(group_id or self.group_id, {topic: (partition,)})
        self.take(self.shard.fetch_offsets(request, token, self.now_ms))
        reply = self.replies[token]
        assert isinstance(reply, FetchOffsetsReply)
        found = reply.topics[topic][partition]
        return None if found is None else found.offset

    # -- whole rebalances ---------------------------------------------------------------

    def form(self, *members: str) -> int:
        """These members (all there are) go through join and sync; returns the generation."""
        tokens = {member: self.join(member) for member in members}
        return self.settle(tokens)

    def settle(self, tokens: dict[str, Token]) -> int:
        """After the join phase: everybody syncs, the leader with one partition for each."""
        generation = self.joined(next(iter(tokens.values()))).generation
        leader = self.joined(next(iter(tokens.values()))).leader
        shares = {member: assignment(t=[index]) for index, member in enumerate(tokens)}
        syncs = {member: self.sync(member, generation, shares if member == leader else None) for member in tokens}
        for member, token in syncs.items():
            assert self.synced(token) == SyncReply(ErrorCode.NONE, "consumer", "range", shares[member])
        return generation

    def stable(self, count: int = 2) -> tuple[list[str], int]:
        """A stable group of so many members."""
        first, token = self.new_member()
        assert self.joined(token).generation == 1
        tokens: dict[str, Token] = {}
        members = [first]
        for _ in range(count - 1):
            member, token = self.new_member()
            tokens[member] = token
            members.append(member)
        if count > 1:
            tokens = {first: self.join(first), **tokens}
            return members, self.settle(tokens)
        return members, self.settle({first: token})
