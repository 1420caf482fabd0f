"""The phases of a rebalance of a classic group, and their timeouts.

Join phase: every member sends JoinGroup and waits. The phase ends when all members have joined and
no more members come or go, or after the longest rebalance timeout without the missing members. Sync
phase: the leader sends the assignment, which is stored, and every member gets its part.
All of this is soft state, except what `GroupMetadata` stores: a stable group, or an empty one.
Must not know: requests and their checks (`classic_protocol`), sessions (`member_sessions`), the log,
how deadlines are awaited.
"""

from __future__ import annotations

from penstock.core.group.classic import ClassicGroup, ClassicMember
from penstock.core.group.exchange import JoinReply, SyncReply
from penstock.core.group.member_sessions import MemberSessions
from penstock.core.group.narration import Narrator
from penstock.core.group.settings import GroupSettings
from penstock.core.group.states import Act, Move, State
from penstock.core.group.story import What
from penstock.core.shard.exchange import Outcome
from penstock.core.shard.timers import TimerKey, Timers
from penstock.core.shard.wall_clock import WallClock
from penstock.model.errors import ErrorCode

SETTLING_LIMIT = 4  # multiple of the quiet time, at most
ALONE_SHARE = 0.4  # share of the quiet time for a single member in an empty group
LOOK_AGAIN_MS = 1_000  # minimum wait for static members that have not joined: their timeout may be 0
GONE_SHARE = 0.4  # share of the quiet time after a leave: members that stop together leave within a few round trips


