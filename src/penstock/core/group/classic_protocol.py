"""Requests of the classic protocol: join, sync, heartbeat and leave.

Each request is checked, then answered or parked (`member_sessions`). It may start or advance a rebalance (`rebalance`).
Must not know: the log, other kinds of groups, versions of the wire.
"""

from __future__ import annotations

from penstock.core.group.classic import ClassicGroup, ClassicMember, subscribed_topics
from penstock.core.group.exchange import (
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
    Protocols,
    SyncRequest,
)
from penstock.core.group.member_sessions import MemberSessions
from penstock.core.group.narration import Narrator
from penstock.core.group.rebalance import Rebalance, assigned, joined
from penstock.core.group.settings import GroupSettings
from penstock.core.group.states import Act, Request, State
from penstock.core.group.story import What
from penstock.core.shard.exchange import Outcome, Token
from penstock.core.shard.wall_clock import WallClock
from penstock.model.errors import ApiError, ErrorCode


class ClassicProtocol:
    def __init__(
        self,
        settings: GroupSettings,
        rebalance: Rebalance,
        sessions: MemberSessions,
        narrator: Narrator,
        wall: WallClock,
    ) -> None:
        self.settings = settings
        self._rebalance = rebalance
        self._sessions = sessions
        self._narrator = narrator
        self._wall = wall

    # -- join ---------------------------------------------------------------------------

    def join(self, group: ClassicGroup, request: JoinRequest, token: Token, now_ms: int, out: Outcome) -> None:
        member_id = request.member_id
        if not self._has_room(group, member_id):
            self._drop(group, member_id, ErrorCode.GROUP_MAX_SIZE_REACHED, out)
            if group.state is State.PREPARING:
                self._rebalance.complete_if_all_joined(group, now_ms, out)  # they may have waited only for this member
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
        """During a rebalance, `group.max.size` counts the members that have joined it."""
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
            # The id is only pending, so a client that retries does not leave a ghost member each time.
            group.pending[member_id] = None
            self._sessions.expect(group, member_id, now_ms + request.session_timeout_ms)
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
        group.came_ms = now_ms
        group.park_join(member, token)
        # A new member sends no heartbeats while it waits, so it gets a longer session until then.
        self._sessions.expect(group, member_id, now_ms + self.settings.new_member_join_timeout_ms)
        self._narrator.tell(group, now_ms, What.JOINED, member.label, request.reason)
        self._rebalance.go_on(group, group.answer(Request.JOIN_NEW), now_ms, out)

    def _rejoin(self, group: ClassicGroup, request: JoinRequest, token: Token, now_ms: int, out: Outcome) -> None:
        member = group.check_member(request.member_id, request.instance_id)
        is_changed = member.protocols != request.protocols
        leads_stable = group.state is State.STABLE and group.is_leader(member.member_id)
        act = group.answer(Request.REJOIN_CHANGED if is_changed or leads_stable else Request.REJOIN_SAME)
        if act is Act.ANSWER:
            # The response to its last request was lost: send it again.
            is_leader = group.is_leader(member.member_id)
            out.reply(token, joined(group, member, with_members=is_leader))
            return
        # The metadata also lists owned partitions, which change with every rebalance.
        has_other_topics = is_changed and _topics(member.protocols) != _topics(request.protocols)
        if group.state is not State.PREPARING or has_other_topics:
            what = What.CHANGED if has_other_topics else What.REJOINED
            self._narrator.tell(group, now_ms, what, member.label, request.reason)
        group.update(member, request)
        self._sessions.park_join(group, member, token, out)
        self._rebalance.go_on(group, act, now_ms, out)

    def _take_over(
        self,
        group: ClassicGroup,
        predecessor: ClassicMember,
        request: JoinRequest,
        token: Token,
        now_ms: int,
        out: Outcome,
    ) -> None:
        """A static member has restarted: fence the old member id and keep its assignment."""
        old_leader = group.leader
        self._sessions.release(group, predecessor, ErrorCode.FENCED_INSTANCE_ID, out)
        self._sessions.end(group, predecessor.member_id)
        member = group.replace_static(predecessor, request.new_member_id)
        group.update(member, request)
        self._sessions.keep_alive(group, member, now_ms)
        self._narrator.tell(group, now_ms, What.REPLACED, member.label, request.reason, is_reason=False)
        if group.state is State.STABLE and group.select_protocol() == group.protocol_name:
            # The other members need not know. Before version 9, a leader cannot be told to skip the
            # assignment, so the reply names the old member id as leader.
            is_leader = request.can_skip_assignment and group.is_leader(member.member_id)
            reply = joined(group, member, with_members=is_leader)
            leader = old_leader if not request.can_skip_assignment else group.leader
            out.reply(token, reply._replace(skip_assignment=is_leader, leader=leader or ""))
            assignments = {other.member_id: other.assignment for other in group.members.values()}
            out.records.append(group.metadata_record(assignments, self._wall.at(now_ms)))
            out.reload_if_lost = True
            return
        self._sessions.park_join(group, member, token, out)
        if group.state is State.PREPARING:
            self._rebalance.complete_if_all_joined(group, now_ms, out)
        else:
            group.reasons.add(f"{member.label} started again")
            self._rebalance.prepare(group, now_ms, out)

    def _drop(self, group: ClassicGroup, member_id: str, code: ErrorCode, out: Outcome) -> None:
        """Remove a pending or waiting member that exceeds the group's maximum size."""
        self._sessions.end(group, member_id)
        member = group.members.get(member_id)
        if member is not None:
            self._sessions.release(group, member, code, out)
        group.remove(member_id)

    # -- sync --------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncRequest, token: Token, now_ms: int, out: Outcome) -> None:
        if group.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.check_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        act = group.answer(Request.SYNC)
        self._rebalance.note_sync(group, member.member_id)
        if act is Act.ANSWER:
            self._sessions.keep_alive(group, member, now_ms)
            out.reply(token, assigned(group, member.assignment))
            return
        self._sessions.park_sync(member, token, out)
        if group.is_leader(member.member_id):
            self._rebalance.assign(group, request.assignments, now_ms, out)

    # -- heartbeat ---------------------------------------------------------------------

    def heartbeat(
        self, group: ClassicGroup, request: HeartbeatRequest, token: Token, now_ms: int, out: Outcome
    ) -> None:
        if group.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.check_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        # Also if the response tells the member to rejoin: it is alive.
        self._sessions.keep_alive(group, member, now_ms)
        group.answer(Request.HEARTBEAT)
        self._sessions.answer_heartbeat(member, ErrorCode.NONE, out)
        hold_ms = min(self.settings.heartbeat_hold_ms, member.session_timeout_ms // 3)
        if request.may_wait and hold_ms > 0:
            # A client learns of a rebalance from a heartbeat response and sends heartbeats only every
            # few seconds. A parked heartbeat is answered as soon as a rebalance begins.
            self._sessions.park_heartbeat(group, member, token, now_ms + hold_ms)
        else:
            out.reply(token, HeartbeatReply(ErrorCode.NONE))

    def held_long_enough(self, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        """Answer the parked heartbeat. The session is not extended, because the member sent nothing since."""
        member = group.members.get(member_id)
        if member is not None:
            self._sessions.answer_heartbeat(member, ErrorCode.NONE, out)

    def step_aside(self, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        """The member is about to leave: answer its parked requests, which block the connection."""
        member = group.members.get(member_id)
        if member is not None:
            self._sessions.release(group, member, ErrorCode.REBALANCE_IN_PROGRESS, out)

    # -- leaving -----------------------------------------------------------------------

    def leave(self, group: ClassicGroup, request: LeaveRequest, token: Token, now_ms: int, out: Outcome) -> None:
        if group.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        errors = tuple(self._leave_one(group, leaving, now_ms, out) for leaving in request.members)
        if ErrorCode.NONE in errors:
            self._rebalance.go_on(group, group.answer(Request.MEMBER_GONE), now_ms, out)
        out.reply(token, LeaveReply(errors))

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember, now_ms: int, out: Outcome) -> ErrorCode:
        member_id = leaving.member_id
        if member_id in group.pending:
            group.remove(member_id)
            self._sessions.end(group, member_id)
            return ErrorCode.NONE
        if not member_id and leaving.instance_id is not None:
            # An operator removes a static member by its instance id.
            member_id = group.instances.get(leaving.instance_id, "")
        try:
            member = group.check_member(member_id, leaving.instance_id)
        except ApiError as error:
            return error.code
        self._sessions.remove(group, member, out)
        group.went_ms = now_ms
        self._narrator.tell(group, now_ms, What.LEFT, member.label, leaving.reason)
        return ErrorCode.NONE

    def session_over(self, group: ClassicGroup, member_id: str, now_ms: int, out: Outcome) -> None:
        """No heartbeat for a whole session. A member with a parked request stays, unless it has no generation yet."""
        member = group.members.get(member_id)
        if member is None:
            if group.pending.pop(member_id, self) is None and group.state is State.PREPARING:
                self._rebalance.complete_if_all_joined(group, now_ms, out)
            return
        if member.is_parked and not member.is_new:
            return
        self._sessions.remove(group, member, out)
        group.went_ms = now_ms
        self._narrator.tell(
            group, now_ms, What.TIMED_OUT, member.label, f"no heartbeat for {member.session_timeout_ms} ms"
        )
        self._rebalance.go_on(group, group.answer(Request.MEMBER_GONE), now_ms, out)

    # -- groups as a whole -------------------------------------------------------------

    def shrink(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """After a load, a group above `group.max.size` rebalances, and the excess members cannot join."""
        if group.state is State.STABLE and len(group.members) > self.settings.max_size:
            group.reasons.add(f"the group has more than {self.settings.max_size} members")
            self._rebalance.prepare(group, now_ms, out)

    def interrupt(self, group: ClassicGroup, out: Outcome) -> None:
        """Make waiting members rejoin, because the group changes its protocol."""
        for member in group.members.values():
            self._sessions.release(group, member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        out.reload_if_lost = True

    def start_over(self, group: ClassicGroup, now_ms: int, out: Outcome, *, rebalances: bool) -> None:
        """The group was a consumer group until now: start the members' sessions, and rebalance if `rebalances`."""
        for member in group.members.values():
            self._sessions.keep_alive(group, member, now_ms)
        if rebalances and group.state is State.STABLE:
            group.reasons.add("the group moved back from the consumer protocol")
            self._rebalance.prepare(group, now_ms, out)

    def forget(self, group: ClassicGroup) -> None:
        """The group is deleted."""
        self._sessions.forget_all(group)
        self._rebalance.forget(group)


def _topics(protocols: Protocols) -> list[tuple[str, list[str] | None]]:
    return [(name, subscribed_topics(metadata)) for name, metadata in protocols]


def _differs(asked: str | None, chosen: str | None) -> bool:
    return asked is not None and chosen is not None and asked != chosen
