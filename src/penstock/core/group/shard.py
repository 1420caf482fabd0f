"""One partition of `__consumer_offsets`: its groups, their offsets, their deadlines. Sans-IO.

Decide, then replay: an operation reads the state and returns an `Outcome`. The caller appends
its records, passes each to `replay`, and sends the replies when the records are committed. Hard
state (offsets, stored groups) changes only in `replay`, which also runs at load. Soft state is
the state that Kafka too keeps only in memory: a rebalance in progress, pending members, parked
requests, deadlines, stories. After a crash it is lost and the members rejoin.
Must not know: partitions, flushes, connections, versions of the wire, clocks. Time (see
`wall_clock`) and the ids of new members are arguments.
Invariants: every token is answered exactly once; the caller replays the records of an outcome
before it calls the next operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, cast

from penstock.core.group.classic import ClassicGroup
from penstock.core.group.classic_protocol import ClassicProtocol
from penstock.core.group.consumer_exchange import ConsumerHeartbeatRequest, ConsumerSettings
from penstock.core.group.consumer_group import ConsumerGroup, NoTopics, Topics
from penstock.core.group.consumer_protocol import TIMERS as CONSUMER_TIMERS
from penstock.core.group.consumer_records import CONSUMER_DECODERS, ConsumerGroupRecord
from penstock.core.group.consumer_shard import ConsumerGroups, Group, SettingsOf
from penstock.core.group.exchange import (
    CommitReply,
    CommitRequest,
    Committed,
    DeleteGroupReply,
    DeleteOffsetsReply,
    DeleteOffsetsRequest,
    DescribeGroupReply,
    EndTransactionReply,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    ListedGroup,
    ListGroupsReply,
    SyncReply,
    SyncRequest,
    TransactionalCommitRequest,
    Unstable,
)
from penstock.core.group.member_sessions import MemberSessions
from penstock.core.group.migration import DOWNGRADED
from penstock.core.group.narration import Narrator
from penstock.core.group.offsets import Offsets
from penstock.core.group.pending_offsets import PendingOffsets, Place
from penstock.core.group.rebalance import Rebalance
from penstock.core.group.records import (
    CLASSIC_DECODERS,
    GroupMetadata,
    GroupTombstone,
    OffsetCommit,
    OffsetTombstone,
    TransactionalCommit,
)
from penstock.core.group.settings import GroupSettings
from penstock.core.group.states import Move, Request, State
from penstock.core.group.story import Stories, StoryEvent, What
from penstock.core.group.sweep import PIECE, PIECE_RECORDS, Sweep, Sweeps, TopicExists
from penstock.core.shard.exchange import Marker, Outcome, Token
from penstock.core.shard.records import CoordinatorRecord, Decoder, decode, fits
from penstock.core.shard.timers import Timers
from penstock.core.shard.wall_clock import WallClock
from penstock.model.errors import ApiError, ErrorCode

EXPIRE = "expire offsets"
SWEEP = "sweep offsets"
MAX_TIMESTAMP_MS = 2**63 - 1


class GroupShard:
    decoders: ClassVar[dict[int, Decoder]] = {**CLASSIC_DECODERS, **CONSUMER_DECODERS}

    def __init__(
        self,
        settings: GroupSettings,
        topics: Topics | None = None,
        consumer_settings_of: SettingsOf = lambda group_id: ConsumerSettings(),
    ) -> None:
        self.settings = settings
        self._topics = topics or NoTopics()
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self._sweeps = Sweeps()
        self.timers = Timers()
        self.wall = WallClock()
        self.stories = Stories(self.wall)
        self._sessions = MemberSessions(self.timers)
        narrator = Narrator(self.stories)
        self._rebalance = Rebalance(settings, self.timers, self._sessions, narrator, self.wall)
        self.classic = ClassicProtocol(settings, self._rebalance, self._sessions, narrator, self.wall)
        self.consumer = ConsumerGroups(
            self.groups, self.classic, self._topics, consumer_settings_of, self.timers, self.stories, self.wall
        )

    def configure(self, settings: GroupSettings) -> None:
        """Settings changed at run time; running deadlines stay."""
        self.settings = self.classic.settings = self._rebalance.settings = settings

    # -- the log ------------------------------------------------------------------------

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        return decode("__consumer_offsets", key, value, self.decoders)

    def decode_pending(self, producer_id: int, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """Decode a record of a transaction that is still open: only offset commits can be in it."""
        record = self.decode(key, value)
        return TransactionalCommit(producer_id, record) if isinstance(record, OffsetCommit) else None

    def __len__(self) -> int:
        return len(self.groups)

    def replay(self, record: CoordinatorRecord) -> None:
        """The only writer of hard state, after a decision and at load."""
        match record:
            case OffsetCommit():
                # Offsets of a consumer that never joined also make a group, without members or protocol.
                if record.group not in self.groups:
                    self.groups[record.group] = ClassicGroup(record.group)
                self.offsets.replay_commit(record)
                if self.pending:
                    self.pending.supersede(record[:3])
            case OffsetTombstone():
                self.offsets.replay_tombstone(record)
                if self.pending:
                    self.pending.supersede(record)
            case TransactionalCommit():
                if record.group not in self.groups:
                    self.groups[record.group] = ClassicGroup(record.group)
                self.pending.add(record.producer_id, record.commit)
            case GroupMetadata():
                group = self._classic(record.group)
                if group is None:
                    group = self.groups[record.group] = ClassicGroup(record.group)
                group.replay(record)
            case GroupTombstone():
                group = self._classic(record.group)
                if group is not None:
                    del self.groups[record.group]
                    self.classic.forget(group)
                    group.move(Move.DELETE, 0)
                    self._keep_for_offsets(record.group)
            case _:
                of_consumers = cast(ConsumerGroupRecord, record)
                self.consumer.replay(of_consumers)
                self._keep_for_offsets(of_consumers.group)

    def replay_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """The end of a transaction: its offsets count from now on, or are dropped."""
        for commit in self.pending.end(producer_id, is_commit=is_commit):
            if commit.group not in self.groups:
                self.groups[commit.group] = ClassicGroup(commit.group)
            self.offsets.replay_commit(commit)

    def _keep_for_offsets(self, group_id: str) -> None:
        """Keep a group for its offsets. Without a group they could not be found, expired or deleted."""
        has_offsets = self.offsets.of_group(group_id) or self.pending.has_group(group_id)
        if group_id not in self.groups and has_offsets:
            self.groups[group_id] = ClassicGroup(group_id)

    def _classic(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def loaded(self, now_ms: int) -> Outcome:
        """The whole log has been replayed: every member's session starts."""
        out = Outcome()
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                self.consumer.loaded(group, now_ms)
                continue
            for member in group.members.values():
                self._sessions.keep_alive(group, member, now_ms)
            if group.members:
                self.stories.tell(group.group_id, StoryEvent(now_ms, group.generation, What.LOADED))
            self.classic.shrink(group, now_ms, out)
        self._expire_later(now_ms)
        return out

    # -- members ------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, now_ms: int) -> Outcome:
        """Answered when the next generation has formed."""
        out = Outcome()
        replaced: list[ConsumerGroupRecord] = []
        try:
            _check_group_id(request.group_id)
            names = [name for name, _ in request.protocols]
            ids = (request.member_id, request.new_member_id, request.instance_id, request.client_id)
            if not fits(*ids, request.protocol_type, *names):
                raise ApiError(ErrorCode.INVALID_REQUEST)
            settings = self.settings
            if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
                raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
            group = self.groups.get(request.group_id)
            if isinstance(group, ConsumerGroup):
                if group.members:
                    self.consumer.join(group, request, token, now_ms, out)
                    return out
                replaced = group.tombstones()
                group = None
            if group is None:
                if request.member_id:
                    raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
                group = ClassicGroup(request.group_id)
                self.classic.join(group, request, token, now_ms, out)
                self.groups[request.group_id] = group
                if replaced:
                    out.records[:0] = replaced
                    out.reload_if_lost = True
            else:
                self.classic.join(group, request, token, now_ms, out)
        except ApiError as error:
            is_too_many = error.code is ErrorCode.GROUP_MAX_SIZE_REACHED
            out.reply(token, JoinReply(error.code, "" if is_too_many else request.member_id))
        return out

    def sync(self, request: SyncRequest, token: Token, now_ms: int) -> Outcome:
        """Answered when the leader's assignment is stored."""
        out = Outcome()
        try:
            group = self._group_of_member(request.group_id)
            if isinstance(group, ConsumerGroup):
                self.consumer.migration.sync(group, request, token, now_ms, out)
                return out
            if group.is_empty:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            self.classic.sync(group, request, token, now_ms, out)
        except ApiError as error:
            out.reply(token, SyncReply(error.code))
        return out

    def heartbeat(self, request: HeartbeatRequest, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        try:
            group = self._group_of_member(request.group_id)
            if isinstance(group, ConsumerGroup):
                self.consumer.classic_heartbeat(group, request, token, now_ms, out)
            else:
                self.classic.heartbeat(group, request, token, now_ms, out)
        except ApiError as error:
            out.reply(token, HeartbeatReply(error.code))
        return out

    def release_heartbeat(self, group_id: str, member_id: str, now_ms: int) -> Outcome:
        """Answer the parked heartbeat, because the member has sent another request on its connection."""
        out = Outcome()
        if (group := self._classic(group_id)) is not None:
            self.classic.held_long_enough(group, member_id, out)
        return out

    def step_aside(self, group_id: str, member_id: str, now_ms: int) -> Outcome:
        """The member is about to leave: answer its parked join or sync, which blocks the connection."""
        out = Outcome()
        if (group := self._classic(group_id)) is not None:
            self.classic.step_aside(group, member_id, out)
        return out

    def leave(self, request: LeaveRequest, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        try:
            group = self._group_of_member(request.group_id)
            if isinstance(group, ConsumerGroup):
                self.consumer.classic_leave(group, request, token, now_ms, out)
            else:
                self.classic.leave(group, request, token, now_ms, out)
        except ApiError as error:
            if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                out.reply(token, LeaveReply((error.code,) * len(request.members)))
            else:
                out.reply(token, LeaveReply((), error.code))
        return out

    def _group_of_member(self, group_id: str) -> Group:
        _check_group_id(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def consumer_heartbeat(
        self, request: ConsumerHeartbeatRequest, token: Token, now_ms: int, *, brings_member_id: bool = True
    ) -> Outcome:
        """A member of a consumer group (KIP-848) joins, reports or leaves."""
        return self.consumer.heartbeat(request, token, now_ms, brings_member_id=brings_member_id)

    # -- offsets ------------------------------------------------------------------------

    def commit_offsets(self, request: CommitRequest, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        try:
            if not fits(request.group_id):
                raise ApiError(ErrorCode.INVALID_GROUP_ID)
            self._check_commit(request, now_ms)
        except ApiError as error:
            out.reply(token, CommitReply(error.code))
            return out
        commits, errors = self._commits_of(request, now_ms)
        out.records += commits
        out.reply(token, CommitReply(ErrorCode.NONE, errors))
        return out

    def commit_transactional(self, request: TransactionalCommitRequest, token: Token, now_ms: int) -> Outcome:
        """A producer commits the offsets of a consumer in its transaction."""
        out = Outcome()
        commit = request.commit
        try:
            if not commit.group_id or not fits(commit.group_id):
                raise ApiError(ErrorCode.INVALID_GROUP_ID)
            group = self.groups.get(commit.group_id)
            if group is not None:
                group.check_transactional_commit(commit.member_id, commit.instance_id, commit.generation)
            elif commit.generation >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        except ApiError as error:
            out.reply(token, CommitReply(error.code))
            return out
        commits, errors = self._commits_of(commit, now_ms)
        out.records += (TransactionalCommit(request.producer.producer_id, one) for one in commits)
        out.producer = request.producer
        out.reply(token, CommitReply(ErrorCode.NONE, errors))
        return out

    def end_transaction(self, marker: Marker, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        out.marker = marker
        out.reply(token, EndTransactionReply())
        return out

    def _commits_of(self, request: CommitRequest, now_ms: int) -> tuple[list[OffsetCommit], tuple[ErrorCode, ...]]:
        """The records for the offsets that can be stored, and an error code for every offset of the request."""
        wall_ms = self.wall.at(now_ms)
        expire_ms = -1 if request.retention_time_ms < 0 else min(wall_ms + request.retention_time_ms, MAX_TIMESTAMP_MS)
        limit = self.settings.offset_metadata_max_bytes
        commits: list[OffsetCommit] = []
        errors: list[ErrorCode] = []
        group_id = request.group_id
        for topic, partition, offset, leader_epoch, metadata in request.offsets:
            if len(metadata) > limit or not fits(metadata):
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(ErrorCode.NONE)
            topic_id = self._topic_id(topic)
            commits.append(
                OffsetCommit(group_id, topic, partition, offset, leader_epoch, metadata, wall_ms, expire_ms, topic_id)
            )
        return commits, tuple(errors)

    def _check_commit(self, request: CommitRequest, now_ms: int) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation < 0:
                return  # `replay` makes the group
            is_told = request.knows_group_not_found
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.ILLEGAL_GENERATION)
        if isinstance(group, ConsumerGroup):
            is_old = not request.knows_group_not_found
            partitions = ((self._topic_id(offset.topic), offset.partition) for offset in request.offsets)
            group.check_commit(request.member_id, request.generation, partitions, is_old_version=is_old)
            return
        member = group.check_commit(request.member_id, request.instance_id, request.generation)
        if member is not None:
            self._sessions.keep_alive(group, member, now_ms)

    def _topic_id(self, name: str) -> bytes:
        info = self._topics.find(name)
        return b"" if info is None else info.topic_id

    def fetch_offsets(self, request: FetchOffsetsRequest, token: Token, now_ms: int) -> Outcome:
        """Offsets without a commit are None; a group that does not exist has no commits."""
        out = Outcome()
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            try:
                group.check_fetch(request.member_id, request.member_epoch)
            except ApiError as error:
                out.reply(token, FetchOffsetsReply(error.code, {}))
                return out
        topics: dict[str, dict[int, Committed | Unstable | None]] = {}
        for topic in self.offsets.of_group(request.group_id) if request.topics is None else request.topics:
            known = self._committed(request.group_id, topic)
            asked = known if request.topics is None else request.topics[topic]
            topics[topic] = {partition: known.get(partition) for partition in asked}
        if request.require_stable and self.pending.has_group(request.group_id):
            for _, topic, partition in self.pending.of_group(request.group_id):
                if request.topics is None:
                    topics.setdefault(topic, {})[partition] = Unstable.OFFSET
                elif partition in topics.get(topic, ()):
                    topics[topic][partition] = Unstable.OFFSET
        out.reply(token, FetchOffsetsReply(ErrorCode.NONE, topics))
        return out

    def _committed(self, group_id: str, topic: str) -> dict[int, Committed]:
        """Committed offsets by partition, without those of an earlier topic of the same name."""
        topic_id, is_doomed = self._topic_id(topic), self._sweeps.is_doomed
        known = self.offsets.of_group(group_id).get(topic, {})
        return {
            partition: committed for partition, committed in known.items() if not is_doomed(topic, topic_id, committed)
        }

    def delete_offsets(self, request: DeleteOffsetsRequest, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        group = self.groups.get(request.group_id)
        if not request.group_id:
            out.reply(token, DeleteOffsetsReply(ErrorCode.INVALID_GROUP_ID))
        elif group is None:
            out.reply(token, DeleteOffsetsReply(ErrorCode.GROUP_ID_NOT_FOUND))
        elif not group.is_empty and not group.uses_consumer_protocol:
            # The topics of such members are unknown.
            out.reply(token, DeleteOffsetsReply(ErrorCode.NON_EMPTY_GROUP))
        else:
            errors: list[ErrorCode] = []
            for topic, partition in request.partitions:
                is_used = not group.is_empty and group.is_subscribed(topic)
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_used else ErrorCode.NONE)
                place = group.group_id, topic, partition
                if not is_used and (self.offsets.get(*place) is not None or self.pending.has(place)):
                    out.records.append(OffsetTombstone(*place))
            out.reply(token, DeleteOffsetsReply(ErrorCode.NONE, tuple(errors)))
        return out

    def topics_deleted(self, topics: Iterable[str], now_ms: int) -> Outcome:
        """Delete the offsets of deleted topics, so that a later topic of the same name does not use them."""
        return self._sweep(Sweep(topics), now_ms, Outcome())

    def forget_earlier_topics(self, now_ms: int, exists: TopicExists | None = None) -> Outcome:
        """Delete offsets of deleted topics whose deletion was missed or could not be written."""
        return self._sweep(Sweep(exists=exists, is_of_all_topics=True), now_ms, Outcome())

    def _sweep(self, sweep: Sweep, now_ms: int, out: Outcome) -> Outcome:
        if self._sweeps.ask_for(sweep, self.groups):
            self._sweep_on((), now_ms, out)
        return out

    def _sweep_on(self, whose: tuple[str, ...], now_ms: int, out: Outcome) -> None:
        """Sweep one piece; the next one is due at once."""
        sweep = self._sweeps.current
        if sweep is None:
            return
        count = 0
        while sweep.left and count < PIECE and len(out.records) < PIECE_RECORDS:
            count += self._sweep_group(sweep, sweep.left.pop(), now_ms, out)
        if not sweep.left:
            self._sweeps.end(self.groups)
        if self._sweeps.current is not None:
            self.timers.set((SWEEP,), now_ms + 1)

    def _sweep_group(self, sweep: Sweep, group_id: str, now_ms: int, out: Outcome) -> int:
        """Return the number of offsets examined."""
        count = 1
        for topic, partitions in self.offsets.of_group(group_id).items():
            if not sweep.is_of_all_topics and topic not in sweep.deleted:
                continue
            count += len(partitions)
            topic_id, is_doomed = self._topic_id(topic), self._sweeps.is_doomed
            is_gone = sweep.exists is not None and not sweep.exists(topic)
            for partition, committed in partitions.items():
                place = group_id, topic, partition
                if is_gone or (is_doomed(topic, topic_id, committed) and not self._has_later_pending(place)):
                    out.records.append(OffsetTombstone(*place))
        if self.pending.has_group(group_id):
            self._sweep_pending(sweep, group_id, out)
        group = self.groups.get(group_id)
        if sweep.expires and group is not None:
            wall_ms = self.wall.at(now_ms)
            tombstones, is_all = self.offsets.expired(group, wall_ms, self.settings.offsets_retention_ms)
            has_pending = self.pending.has_group(group_id)
            if has_pending:
                tombstones = [one for one in tombstones if not self.pending.has(one)]
            out.records.extend(tombstones)
            if is_all and group.is_empty and not group.pending and not has_pending:
                self._erase(group, out)
        return count

    def _sweep_pending(self, sweep: Sweep, group_id: str, out: Outcome) -> None:
        """Delete pending offsets of deleted topics: they must not come back when the transaction commits."""
        for place in self.pending.of_group(group_id):
            is_gone = sweep.exists is not None and not sweep.exists(place[1])
            if (is_gone or not self._has_later_pending(place)) and self.offsets.get(*place) is None:
                out.records.append(OffsetTombstone(*place))

    def _has_later_pending(self, place: Place) -> bool:
        """Whether an open transaction has committed an offset there for the present topic of that name. A tombstone
        would discard that offset, too. The deleted topic's own offset is never shown, because it has another topic
        id."""
        if not self.pending.has(place):
            return False
        topic, latest = place[1], Committed(*self.pending.latest(place)[3:])
        return not self._sweeps.is_doomed(topic, self._topic_id(topic), latest)

    # -- groups -------------------------------------------------------------------------

    def list_groups(self, states: Iterable[str], types: Iterable[str], token: Token, now_ms: int) -> Outcome:
        """Filters ignore case; an empty filter matches all."""
        out = Outcome()
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {kind.strip().lower() for kind in types}
        groups = tuple(
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value, group.group_type)
            for group in self.groups.values()
            if (not wanted_states or group.state.value.lower() in wanted_states)
            and (not wanted_types or group.group_type in wanted_types)
        )
        out.reply(token, ListGroupsReply(groups))
        return out

    def describe_group(self, group_id: str, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        group = self._classic(group_id)
        if group is None:
            out.reply(token, DescribeGroupReply(ErrorCode.GROUP_ID_NOT_FOUND, group_id, State.DEAD.value))
            return out
        name = (group.protocol_name or "") if group.state is State.STABLE else ""
        out.reply(
            token,
            DescribeGroupReply(
                ErrorCode.NONE,
                group_id,
                group.state.value,
                group.protocol_type or "",
                name,
                group.describe_members(),
            ),
        )
        return out

    def delete_group(self, group_id: str, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        group = self.groups.get(group_id)
        try:
            if group is None:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
            if isinstance(group, ConsumerGroup):
                group.check_delete()
            else:
                group.answer(Request.DELETE)
            out.records.extend(self.offsets.tombstones(group_id))
            out.records += (
                OffsetTombstone(*place) for place in self.pending.of_group(group_id) if self.offsets.get(*place) is None
            )
            self._erase(group, out)
            out.reply(token, DeleteGroupReply(ErrorCode.NONE))
        except ApiError as error:
            out.reply(token, DeleteGroupReply(error.code))
        return out

    def _erase(self, group: Group, out: Outcome) -> None:
        if isinstance(group, ConsumerGroup):
            out.records.extend(group.tombstones())
        else:
            out.records.append(GroupTombstone(group.group_id))
        self.stories.forget(group.group_id)

    def describe_consumer_group(self, group_id: str, token: Token, now_ms: int) -> Outcome:
        return self.consumer.describe(group_id, token, now_ms)

    def story(self, group_id: str) -> tuple[StoryEvent, ...]:
        """Events of a group since the broker started, oldest first, as far as they are kept."""
        return self.stories.of(group_id)

    # -- time ---------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return self.timers.next_deadline()

    def tick(self, now_ms: int) -> Outcome:
        """Handle due timers, up to the first that makes records: the caller must replay those first.

        The caller ticks again while `next_deadline` is due.
        """
        out = Outcome()
        for key in self.timers.take_due(now_ms):
            if key[0] in CONSUMER_TIMERS:
                self.consumer.expire(key[0], key[1:], now_ms, out)
            else:
                self._due[key[0]](self, key[1:], now_ms, out)
            if out.records:
                break
        return out

    def _session_due(self, whose: tuple[str, ...], now_ms: int, out: Outcome) -> None:
        group_id, member_id = whose
        if (group := self._classic(group_id)) is not None:
            self.classic.session_over(group, member_id, now_ms, out)

    def _hold_due(self, whose: tuple[str, ...], now_ms: int, out: Outcome) -> None:
        group_id, member_id = whose
        if (group := self._classic(group_id)) is not None:
            self.classic.held_long_enough(group, member_id, out)

    def _join_due(self, whose: tuple[str, ...], now_ms: int, out: Outcome) -> None:
        if (group := self._classic(whose[0])) is not None:
            self._rebalance.join_phase_over(group, now_ms, out)

    def _sync_due(self, whose: tuple[str, ...], now_ms: int, out: Outcome) -> None:
        if (group := self._classic(whose[0])) is not None:
            self._rebalance.sync_phase_over(group, now_ms, out)

    def _downgraded_due(self, whose: tuple[str, ...], now_ms: int, out: Outcome) -> None:
        group_id, rebalances = whose
        if (group := self._classic(group_id)) is not None:
            self.classic.start_over(group, now_ms, out, rebalances=bool(rebalances))

    def _expire_due(self, whose: tuple[str, ...], now_ms: int, out: Outcome) -> None:
        self._expire_later(now_ms)
        self._sweep(Sweep(expires=True), now_ms, out)

    def _expire_later(self, now_ms: int) -> None:
        self.timers.set((EXPIRE,), now_ms + self.settings.offsets_retention_check_interval_ms)

    _due: ClassVar[dict[str, Callable[[GroupShard, tuple[str, ...], int, Outcome], None]]] = {
        "session": _session_due,
        "hold": _hold_due,
        "join": _join_due,
        "sync": _sync_due,
        DOWNGRADED: _downgraded_due,
        EXPIRE: _expire_due,
        SWEEP: _sweep_on,
    }


def _check_group_id(group_id: str) -> None:
    if not group_id or not fits(group_id):
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