class Rebalance:
    def __init__(
        self, settings: GroupSettings, timers: Timers, sessions: MemberSessions, narrator: Narrator, wall: WallClock
    ) -> None:
        self.settings = settings
        self._timers = timers
        self._sessions = sessions
        self._narrator = narrator
        self._wall = wall

    # -- join phase ---------------------------------------------------------------------

    def go_on(self, group: ClassicGroup, act: Act, now_ms: int, out: Outcome) -> None:
        """Start a rebalance, or check whether the current one can end its join phase."""
        if act is Act.REBALANCE:
            self.prepare(group, now_ms, out)
        elif act in (Act.PARK, Act.CHECK):
            self.complete_if_all_joined(group, now_ms, out)

    def complete_if_all_joined(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        # An initial rebalance waits for its delay, in case more members join.
        if not group.is_initial and group.all_joined:
            self._complete_when_quiet(group, now_ms, out)

    def _complete_when_quiet(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """All members have joined. Members seldom come or go alone, and an unnecessary rebalance costs them
        seconds: they learn of the next one only from their next heartbeat."""
        settle_ms = self.settings.settle_ms
        is_alone = group.is_fresh and len(group.members) + len(group.pending) == 1
        quiet_ms = max(
            group.came_ms + int(settle_ms * (ALONE_SHARE if is_alone else 1.0)),
            group.went_ms + int(settle_ms * GONE_SHARE),
        )
        quiet_ms = min(quiet_ms, group.prepared_ms + SETTLING_LIMIT * settle_ms)
        if group.members and now_ms < quiet_ms:
            group.is_settling = True
            self._timers.set(_join_key(group), quiet_ms)
        else:
            self.complete_join(group, now_ms, out)

    def prepare(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Begin a rebalance: the join phase."""
        out.reload_if_lost = True
        for member in group.members.values():
            self._sessions.answer_heartbeat(member, ErrorCode.REBALANCE_IN_PROGRESS, out)
            self._sessions.answer_sync(group, member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS), now_ms, out)
        self._end_sync_phase(group)
        delay_ms = self.settings.initial_rebalance_delay_ms
        group.is_fresh = group.is_empty
        group.is_initial = group.is_fresh and delay_ms > 0
        group.is_settling = False
        group.prepared_ms = now_ms
        group.move(Move.PREPARE, self._wall.at(now_ms))
        if group.is_initial:
            group.initial_delay_ms = delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.has_newcomers = False
            self._timers.set(_join_key(group), now_ms + delay_ms)
        elif group.is_fresh or group.all_joined:
            self._complete_when_quiet(group, now_ms, out)
        else:
            self._timers.set(_join_key(group), now_ms + group.rebalance_timeout_ms)

    def join_phase_over(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """The deadline of the join phase has passed."""
        if group.state is not State.PREPARING:
            return
        if group.is_settling:
            group.is_settling = False
            if group.is_fresh or group.all_joined:
                self._complete_when_quiet(group, now_ms, out)
            else:  # a new member has not joined yet
                self._timers.set(_join_key(group), group.prepared_ms + group.rebalance_timeout_ms)
            return
        if group.is_initial and group.has_newcomers and group.initial_remaining_ms > 0:
            # Members still come: wait once more, up to the rebalance timeout in total.
            group.has_newcomers = False
            waited_ms = group.initial_delay_ms
            group.initial_delay_ms = min(self.settings.initial_rebalance_delay_ms, group.initial_remaining_ms)
            group.initial_remaining_ms = max(group.initial_remaining_ms - waited_ms, 0)
            self._timers.set(_join_key(group), now_ms + group.initial_delay_ms)
            return
        self.complete_join(group, now_ms, out)

    def complete_join(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """End the join phase without the missing members, unless they are static."""
        self._timers.cancel(_join_key(group))
        out.reload_if_lost = True
        absent = [
            member for member in group.members.values() if member.join_token is None and member.instance_id is None
        ]
        for member in absent:
            self._sessions.remove(group, member, out)
            self._narrator.tell(group, now_ms, What.NOT_REJOINED, member.label)
        if not group.members:
            out.records.append(group.empty_record(self._wall.at(now_ms)))
            self._narrator.empty(group, now_ms, out)
            return
        if not group.elect_leader():
            # Only static members are left and none has joined: wait until their sessions end.
            self._timers.set(_join_key(group), now_ms + max(group.rebalance_timeout_ms, LOOK_AGAIN_MS))
            return
        self._form(group, now_ms, out)

    def _form(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Start a new generation: answer all members, and send the leader the list of members."""
        group.generation += 1
        group.protocol_name = group.select_protocol()
        group.is_initial = False
        group.move(Move.FORM, self._wall.at(now_ms))
        group.pending_sync = dict.fromkeys(group.members)
        for member in group.members.values():
            token = group.release_join(member)
            if token is not None:
                is_leader = group.is_leader(member.member_id)
                out.reply(token, joined(group, member, with_members=is_leader))
            member.is_new = False
            self._sessions.keep_alive(group, member, now_ms)
        self._timers.set(_sync_key(group), now_ms + group.rebalance_timeout_ms)

    # -- sync phase ---------------------------------------------------------------------

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, out: Outcome) -> None:
        """Store the leader's assignment. `replay` makes the group stable; the members are answered after the commit."""
        out.records.append(group.metadata_record(assignments, self._wall.at(now_ms)))
        out.reload_if_lost = True
        for member in group.members.values():
            reply = assigned(group, assignments.get(member.member_id, b""))
            self._sessions.answer_sync(group, member, reply, now_ms, out)
        self._narrator.assigned(group, assignments, now_ms, out)

    def forget(self, group: ClassicGroup) -> None:
        """The group is deleted."""
        self._timers.cancel(_join_key(group))
        self._timers.cancel(_sync_key(group))

    def note_sync(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.pop(member_id, None)
        if not group.pending_sync:
            self._timers.cancel(_sync_key(group))

    def _end_sync_phase(self, group: ClassicGroup) -> None:
        group.pending_sync.clear()
        self._timers.cancel(_sync_key(group))

    def sync_phase_over(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Remove members that joined and did not send SyncGroup."""
        if group.state not in (State.COMPLETING, State.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            member = group.members[member_id]
            self._sessions.remove(group, member, out)
            self._narrator.tell(group, now_ms, What.NOT_SYNCED, member.label)
        self.prepare(group, now_ms, out)


def joined(group: ClassicGroup, member: ClassicMember, *, with_members: bool) -> JoinReply:
    return JoinReply(
        ErrorCode.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader or "",
        group.joined_members() if with_members else (),
    )


def assigned(group: ClassicGroup, assignment: bytes) -> SyncReply:
    return SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol_name, assignment)


def _join_key(group: ClassicGroup) -> TimerKey:
    return ("join", group.group_id)


def _sync_key(group: ClassicGroup) -> TimerKey:
    return ("sync", group.group_id)
