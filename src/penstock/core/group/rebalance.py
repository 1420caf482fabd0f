"""The classic rebalance protocol: join, sync, heartbeat, leave, and what happens when they do not come.

A rebalance has two phases. Join: every member asks for the next generation and waits; it ends
when all have asked, or at the longest rebalance timeout, without those who have not. Sync: the
leader hands in the assignment, which is stored, and every member gets its part.

All of it is soft state but what `GroupMetadata` stores: a stable group, or that it is empty.
Must not know: the log, other kinds of groups, how deadlines are waited for.
"""

from __future__ import annotations

from penstock.core.group.classic import ClassicGroup, ClassicMember
from penstock.core.group.embedded_protocol import read_assignment
from penstock.core.group.exchange import (
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
    Outcome,
    SyncReply,
    SyncRequest,
    Token,
)
from penstock.core.group.settings import GroupSettings
from penstock.core.group.states import Act, Move, Request, State
from penstock.core.group.story import Holding, Stories, StoryEvent, What, holding
from penstock.core.group.timers import TimerKey, Timers
from penstock.model.errors import ApiError, ErrorCode

REASONS_LOGGED = 8
SETTLING_LIMIT = 4  # times the quiet that is waited for
ALONE_SHARE = 0.4  # of that quiet is enough for somebody who comes to an empty group and stays alone


