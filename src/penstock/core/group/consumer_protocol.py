"""The KIP-848 protocol: how heartbeats, leaves and timeouts change a consumer group.

A decision is made on a draft of the group (`consumer_draft`) and returned as records. The group
changes when the shard replays them.

A heartbeat does up to four things, in this order:

1. update the member and its subscription: a change bumps the group epoch;
2. check the topics: a change bumps the group epoch too;
3. compute a target if it is older than the group epoch, at most once per assignment interval;
4. move the member one step towards the target (`reconciliation`).

Differs from Kafka in the heartbeat interval of the reply: the configured interval is the maximum. See `pace`.
Must not know: the wire, the log, classic groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.core.group.assignors import EMPTY
from penstock.core.group.consumer_draft import Draft
from penstock.core.group.consumer_exchange import ConsumerHeartbeatReply, ConsumerHeartbeatRequest, ConsumerSettings
from penstock.core.group.consumer_group import ConsumerGroup, Topics
from penstock.core.group.consumer_records import (
    STATIC_LEAVE_EPOCH,
    ConsumerGroupCurrentMember,
    MemberMetadata,
    MemberState,
    epochs_of,
)
from penstock.core.group.reconciliation import is_subset
from penstock.core.group.story import Stories, StoryEvent, What, many, shares_of
from penstock.core.shard.exchange import Outcome
from penstock.core.shard.records import fits
from penstock.core.shard.timers import Timers
from penstock.core.shard.wall_clock import WallClock
from penstock.model.errors import ApiError, ErrorCode

SESSION: Final = "consumer-session"
REVOCATION: Final = "consumer-revocation"
REJOIN: Final = "consumer-rejoin"  # for members with the classic protocol; so is the next one
SYNC: Final = "consumer-sync"
TIMERS: Final = (SESSION, REVOCATION, REJOIN, SYNC)
"""Kinds of deadlines; group id and member id follow."""

Gone: TypeAlias = dict[str, tuple[What, str]]
"""Members to remove, with the event and its reason."""

HASTY_INTERVAL_MS: Final = 500
STEADY_INTERVAL_MS: Final = 1_000
INTERVAL_PER_MEMBER_MS: Final = 2
REASONS_LOGGED: Final = 8


def pace(group: ConsumerGroup, member_id: str, settings: ConsumerSettings, wall_ms: int) -> int:
    """Time until the member's next heartbeat. Members learn of changes only from heartbeats.

    The time is shorter than configured while the member waits for something, and always for members of small
    groups. It grows with the number of members, so that a group costs at most 500 heartbeats a second.
    """
    floor = INTERVAL_PER_MEMBER_MS * len(group.members)
    if group.epoch > group.assignment_epoch:
        wait = max(group.assignment_timestamp_ms + settings.assignment_interval_ms - wall_ms, floor)
    elif not group.is_reconciled(member_id):
        wait = max(HASTY_INTERVAL_MS, floor)
    else:
        wait = max(STEADY_INTERVAL_MS, 2 * floor)
    return max(min(wait, settings.heartbeat_interval_ms), 1)


def validate(request: ConsumerHeartbeatRequest, settings: ConsumerSettings, *, brings_member_id: bool) -> None:
    """Check a request on its own, with Kafka's messages. `brings_member_id`: the version requires a member id."""
    problem = None
    joins = request.member_epoch == 0
    if (brings_member_id or not joins) and not request.member_id.strip():
        problem = "MemberId can't be empty."
    elif not request.group_id.strip():
        problem = "GroupId can't be empty."
    elif request.instance_id is not None and not request.instance_id.strip():
        problem = "InstanceId can't be empty."
    elif request.rack_id is not None and not request.rack_id.strip():
        problem = "RackId can't be empty."
    elif joins and request.rebalance_timeout_ms == -1:
        problem = "RebalanceTimeoutMs must be provided in first request."
    elif joins and (request.owned is None or request.owned):
        problem = "TopicPartitions must be empty when (re-)joining."
    elif joins and request.topic_names is None and request.topic_regex is None:
        problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        problem = f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to {STATIC_LEAVE_EPOCH}."
    elif not fits(request.group_id, request.member_id, request.instance_id, request.topic_regex):
        # They become parts of record keys, or would after a downgrade.
        problem = "GroupId, MemberId, InstanceId and SubscribedTopicRegex can't be longer than 32767 bytes."
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in settings.assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(settings.assignors)}.",
        )


