"""Migration between the two group protocols, while the members keep reading.

A consumer that joins a classic group with the new protocol turns it into a consumer group. The other
members stay as they are: this module answers JoinGroup, SyncGroup and Heartbeat of classic members in a
consumer group, with the member epoch as generation. When only classic members are left, the group turns back.

    state of the member              reply to a classic member
    behind the target, or a new      REBALANCE_IN_PROGRESS: rejoin with your owned partitions
    target is due
    must revoke partitions           a smaller assignment, then REBALANCE_IN_PROGRESS
    a partition it waits for is free REBALANCE_IN_PROGRESS

Both conversions are a list of records, appended together, that erase one group and write the other.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.core.group.assignors import EMPTY, Assignment
from penstock.core.group.classic import ClassicGroup, ClassicMember
from penstock.core.group.classic_protocol import ClassicProtocol
from penstock.core.group.consumer_draft import Draft
from penstock.core.group.consumer_exchange import ConsumerSettings
from penstock.core.group.consumer_group import ConsumerGroup, ConsumerState, Topics
from penstock.core.group.consumer_protocol import REJOIN, SYNC, ConsumerProtocol, Gone, may_retarget
from penstock.core.group.consumer_records import (
    NO_EPOCHS,
    ClassicProtocols,
    ConsumerGroupCurrentMember,
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    ConsumerGroupTargetMember,
    ConsumerGroupTargetMetadata,
    GroupEpoch,
    MemberAssignment,
    MemberMetadata,
    MemberState,
    TargetEpoch,
    epochs_of,
)
from penstock.core.group.embedded_protocol import (
    Partitions,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from penstock.core.group.exchange import (
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    SyncReply,
    SyncRequest,
)
from penstock.core.group.records import GroupTombstone
from penstock.core.group.story import Stories, StoryEvent, What
from penstock.core.shard.exchange import Outcome, Token
from penstock.core.shard.timers import Timers
from penstock.model.errors import ApiError, ErrorCode

CONSUMER: Final = "consumer"
STOCK_ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors whose user data may be lost. Kafka refuses all user data, and with it librdkafka's sticky assignor."""
DOWNGRADED: Final = "downgraded"
"""Timer: the classic group after a downgrade exists now; REBALANCES follows if it must rebalance."""
REBALANCES: Final = "rebalances"


