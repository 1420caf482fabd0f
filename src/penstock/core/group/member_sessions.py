"""The sessions and parked requests of single members of classic groups.

A member has at most one parked join, sync and heartbeat. Its session is a deadline that every sign of life
extends. Must not know: generations and phases (`rebalance`), which requests are allowed (`classic_protocol`).
Invariant: a parked request is answered exactly once, before its member is removed.
"""

from __future__ import annotations

from penstock.core.group.classic import ClassicGroup, ClassicMember
from penstock.core.group.exchange import HeartbeatReply, JoinReply, SyncReply
from penstock.core.shard.exchange import Outcome, Token
from penstock.core.shard.timers import TimerKey, Timers
from penstock.model.errors import ErrorCode


class MemberSessions:
    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    # -- sessions -----------------------------------------------------------------------

    def keep_alive(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        self.expect(group, member.member_id, now_ms + member.session_timeout_ms)

    def expect(self, group: ClassicGroup, member_id: str, deadline_ms: int) -> None:
        """Expect a sign of life by the deadline, also from a pending member."""
        self._timers.set(_session_key(group, member_id), deadline_ms)

    def end(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(_session_key(group, member_id))

    def remove(self, group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        """End the session and remove the member from its group."""
        self.release(group, member, ErrorCode.UNKNOWN_MEMBER_ID, out)
        self.end(group, member.member_id)
        group.remove(member.member_id)

    def forget_all(self, group: ClassicGroup) -> None:
        """The group is deleted."""
        for member_id in (*group.members, *group.pending):
            self.end(group, member_id)
            self._timers.cancel(_hold_key(group, member_id))

    # -- parked requests ----------------------------------------------------------------

    def park_join(self, group: ClassicGroup, member: ClassicMember, token: Token, out: Outcome) -> None:
        older = group.park_join(member, token)
        if older is not None:
            # The member has sent its request again, so no client waits for this reply.
            out.reply(older, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def park_sync(self, member: ClassicMember, token: Token, out: Outcome) -> None:
        older, member.sync_token = member.sync_token, token
        if older is not None:
            out.reply(older, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))

    def answer_sync(
        self, group: ClassicGroup, member: ClassicMember, reply: SyncReply, now_ms: int, out: Outcome
    ) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            out.reply(token, reply)
            self.keep_alive(group, member, now_ms)

    def park_heartbeat(self, group: ClassicGroup, member: ClassicMember, token: Token, until_ms: int) -> None:
        member.heartbeat_token = token
        self._timers.set(_hold_key(group, member.member_id), until_ms)

    def answer_heartbeat(self, member: ClassicMember, code: ErrorCode, out: Outcome) -> None:
        token, member.heartbeat_token = member.heartbeat_token, None
        if token is not None:
            out.reply(token, HeartbeatReply(code))

    def release(self, group: ClassicGroup, member: ClassicMember, code: ErrorCode, out: Outcome) -> None:
        """Answer everything the member has parked with `code`."""
        self.answer_heartbeat(member, code, out)
        token = group.release_join(member)
        if token is not None:
            member_id = member.member_id if code is ErrorCode.FENCED_INSTANCE_ID else ""
            out.reply(token, JoinReply(code, member_id))
        token, member.sync_token = member.sync_token, None
        if token is not None:
            out.reply(token, SyncReply(code))


def _session_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return ("session", group.group_id, member_id)


def _hold_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return ("hold", group.group_id, member_id)