class ConsumerProtocol:
    """Decides about consumer groups. Holds shared services, and no group."""

    def __init__(self, topics: Topics, timers: Timers, stories: Stories, wall: WallClock | None = None) -> None:
        self._topics = topics
        self._timers = timers
        self._stories = stories
        self._wall = wall or WallClock()

    def heartbeat(
        self,
        group: ConsumerGroup,
        request: ConsumerHeartbeatRequest,
        settings: ConsumerSettings,
        now_ms: int,
        out: Outcome,
        agreed: Callable[[], None] = lambda: None,
    ) -> ConsumerHeartbeatReply:
        """A member joins or stays. Raises ApiError; `agreed` is called before any change, once no error can follow."""
        member_id, joins = request.member_id, request.member_epoch == 0
        if member_id not in group.members and len(group.members) >= settings.max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {settings.max_size} members.",
            )
        replaced_id = self._check_member(group, request)
        known = group.members.get(replaced_id or member_id)
        before = group.assignment_of(replaced_id or member_id)
        member = _merged(known or MemberMetadata(), request)

        wall_ms = self._wall.at(now_ms)
        topics_changed = self._topics.version != group.topics_version
        can_retarget = group.epoch > group.assignment_epoch and may_retarget(group, settings, wall_ms)
        is_settled = known is not None and member == known and group.is_reconciled(member_id)
        if is_settled and replaced_id is None and not topics_changed and not can_retarget:
            # Nothing to decide, as for most heartbeats.
            after, current = group, before
            agreed()
        else:
            draft = self.draft(group, settings, now_ms)
            self._advance(draft, request, member, replaced_id)
            agreed()
            if topics_changed and draft.group.epoch == group.epoch:
                group.topics_version = self._topics.version
            after, current = draft.group, draft.group.assignment_of(member_id)
            self.publish(draft, out)
        if replaced_id is not None:
            self.forget_member(group.group_id, replaced_id)
            out.reload_if_lost = True
        self.watch(after, member_id, settings, now_ms, moved=current is not before)
        changed = joins or request.is_full or current.assigned != before.assigned
        return ConsumerHeartbeatReply(
            ErrorCode.NONE,
            None,
            member_id,
            current.epoch,
            pace(after, member_id, settings, wall_ms),
            current.assigned if changed else None,
        )

    def _advance(
        self, draft: Draft, request: ConsumerHeartbeatRequest, member: MemberMetadata, replaced_id: str | None
    ) -> None:
        group, member_id = draft.group, request.member_id
        is_new = member_id not in group.members and replaced_id is None
        if replaced_id is not None:
            draft.replace_static(replaced_id, member_id)
            draft.tell(What.REPLACED, member_id, f"instance {request.instance_id}, was {replaced_id}", leads_to=0)
        subscription = draft.update_member(member_id, member)
        topics_changed = draft.topics.version != group.topics_version and draft.check_topics()
        bumps = subscription.needs_target or topics_changed
        if is_new:
            draft.tell(What.JOINED, member_id, _subscription(member), leads_to=bumps)
        elif subscription.is_new:
            draft.tell(What.CHANGED, member_id, _subscription(member), leads_to=bumps)
        if topics_changed and not subscription.is_new:
            draft.tell(What.TOPICS_CHANGED)
        if bumps:
            draft.bump()
        if group.epoch > group.assignment_epoch and may_retarget(group, draft.settings, draft.wall_ms):
            draft.retarget()
        draft.step(member_id, request.owned, subscription.is_new)

    def _check_member(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> str | None:
        """Check the sender. Return the member id that it replaces, if any."""
        member_id, epoch, instance_id = request.member_id, request.member_epoch, request.instance_id
        if instance_id is None:
            if member_id not in group.members and epoch != 0:
                raise unknown_member(group, member_id)
            _check_epoch(group, member_id, epoch, request)
            return None
        holder = group.static_members.get(instance_id)
        if epoch == 0:
            if holder is None:
                return None
            # A classic member cannot announce that it will return, so it is replaced at once.
            is_classic = group.members[holder].classic is not None
            if not is_classic and group.assignment_of(holder).epoch != STATIC_LEAVE_EPOCH:
                raise ApiError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                    f"instance id is owned by {holder} member.",
                )
            return holder
        check_instance(holder, member_id, instance_id)
        _check_epoch(group, member_id, epoch, request)
        return None

    def check_leave(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> None:
        if request.instance_id is not None:
            check_instance(group.static_members.get(request.instance_id), request.member_id, request.instance_id)
        elif request.member_id not in group.members:
            raise unknown_member(group, request.member_id)

    def go_away(self, group: ConsumerGroup, member_id: str, out: Outcome) -> None:
        """A static member leaves temporarily. It keeps its partitions until it returns or its session ends."""
        current = group.assignment_of(member_id)
        since = epochs_of(current.since, current.epoch, current.assigned)
        away = current._replace(epoch=STATIC_LEAVE_EPOCH, pending_revocation=EMPTY, since=since)
        out.records.append(ConsumerGroupCurrentMember(group.group_id, member_id, away))

    def remove(self, group: ConsumerGroup, gone: Gone, settings: ConsumerSettings, now_ms: int, out: Outcome) -> None:
        draft = self.draft(group, settings, now_ms)
        self.tell_gone(draft, gone)
        draft.remove_members(list(gone))
        if not draft.group.members:
            draft.tell(What.EMPTY, leads_to=0)
        self.publish(draft, out)

    def tell_gone(self, draft: Draft, gone: Gone) -> None:
        for member_id, (what, why) in gone.items():
            draft.tell(what, member_id, why)
            self.forget_member(draft.group.group_id, member_id)

    def overdue(self, group: ConsumerGroup, kind: str, member_id: str, settings: ConsumerSettings) -> Gone:
        """Return the member to remove, with the reason, because a timer of `kind` expired; or nothing."""
        member = group.members.get(member_id)
        if member is None:
            return {}
        if kind == SESSION:
            why = f"no heartbeat for {session_timeout_ms(member, settings)} ms"
        elif kind == REVOCATION:
            if group.assignment_of(member_id).state != MemberState.UNREVOKED_PARTITIONS:
                return {}
            why = f"did not give up its partitions within {member.rebalance_timeout_ms} ms"
        else:
            return {member_id: (What.NOT_REJOINED if kind == REJOIN else What.NOT_SYNCED, "")}
        return {member_id: (What.TIMED_OUT, why)}

    # --- shared by decisions ---

    def wall_ms(self, now_ms: int) -> int:
        return self._wall.at(now_ms)

    def draft(self, group: ConsumerGroup, settings: ConsumerSettings, now_ms: int) -> Draft:
        return Draft(group, self._topics, settings, now_ms, self._wall.at(now_ms))

    def publish(self, draft: Draft, out: Outcome) -> None:
        """Add the draft's records to the outcome, and its events to the story."""
        out.records += draft.records
        group_id = draft.group.group_id
        for event in draft.events:
            self._stories.tell(group_id, event)
            if event.what is What.ASSIGNED:
                has_work = any(count for _, count in event.assigned)
                notices = out.notices if has_work else out.idle_notices
                notices.append(_notice(group_id, event, self._stories.of(group_id)))

    def loaded(self, group: ConsumerGroup, settings: ConsumerSettings, now_ms: int) -> None:
        """After a restart or a change of coordinator, every session starts again."""
        for member_id in group.members:
            self.watch(group, member_id, settings, now_ms, moved=True)

    def forget(self, group: ConsumerGroup) -> None:
        for member_id in group.members:
            self.forget_member(group.group_id, member_id)

    def watch(
        self, group: ConsumerGroup, member_id: str, settings: ConsumerSettings, now_ms: int, *, moved: bool
    ) -> None:
        member = group.members[member_id]
        self._timers.set((SESSION, group.group_id, member_id), now_ms + session_timeout_ms(member, settings))
        key = (REVOCATION, group.group_id, member_id)
        if group.assignment_of(member_id).state != MemberState.UNREVOKED_PARTITIONS:
            self._timers.cancel(key)
        elif moved:
            self._timers.set(key, now_ms + member.rebalance_timeout_ms)

    def forget_member(self, group_id: str, member_id: str) -> None:
        for kind in TIMERS:
            self._timers.cancel((kind, group_id, member_id))


def session_timeout_ms(member: MemberMetadata, settings: ConsumerSettings) -> int:
    return settings.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms


def unknown_member(group: ConsumerGroup, member_id: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")


def may_retarget(group: ConsumerGroup, settings: ConsumerSettings, wall_ms: int) -> bool:
    """One assignment covers changes that arrive together. A single member need not wait for others."""
    if group.assignment_epoch == 0 or len(group.members) <= 1:
        return True
    since_ms = wall_ms - group.assignment_timestamp_ms
    return since_ms >= settings.assignment_interval_ms or since_ms < 0  # the wall clock was set back


def _merged(known: MemberMetadata, request: ConsumerHeartbeatRequest) -> MemberMetadata:
    """Fields missing in the request stay unchanged; an empty regular expression removes the old one."""
    names, regex = request.topic_names, request.topic_regex
    merged = MemberMetadata(
        instance_id=request.instance_id if request.instance_id is not None else known.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else known.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=known.topic_names if names is None else tuple(sorted({*names})),
        topic_regex=known.topic_regex if regex is None else regex or None,
        rebalance_timeout_ms=known.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        server_assignor=request.server_assignor if request.server_assignor is not None else known.server_assignor,
    )
    return known if merged == known else merged


def _check_epoch(group: ConsumerGroup, member_id: str, epoch: int, request: ConsumerHeartbeatRequest) -> None:
    """Epoch 0 rejoins, also after fencing. The previous epoch is accepted, because the reply may have been lost."""
    current = group.assignment_of(member_id)
    if epoch in (0, current.epoch):
        return
    if epoch == current.previous_epoch and epoch < current.epoch and is_subset(request.owned, current.assigned):
        return
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'greater' if epoch > current.epoch else 'smaller'} member epoch ({epoch}) "
        f"than the one known by the group coordinator ({current.epoch}). "
        "The member must abandon all its partitions and rejoin.",
    )


def check_instance(holder: str | None, member_id: str, instance_id: str) -> None:
    if holder is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}.",
        )


def _subscription(member: MemberMetadata) -> str:
    parts = list(member.topic_names)
    if member.topic_regex is not None:
        parts.append(f"topics matching {member.topic_regex}")
    return f"{member.client_id} subscribes to {', '.join(parts) or 'nothing'}"


def _notice(group_id: str, event: StoryEvent, story: tuple[StoryEvent, ...]) -> str:
    """One log line: the new target, and the events since the previous one."""
    reasons: list[str] = []
    for earlier in reversed(story[:-1]):
        if earlier.what is What.ASSIGNED:
            break
        if earlier.member is not None:
            reasons.append(f"{earlier.member} {earlier.what.value}")
    said = ", ".join(reasons[::-1][:REASONS_LOGGED])
    more = f" and {len(reasons) - REASONS_LOGGED} more" if len(reasons) > REASONS_LOGGED else ""
    shares = [count for _, count in event.assigned]
    because = f"; because {said}{more}" if said else ""
    target = f"{many(len(shares), 'member')}{shares_of(shares)}"
    return f"group {group_id} has a target for epoch {event.generation}: {target}{because}"