class Migration:
    def __init__(
        self, protocol: ConsumerProtocol, classic: ClassicProtocol, topics: Topics, timers: Timers, stories: Stories
    ) -> None:
        self._protocol = protocol
        self._classic = classic
        self._topics = topics
        self._timers = timers
        self._stories = stories

    # --- conversion ---

    def upgrade(self, group: ClassicGroup, settings: ConsumerSettings, now_ms: int, out: Outcome) -> ConsumerGroup:
        """Convert to a group with the same members and partitions; GROUP_ID_NOT_FOUND, as in Kafka, if impossible.

        Makes only records: the classic group continues until `upgraded`, in case the joining member is refused.
        """
        group_id = group.group_id
        problem = None
        if not settings.can_upgrade:
            problem = "online upgrade is disabled."
        elif not group.uses_consumer_protocol:
            problem = "the group does not use the consumer embedded protocol."
        elif len(group.members) > settings.max_size:
            problem = "the group size exceeds the consumer group maximum size."
        if problem is None:
            try:
                records = self._upgraded(group, now_ms)
            except ApiError as error:
                problem = f"{error}."
        if problem is not None:
            message = f"Cannot upgrade classic group {group_id} to consumer group because {problem}"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        upgraded = ConsumerGroup(group_id)
        for record in records:
            upgraded.replay(record)
        out.records += [GroupTombstone(group_id), *records]
        return upgraded

    def upgraded(
        self, before: ClassicGroup, after: ConsumerGroup, settings: ConsumerSettings, now_ms: int, out: Outcome
    ) -> None:
        """After the upgrade, waiting members of the classic group rejoin, and the new group takes over the sessions."""
        self._classic.interrupt(before, out)
        self._protocol.loaded(after, settings, now_ms)
        self._stories.tell(before.group_id, StoryEvent(now_ms, after.epoch, What.UPGRADED))

    def _upgraded(self, group: ClassicGroup, now_ms: int) -> list[ConsumerGroupRecord]:
        group_id, epoch = group.group_id, max(group.generation, 1)
        members: list[ConsumerGroupRecord] = []
        targets: list[ConsumerGroupRecord] = []
        currents: list[ConsumerGroupRecord] = []
        for member_id, member in group.members.items():
            subscription = read_subscription(member.metadata(group.protocol_name) or member.protocols[0][1])
            partitions, has_more = read_assignment(member.assignment)
            if has_more and group.protocol_name not in STOCK_ASSIGNORS:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "an unsupported custom assignor is in use")
            held = self._by_id(partitions)
            metadata = MemberMetadata(
                member.instance_id,
                subscription.rack_id,
                member.client_id,
                member.client_host,
                tuple(sorted({*subscription.topics})),
                None,
                member.rebalance_timeout_ms,
                None,
                ClassicProtocols(member.session_timeout_ms, member.protocols),
            )
            members.append(ConsumerGroupMember(group_id, member_id, metadata))
            targets.append(ConsumerGroupTargetMember(group_id, member_id, held))
            current = MemberAssignment(epoch, epoch, MemberState.STABLE, held, since=epochs_of(NO_EPOCHS, epoch, held))
            currents.append(ConsumerGroupCurrentMember(group_id, member_id, current))
        return [
            *members,
            ConsumerGroupMetadata(group_id, GroupEpoch(epoch)),
            *targets,
            ConsumerGroupTargetMetadata(group_id, TargetEpoch(epoch)),
            *currents,
        ]

    def may_downgrade(self, group: ConsumerGroup, gone: Gone, settings: ConsumerSettings) -> bool:
        staying = [member for member_id, member in group.members.items() if member_id not in gone]
        if not settings.can_downgrade or not 0 < len(staying) <= self._classic.settings.max_size:
            return False
        return all(member.classic is not None for member in staying)

    def downgrade(
        self,
        group: ConsumerGroup,
        gone: Gone,
        settings: ConsumerSettings,
        now_ms: int,
        out: Outcome,
        *,
        rebalances: bool = True,
    ) -> None:
        """Convert to a classic group of the remaining members, with the group's epoch as generation."""
        draft = self._protocol.draft(group, settings, now_ms)
        self._protocol.tell_gone(draft, gone)
        self._protocol.forget(group)
        draft.tell(What.DOWNGRADED, leads_to=0)
        self._protocol.publish(draft, out)
        classic = ClassicGroup(group.group_id)
        assignments: dict[str, bytes] = {}
        for member_id, member in group.members.items():
            if member_id in gone or member.classic is None:
                continue
            classic.add(
                ClassicMember(
                    member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.classic.session_timeout_ms,
                    member.classic.protocols,
                ),
                CONSUMER,
            )
            assignments[member_id] = self._assignment_bytes(member.classic, group.target.get(member_id, EMPTY))
        classic.generation = group.epoch
        classic.protocol_name = classic.select_protocol()
        out.records += [*group.tombstones(), classic.metadata_record(assignments, draft.wall_ms)]
        self._timers.set((DOWNGRADED, group.group_id, REBALANCES if rebalances else ""), now_ms)
        out.is_continued = True

    # --- members with the classic protocol ---

    def join(
        self,
        group: ConsumerGroup,
        request: JoinRequest,
        token: Token,
        settings: ConsumerSettings,
        now_ms: int,
        out: Outcome,
    ) -> None:
        """Answered at once with the member's own epoch, because no member waits for the others."""
        subscription = self._check_join(group, request, settings)
        if not request.member_id and request.instance_id is None and request.requires_known_member_id:
            out.reply(token, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id))
            return
        member_id = request.member_id or request.new_member_id
        draft = self._protocol.draft(group, settings, now_ms)
        replaced_id = None if request.instance_id is None else group.static_members.get(request.instance_id)
        is_new = member_id not in group.members and replaced_id is None
        if replaced_id is not None and replaced_id != member_id:
            draft.replace_static(replaced_id, member_id)
            draft.tell(What.REPLACED, member_id, f"instance {request.instance_id}, was {replaced_id}", leads_to=0)
            self._protocol.forget_member(group.group_id, replaced_id)
            out.reload_if_lost = True
        changed = draft.update_member(member_id, _classic_metadata(request, subscription)).is_new
        if is_new or changed:
            draft.tell(What.JOINED if is_new else What.CHANGED, member_id, request.reason, leads_to=changed)
        if changed:
            draft.bump()
        if replaced_id is not None and self.may_downgrade(draft.group, {}, settings):
            self._join_and_downgrade(draft, request, subscription, member_id, token, out)
            return
        if draft.group.epoch > draft.group.assignment_epoch and may_retarget(draft.group, settings, draft.wall_ms):
            draft.retarget()
        draft.step(member_id, self._by_id(subscription.owned), changed)
        self._protocol.publish(draft, out)
        self._watch_join(draft, member_id)
        current = draft.group.assignment_of(member_id)
        name = request.protocols[0][0]
        out.reply(token, JoinReply(ErrorCode.NONE, member_id, current.epoch, CONSUMER, name))

    def _join_and_downgrade(
        self,
        draft: Draft,
        request: JoinRequest,
        subscription: Subscription,
        member_id: str,
        token: Token,
        out: Outcome,
    ) -> None:
        """The last member with the new protocol rejoined with the classic one. If all members have reached the target,
        the classic group is stable and the member gets its assignment by SyncGroup. Kafka requires only that the target
        is up to date, so a partition about to be revoked could have two readers."""
        group = draft.group
        if group.epoch == group.assignment_epoch:
            draft.step(member_id, self._by_id(subscription.owned), False)
        self._protocol.publish(draft, out)
        rebalances = group.state is not ConsumerState.STABLE
        self.downgrade(group, {}, draft.settings, draft.now_ms, out, rebalances=rebalances)
        epoch = group.assignment_of(member_id).epoch
        out.reply(token, JoinReply(ErrorCode.NONE, member_id, epoch, CONSUMER, request.protocols[0][0]))

    def _check_join(self, group: ConsumerGroup, request: JoinRequest, settings: ConsumerSettings) -> Subscription:
        if not settings.can_upgrade and not settings.can_downgrade:
            message = (
                f"Cannot join the consumer group {group.group_id} with the classic protocol: migration is disabled."
            )
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
        if request.member_id not in group.members and len(group.members) >= settings.max_size:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if request.protocol_type != CONSUMER or not _has_common_protocol(group, request):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.instance_id is not None and request.member_id:
            holder = group.static_members.get(request.instance_id)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder != request.member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        return read_subscription(request.protocols[0][1])

    def _watch_join(self, draft: Draft, member_id: str) -> None:
        group, now_ms = draft.group, draft.now_ms
        self._protocol.watch(group, member_id, draft.settings, now_ms, moved=False)
        self._timers.cancel((REJOIN, group.group_id, member_id))
        deadline_ms = now_ms + group.members[member_id].rebalance_timeout_ms
        self._timers.set((SYNC, group.group_id, member_id), deadline_ms)

    def sync(self, group: ConsumerGroup, request: SyncRequest, token: Token, now_ms: int, out: Outcome) -> None:
        member = self._check_member(group, request.member_id, request.instance_id, request.generation)
        protocols = _spoken(member)
        is_other_type = request.protocol_type is not None and request.protocol_type != CONSUMER
        if is_other_type or request.protocol_name not in (None, protocols.protocols[0][0]):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        current = group.assignment_of(request.member_id)
        if group.assignment_epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_rejoin(group, request.member_id, now_ms)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.cancel((SYNC, group.group_id, request.member_id))
        data = self._assignment_bytes(protocols, current.assigned)
        out.reply(token, SyncReply(ErrorCode.NONE, CONSUMER, protocols.protocols[0][0], data))

    def heartbeat(
        self,
        group: ConsumerGroup,
        request: HeartbeatRequest,
        token: Token,
        settings: ConsumerSettings,
        now_ms: int,
        out: Outcome,
    ) -> None:
        self._check_member(group, request.member_id, request.instance_id, request.generation)
        self._protocol.watch(group, request.member_id, settings, now_ms, moved=False)
        if self._should_rejoin(group, request.member_id, settings, now_ms):
            self._expect_rejoin(group, request.member_id, now_ms)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        out.reply(token, HeartbeatReply(ErrorCode.NONE))

    def _should_rejoin(self, group: ConsumerGroup, member_id: str, settings: ConsumerSettings, now_ms: int) -> bool:
        """A target that may not be computed yet is not a reason to rejoin: the member would rejoin again and again
        until then. Kafka leaves the computation of the next target to other members, so a group of only classic members
        would wait forever."""
        current = group.assignment_of(member_id)
        if current.state is MemberState.UNREVOKED_PARTITIONS or current.epoch < group.assignment_epoch:
            return True
        if group.epoch > group.assignment_epoch and may_retarget(group, settings, self._protocol.wall_ms(now_ms)):
            return True
        return current.state is MemberState.UNRELEASED_PARTITIONS and not _still_waits(group, member_id)

    def leaving(self, group: ConsumerGroup, request: LeaveRequest) -> tuple[Gone, tuple[ErrorCode, ...]]:
        """Return the members to remove, and the error code for each."""
        gone: Gone = {}
        errors: list[ErrorCode] = []
        for leaving in request.members:
            member_id = leaving.member_id
            if not member_id and leaving.instance_id is not None:
                member_id = group.static_members.get(leaving.instance_id, "")
            holder = None if leaving.instance_id is None else group.static_members.get(leaving.instance_id)
            if member_id not in group.members or (leaving.instance_id is not None and holder is None):
                errors.append(ErrorCode.UNKNOWN_MEMBER_ID)
            elif holder is not None and holder != member_id:
                errors.append(ErrorCode.FENCED_INSTANCE_ID)
            else:
                errors.append(ErrorCode.NONE)
                gone[member_id] = (What.LEFT, leaving.reason)
        return gone, tuple(errors)

    # --- parts ---

    def _check_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> MemberMetadata:
        if instance_id is not None:
            holder = group.static_members.get(instance_id)
            if holder is not None and holder != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = group.members.get(member_id)
        if member is None or member.classic is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != group.assignment_of(member_id).epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _expect_rejoin(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        key = (REJOIN, group.group_id, member_id)
        if key not in self._timers:
            self._timers.set(key, now_ms + group.members[member_id].rebalance_timeout_ms)

    def _by_id(self, partitions: Partitions) -> Assignment:
        held: dict[bytes, frozenset[int]] = {}
        for name, indexes in partitions.items():
            if (info := self._topics.find(name)) is not None:
                held[info.topic_id] = indexes
        return held

    def _assignment_bytes(self, protocols: ClassicProtocols, assignment: Assignment) -> bytes:
        named = ((self._topics.name_of(topic_id), held) for topic_id, held in assignment.items())
        version = read_subscription(protocols.protocols[0][1]).version
        return write_assignment(version, {name: held for name, held in named if name is not None})


def _classic_metadata(request: JoinRequest, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        request.instance_id,
        subscription.rack_id,
        request.client_id,
        request.client_host,
        tuple(sorted({*subscription.topics})),
        None,
        request.rebalance_timeout_ms,
        None,
        ClassicProtocols(request.session_timeout_ms, request.protocols),
    )


def _has_common_protocol(group: ConsumerGroup, request: JoinRequest) -> bool:
    """Whether one protocol is supported by every classic member, so that the group can turn back."""
    common = {name for name, _ in request.protocols}
    for member_id, member in group.members.items():
        if member.classic is not None and member_id != request.member_id:
            common &= {name for name, _ in member.classic.protocols}
    return bool(common)


def _spoken(member: MemberMetadata) -> ClassicProtocols:
    assert member.classic is not None
    return member.classic


def _still_waits(group: ConsumerGroup, member_id: str) -> bool:
    is_taken = partial(group.is_taken_from, member_id)
    target = group.target.get(member_id, EMPTY)
    return any(is_taken(topic_id, index) for topic_id, held in target.items() for index in held)