class ClassicProtocol:
    def __init__(self, settings: GroupSettings, timers: Timers, stories: Stories) -> None:
        self.settings = settings
        self._timers = timers
        self._stories = stories

    # -- join ---------------------------------------------------------------------------

    def join(self, group: ClassicGroup, request: JoinRequest, token: Token, now_ms: int, out: Outcome) -> None:
        member_id = request.member_id
        if not self._has_room(group, member_id):
            self._drop(group, member_id, ErrorCode.GROUP_MAX_SIZE_REACHED, out)
            if group.state is State.PREPARING:
                self._complete_if_all_joined(group, now_ms, out)  # perhaps the others waited for this one
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if group.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not group.supports(request.protocol_type, request.protocols):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not member_id:
            self._join_without_id(group, request, token, now_ms, out)
        elif member_id in group.pending:
            if request.instance_id is not None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._add(group, member_id, request, token, now_ms, out)
        else:
            self._rejoin(group, request, token, now_ms, out)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """`group.max.size` counts those who take part in the coming generation."""
        member = group.members.get(member_id)
        if group.state is State.PREPARING:
            is_in = member is not None and member.join_token is not None
            return is_in or group.awaiting_join < self.settings.max_size
        if group.state in (State.COMPLETING, State.STABLE):
            return member is not None or len(group.members) < self.settings.max_size
        return True

    def _join_without_id(
        self, group: ClassicGroup, request: JoinRequest, token: Token, now_ms: int, out: Outcome
    ) -> None:
        member_id = request.new_member_id
        if request.instance_id is not None:
            existing = group.instances.get(request.instance_id)
            if existing is None:
                self._add(group, member_id, request, token, now_ms, out)
            else:
                self._take_over(group, group.members[existing], request, token, now_ms, out)
        elif request.requires_known_member_id:
            # So that a client which gives up and tries again does not leave a ghost behind each time.
            group.pending[member_id] = None
            self._timers.set(_session(group, member_id), now_ms + request.session_timeout_ms)
            out.reply(token, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, member_id, request, token, now_ms, out)

    def _add(
        self, group: ClassicGroup, member_id: str, request: JoinRequest, token: Token, now_ms: int, out: Outcome
    ) -> None:
        member = ClassicMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )
        member.is_new = True
        if group.state is State.PREPARING and group.is_initial:
            group.has_newcomers = True
        group.add(member, request.protocol_type)
        group.membership_changed_ms = now_ms
        group.park_join(member, token)
        # A new member does not send heartbeats while it waits, so its session is a long one until then.
        self._timers.set(_session(group, member_id), now_ms + self.settings.new_member_join_timeout_ms)
        self._tell(group, now_ms, What.JOINED, member.label, request.reason)
        self._rebalance_or_complete(group, group.answer(Request.JOIN_NEW), now_ms, out)

    def _rejoin(self, group: ClassicGroup, request: JoinRequest, token: Token, now_ms: int, out: Outcome) -> None:
        member = group.check_member(request.member_id, request.instance_id)
        is_changed = member.protocols != request.protocols
        leads_stable = group.state is State.STABLE and group.is_leader(member.member_id)
        act = group.answer(Request.REJOIN_CHANGED if is_changed or leads_stable else Request.REJOIN_SAME)
        if act is Act.ANSWER:
            # It did not get the answer to its last request: the same again.
            is_leader = group.is_leader(member.member_id)
            out.reply(token, self._joined(group, member, with_members=is_leader))
            return
        if group.state is not State.PREPARING or is_changed:
            self._tell(group, now_ms, What.CHANGED if is_changed else What.REJOINED, member.label, request.reason)
        group.update(member, request)
        self._park_join(group, member, token, out)
        self._rebalance_or_complete(group, act, now_ms, out)

    def _take_over(
        self,
        group: ClassicGroup,
        predecessor: ClassicMember,
        request: JoinRequest,
        token: Token,
        now_ms: int,
        out: Outcome,
    ) -> None:
        """A static member starts again: its predecessor is fenced, its assignment kept."""
        old_leader = group.leader
        self._release(group, predecessor, ErrorCode.FENCED_INSTANCE_ID, out)
        self._timers.cancel(_session(group, predecessor.member_id))
        member = group.replace_static(predecessor, request.new_member_id)
        group.update(member, request)
        self._timers.set(_session(group, member.member_id), now_ms + member.session_timeout_ms)
        self._tell(group, now_ms, What.REPLACED, member.label, request.reason, is_reason=False)
        if group.state is State.STABLE and group.select_protocol() == group.protocol_name:
            # Nobody else needs to know. Until version 9 a leader cannot be told to leave the
            # assignment as it is, so it is told that its predecessor leads.
            is_leader = request.can_skip_assignment and group.is_leader(member.member_id)
            reply = self._joined(group, member, with_members=is_leader)
            leader = old_leader if not request.can_skip_assignment else group.leader
            out.reply(token, reply._replace(skip_assignment=is_leader, leader=leader or ""))
            assignments = {other.member_id: other.assignment for other in group.members.values()}
            out.records.append(group.metadata_record(assignments, now_ms))
            out.reload_if_lost = True
            return
        self._park_join(group, member, token, out)
        if group.state is State.PREPARING:
            self._complete_if_all_joined(group, now_ms, out)
        else:
            group.reasons.append(f"{member.label} started again")
            self._prepare(group, now_ms, out)

    def _park_join(self, group: ClassicGroup, member: ClassicMember, token: Token, out: Outcome) -> None:
        older = group.park_join(member, token)
        if older is not None:
            # The member asked again, so nobody waits for that answer any more.
            out.reply(older, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def _joined(self, group: ClassicGroup, member: ClassicMember, *, with_members: bool) -> JoinReply:
        return JoinReply(
            ErrorCode.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            group.leader or "",
            group.joined_members() if with_members else (),
        )

    # -- phases -------------------------------------------------------------------------

    def _rebalance_or_complete(self, group: ClassicGroup, act: Act, now_ms: int, out: Outcome) -> None:
        if act is Act.REBALANCE:
            self._prepare(group, now_ms, out)
        elif act in (Act.PARK, Act.CHECK):
            self._complete_if_all_joined(group, now_ms, out)

    def _complete_if_all_joined(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        # An initial rebalance waits for its delay, in case more members come.
        if not group.is_initial and group.all_joined:
            self._complete_when_quiet(group, now_ms, out)

    def _complete_when_quiet(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Everybody is there. Members seldom come or go alone, and a rebalance too many costs them
        seconds: they hear of the next one from a heartbeat that they have just sent."""
        settle_ms = self.settings.settle_ms
        is_alone = group.is_fresh and len(group.members) + len(group.pending) == 1
        needed_ms = int(settle_ms * ALONE_SHARE) if is_alone else settle_ms
        quiet_ms = min(group.membership_changed_ms + needed_ms, group.prepared_ms + SETTLING_LIMIT * settle_ms)
        if group.members and now_ms < quiet_ms:
            group.is_settling = True
            self._timers.set(_join(group), quiet_ms)
        else:
            self.complete_join(group, now_ms, out)

    def _prepare(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Begin a rebalance: the join phase."""
        out.reload_if_lost = True
        for member in group.members.values():
            self._answer_heartbeat(member, ErrorCode.REBALANCE_IN_PROGRESS, out)
            self._release_sync(group, member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS), now_ms, out)
        self._end_sync_phase(group)
        delay_ms = self.settings.initial_rebalance_delay_ms
        group.is_fresh = group.is_empty
        group.is_initial = group.is_fresh and delay_ms > 0
        group.is_settling = False
        group.prepared_ms = now_ms
        group.move(Move.PREPARE, now_ms)
        if group.is_initial:
            group.initial_delay_ms = delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.has_newcomers = False
            self._timers.set(_join(group), now_ms + delay_ms)
        elif group.is_fresh or group.all_joined:
            self._complete_when_quiet(group, now_ms, out)
        else:
            self._timers.set(_join(group), now_ms + group.rebalance_timeout_ms)

    def join_phase_over(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """The deadline of the join phase has passed."""
        if group.state is not State.PREPARING:
            return
        if group.is_settling:
            group.is_settling = False
            if group.is_fresh or group.all_joined:
                self._complete_when_quiet(group, now_ms, out)
            else:  # somebody has come meanwhile and not yet joined
                self._timers.set(_join(group), group.prepared_ms + group.rebalance_timeout_ms)
            return
        if group.is_initial and group.has_newcomers and group.initial_remaining_ms > 0:
            # Members still come: wait once more, at most the rebalance timeout in all.
            group.has_newcomers = False
            waited_ms = group.initial_delay_ms
            group.initial_delay_ms = min(self.settings.initial_rebalance_delay_ms, group.initial_remaining_ms)
            group.initial_remaining_ms = max(group.initial_remaining_ms - waited_ms, 0)
            self._timers.set(_join(group), now_ms + group.initial_delay_ms)
            return
        self.complete_join(group, now_ms, out)

    def complete_join(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """The join phase ends: without those who did not come, unless they are static."""
        self._timers.cancel(_join(group))
        out.reload_if_lost = True
        absent = [
            member for member in group.members.values() if member.join_token is None and member.instance_id is None
        ]
        for member in absent:
            self._remove(group, member, out)
            self._tell(group, now_ms, What.NOT_REJOINED, member.label)
        if not group.members:
            out.records.append(group.empty_record(now_ms))
            self._tell(group, now_ms, What.EMPTY, is_reason=False)
            out.notices.append(f"group {group.group_id} is empty at generation {group.generation + 1}{_why(group)}")
            group.reasons.clear()
            return
        if not group.elect_leader():
            # Only static members are left and none has come back: they have until their sessions end.
            self._timers.set(_join(group), now_ms + group.rebalance_timeout_ms)
            return
        self._form(group, now_ms, out)

    def _form(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """A new generation: everybody is told, the leader with the list of members."""
        group.generation += 1
        group.protocol_name = group.select_protocol()
        group.is_initial = False
        group.move(Move.FORM, now_ms)
        group.pending_sync = dict.fromkeys(group.members)
        for member in group.members.values():
            token = group.release_join(member)
            if token is not None:
                is_leader = group.is_leader(member.member_id)
                out.reply(token, self._joined(group, member, with_members=is_leader))
            member.is_new = False
            self._timers.set(_session(group, member.member_id), now_ms + member.session_timeout_ms)
        self._timers.set(_sync(group), now_ms + group.rebalance_timeout_ms)

    # -- sync ---------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncRequest, token: Token, now_ms: int, out: Outcome) -> None:
        if group.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.check_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        act = group.answer(Request.SYNC)
        self._note_sync(group, member.member_id)
        if act is Act.ANSWER:
            out.reply(token, self._assigned(group, member.assignment))
            return
        older, member.sync_token = member.sync_token, token
        if older is not None:
            out.reply(older, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        if group.is_leader(member.member_id):
            self._assign(group, request.assignments, now_ms, out)

    def _assign(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, out: Outcome) -> None:
        """The leader's assignment: `replay` makes the group stable, the members hear when it is committed."""
        out.records.append(group.metadata_record(assignments, now_ms))
        out.reload_if_lost = True
        for member in group.members.values():
            reply = self._assigned(group, assignments.get(member.member_id, b""))
            self._release_sync(group, member, reply, now_ms, out)
        self._tell_assigned(group, assignments, now_ms, out)

    def _assigned(self, group: ClassicGroup, assignment: bytes) -> SyncReply:
        return SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol_name, assignment)

    def _release_sync(
        self, group: ClassicGroup, member: ClassicMember, reply: SyncReply, now_ms: int, out: Outcome
    ) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            out.reply(token, reply)
            self._timers.set(_session(group, member.member_id), now_ms + member.session_timeout_ms)

    def _note_sync(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.pop(member_id, None)
        if not group.pending_sync:
            self._timers.cancel(_sync(group))

    def _end_sync_phase(self, group: ClassicGroup) -> None:
        group.pending_sync.clear()
        self._timers.cancel(_sync(group))

    def sync_phase_over(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Members that joined and never asked for their assignment are removed."""
        if group.state not in (State.COMPLETING, State.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            member = group.members[member_id]
            self._remove(group, member, out)
            self._tell(group, now_ms, What.NOT_SYNCED, member.label)
        self._prepare(group, now_ms, out)

    # -- heartbeat ----------------------------------------------------------------------

    def heartbeat(
        self, group: ClassicGroup, request: HeartbeatRequest, token: Token, now_ms: int, out: Outcome
    ) -> None:
        if group.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.check_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        # Also when the answer is that a rebalance waits for it: the member is alive.
        self.keep_alive(group, member, now_ms)
        group.answer(Request.HEARTBEAT)
        self._answer_heartbeat(member, ErrorCode.NONE, out)
        hold_ms = min(self.settings.heartbeat_hold_ms, member.session_timeout_ms // 3)
        if request.may_wait and hold_ms > 0:
            # A client learns of a rebalance from the answer to a heartbeat, and sends one every few
            # seconds: an answer that waits here reaches it at once.
            member.heartbeat_token = token
            self._timers.set(_hold(group, member.member_id), now_ms + hold_ms)
        else:
            out.reply(token, HeartbeatReply(ErrorCode.NONE))

    def held_long_enough(self, group: ClassicGroup, member_id: str, now_ms: int, out: Outcome) -> None:
        member = group.members.get(member_id)
        if member is not None and member.heartbeat_token is not None:
            self.keep_alive(group, member, now_ms)
            self._answer_heartbeat(member, ErrorCode.NONE, out)

    def step_aside(self, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        """The member is about to leave, and what it has parked is in the way of saying so."""
        member = group.members.get(member_id)
        if member is not None:
            self._release(group, member, ErrorCode.REBALANCE_IN_PROGRESS, out)

    def _answer_heartbeat(self, member: ClassicMember, code: ErrorCode, out: Outcome) -> None:
        token, member.heartbeat_token = member.heartbeat_token, None
        if token is not None:
            out.reply(token, HeartbeatReply(code))

    def keep_alive(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        self._timers.set(_session(group, member.member_id), now_ms + member.session_timeout_ms)

    # -- leaving ------------------------------------------------------------------------

    def leave(self, group: ClassicGroup, request: LeaveRequest, token: Token, now_ms: int, out: Outcome) -> None:
        if group.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        errors = tuple(self._leave_one(group, leaving, now_ms, out) for leaving in request.members)
        if ErrorCode.NONE in errors:
            self._rebalance_or_complete(group, group.answer(Request.MEMBER_GONE), now_ms, out)
        out.reply(token, LeaveReply(errors))

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember, now_ms: int, out: Outcome) -> ErrorCode:
        member_id = leaving.member_id
        if member_id in group.pending:
            group.remove(member_id)
            self._timers.cancel(_session(group, member_id))
            return ErrorCode.NONE
        if not member_id and leaving.instance_id is not None:
            # An operator removes a static member by its instance id.
            member_id = group.instances.get(leaving.instance_id, "")
        try:
            member = group.check_member(member_id, leaving.instance_id)
        except ApiError as error:
            return error.code
        self._remove(group, member, out)
        group.membership_changed_ms = now_ms
        self._tell(group, now_ms, What.LEFT, member.label, leaving.reason)
        return ErrorCode.NONE

    def session_over(self, group: ClassicGroup, member_id: str, now_ms: int, out: Outcome) -> None:
        """No heartbeat for a whole session. Who waits for us is excused, except from its first generation."""
        member = group.members.get(member_id)
        if member is None:
            if group.pending.pop(member_id, self) is None and group.state is State.PREPARING:
                self._complete_if_all_joined(group, now_ms, out)
            return
        if member.is_parked and not member.is_new:
            return
        self._remove(group, member, out)
        group.membership_changed_ms = now_ms
        self._tell(group, now_ms, What.TIMED_OUT, member.label, f"no heartbeat for {member.session_timeout_ms} ms")
        self._rebalance_or_complete(group, group.answer(Request.MEMBER_GONE), now_ms, out)

    def shrink(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """After a load: a group above `group.max.size` is asked to join again, which some then cannot."""
        if group.state is State.STABLE and len(group.members) > self.settings.max_size:
            group.reasons.append(f"the group has more than {self.settings.max_size} members")
            self._prepare(group, now_ms, out)

    def interrupt(self, group: ClassicGroup, out: Outcome) -> None:
        """Whoever waits shall join again: the group becomes another."""
        for member in group.members.values():
            self._release(group, member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        out.reload_if_lost = True

    def start_over(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """The group was another until now: its members join again."""
        for member in group.members.values():
            self.keep_alive(group, member, now_ms)
        if group.state is State.STABLE:
            group.reasons.append("the group came from the consumer protocol")
            self._prepare(group, now_ms, out)

    def forget(self, group: ClassicGroup) -> None:
        """The group is deleted."""
        for member_id in (*group.members, *group.pending):
            self._timers.cancel(_session(group, member_id))
        self._timers.cancel(_join(group))
        self._timers.cancel(_sync(group))

    def _drop(self, group: ClassicGroup, member_id: str, code: ErrorCode, out: Outcome) -> None:
        """Who was given an id, or waits already, and is one too many."""
        self._timers.cancel(_session(group, member_id))
        member = group.members.get(member_id)
        if member is not None:
            self._release(group, member, code, out)
        group.remove(member_id)

    def _remove(self, group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        self._release(group, member, ErrorCode.UNKNOWN_MEMBER_ID, out)
        self._timers.cancel(_session(group, member.member_id))
        group.remove(member.member_id)

    def _release(self, group: ClassicGroup, member: ClassicMember, code: ErrorCode, out: Outcome) -> None:
        """Nothing more will come for what it has parked."""
        self._answer_heartbeat(member, code, out)
        token = group.release_join(member)
        if token is not None:
            member_id = member.member_id if code is ErrorCode.FENCED_INSTANCE_ID else ""
            out.reply(token, JoinReply(code, member_id))
        token, member.sync_token = member.sync_token, None
        if token is not None:
            out.reply(token, SyncReply(code))

    # -- for people ---------------------------------------------------------------------

    def _tell(
        self,
        group: ClassicGroup,
        now_ms: int,
        what: What,
        member: str | None = None,
        why: str = "",
        *,
        is_reason: bool = True,
    ) -> None:
        self._stories.tell(group.group_id, StoryEvent(now_ms, group.generation, what, member, why))
        if is_reason and member is not None:
            group.reasons.append(f"{member} {what.value}" + (f" ({why})" if why else ""))

    def _tell_assigned(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, out: Outcome) -> None:
        held = _holdings(group, assignments)
        counts = tuple((label, sum(len(partitions) for _, partitions in one)) for label, one in held.items())
        why, holdings = group.protocol_name or "", tuple(held.values())
        event = StoryEvent(now_ms, group.generation, What.ASSIGNED, group.leader, why, counts, holdings)
        self._stories.tell(group.group_id, event)
        shares = sorted(count for _, count in counts)
        spread = f", {sum(shares)} partitions, {shares[0]} to {shares[-1]} each" if shares else ""
        out.notices.append(
            f"group {group.group_id} is stable at generation {group.generation}: {len(group.members)} members "
            f"({group.protocol_name}){spread}{_why(group)}"
        )
        group.reasons.clear()


def _holdings(group: ClassicGroup, assignments: dict[str, bytes]) -> dict[str, Holding]:
    """By member, where the assignment is one that can be read."""
    held: dict[str, Holding] = {}
    if group.uses_consumer_protocol:
        for member in group.members.values():
            try:
                partitions, _ = read_assignment(assignments.get(member.member_id, b""))
            except ApiError:
                continue
            held[member.label] = holding(partitions)
    return held


def _why(group: ClassicGroup) -> str:
    reasons = group.reasons[:REASONS_LOGGED]
    if len(group.reasons) > REASONS_LOGGED:
        reasons.append(f"and {len(group.reasons) - REASONS_LOGGED} more")
    return f"; because {', '.join(reasons)}" if reasons else ""


def _differs(asked: str | None, chosen: str | None) -> bool:
    return asked is not None and chosen is not None and asked != chosen


def _session(group: ClassicGroup, member_id: str) -> TimerKey:
    return ("session", group.group_id, member_id)


def _hold(group: ClassicGroup, member_id: str) -> TimerKey:
    return ("hold", group.group_id, member_id)


def _join(group: ClassicGroup) -> TimerKey:
    return ("join", group.group_id)


def _sync(group: ClassicGroup) -> TimerKey:
    return ("sync", group.group_id)
