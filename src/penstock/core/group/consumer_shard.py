"""Consumer groups of a shard: operations with tokens and outcomes, records, timers.

Serves the consumer groups among the shard's groups and leaves decisions to `consumer_protocol`.
The dictionary of groups is the shard's, so a group id is either a classic group or a
consumer group, never both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from penstock.core.group.assignors import EMPTY, Assignment
from penstock.core.group.classic import ClassicGroup
from penstock.core.group.classic_protocol import ClassicProtocol
from penstock.core.group.consumer_exchange import (
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    ConsumerSettings,
    DescribeConsumerGroupReply,
    DescribedConsumerMember,
)
from penstock.core.group.consumer_group import ConsumerGroup, Topics
from penstock.core.group.consumer_protocol import ConsumerProtocol, Gone, validate
from penstock.core.group.consumer_records import (
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    MemberAssignment,
)
from penstock.core.group.exchange import HeartbeatRequest, JoinRequest, LeaveReply, LeaveRequest
from penstock.core.group.migration import Migration
from penstock.core.group.records import GroupTombstone
from penstock.core.group.story import Stories, StoryEvent, What
from penstock.core.shard.exchange import Outcome, Token
from penstock.core.shard.timers import Timers
from penstock.core.shard.wall_clock import WallClock
from penstock.model.errors import ApiError, ErrorCode

Group: TypeAlias = ClassicGroup | ConsumerGroup
SettingsOf: TypeAlias = Callable[[str], ConsumerSettings]
"""By group id, because groups have their own settings."""


class ConsumerGroups:
    def __init__(
        self,
        groups: dict[str, Group],
        classic: ClassicProtocol,
        topics: Topics,
        settings_of: SettingsOf,
        timers: Timers,
        stories: Stories,
        wall: WallClock | None = None,
    ) -> None:
        self._groups = groups
        self._settings_of = settings_of
        self._stories = stories
        self.protocol = ConsumerProtocol(topics, timers, stories, wall)
        self.migration = Migration(self.protocol, classic, topics, timers, stories)

    # --- the log ---

    def replay(self, record: ConsumerGroupRecord) -> None:
        group = self._groups.get(record.group)
        if not isinstance(group, ConsumerGroup):
            if record.value is None:
                return  # compaction left a tombstone without its record
            # Committed offsets alone make a classic group without a protocol, which is replaced.
            group = self._groups[record.group] = ConsumerGroup(record.group)
        group.replay(record)
        if isinstance(record, ConsumerGroupMetadata) and record.value is None:
            self.protocol.forget(group)
            del self._groups[record.group]

    def loaded(self, group: ConsumerGroup, now_ms: int) -> None:
        self.protocol.loaded(group, self._settings_of(group.group_id), now_ms)
        if group.members:
            self._stories.tell(group.group_id, StoryEvent(now_ms, group.epoch, What.LOADED))

    # --- operations ---

    def heartbeat(
        self, request: ConsumerHeartbeatRequest, token: Token, now_ms: int, *, brings_member_id: bool
    ) -> Outcome:
        out = Outcome()
        settings = self._settings_of(request.group_id)
        try:
            validate(request, settings, brings_member_id=brings_member_id)
            if request.member_epoch < 0:
                self._leave(request, token, settings, now_ms, out)
            else:
                group, agreed = self._group_to_join(request, settings, now_ms, out)
                out.reply(token, self.protocol.heartbeat(group, request, settings, now_ms, out, agreed))
        except ApiError as error:
            out.records.clear()
            out.reply(token, ConsumerHeartbeatReply(error.code, error.message))
        return out

    def _leave(
        self, request: ConsumerHeartbeatRequest, token: Token, settings: ConsumerSettings, now_ms: int, out: Outcome
    ) -> None:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
        self.protocol.check_leave(group, request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            self.protocol.go_away(group, request.member_id, out)
        else:
            self.remove(group, {request.member_id: (What.LEFT, "")}, now_ms, out)
        out.reply(token, ConsumerHeartbeatReply(ErrorCode.NONE, None, request.member_id, request.member_epoch))

    def _group_to_join(
        self, request: ConsumerHeartbeatRequest, settings: ConsumerSettings, now_ms: int, out: Outcome
    ) -> tuple[ConsumerGroup, Callable[[], None]]:
        """Return the group to join, and the action to take once the member may join it."""
        group_id = request.group_id
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group, _nothing
        if request.member_epoch != 0:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group is None:
            # `replay` adds the group once its records are in the log.
            return ConsumerGroup(group_id), _nothing
        if group.is_empty:
            # No member has to migrate, so no migration policy applies.
            out.records.append(GroupTombstone(group_id))
            return ConsumerGroup(group_id), _nothing
        upgraded = self.migration.upgrade(group, settings, now_ms, out)
        return upgraded, partial(self.migration.upgraded, group, upgraded, settings, now_ms, out)

    # --- members with the classic protocol ---

    def join(self, group: ConsumerGroup, request: JoinRequest, token: Token, now_ms: int, out: Outcome) -> None:
        settings = self._settings_of(group.group_id)
        self.migration.join(group, request, token, settings, now_ms, out)

    def classic_heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, token: Token, now_ms: int, out: Outcome
    ) -> None:
        settings = self._settings_of(group.group_id)
        self.migration.heartbeat(group, request, token, settings, now_ms, out)

    def classic_leave(
        self, group: ConsumerGroup, request: LeaveRequest, token: Token, now_ms: int, out: Outcome
    ) -> None:
        gone, errors = self.migration.leaving(group, request)
        if gone:
            self.remove(group, gone, now_ms, out)
        out.reply(token, LeaveReply(errors))

    # --- shared ---

    def remove(self, group: ConsumerGroup, gone: Gone, now_ms: int, out: Outcome) -> None:
        """Remove members. If all remaining members use the classic protocol, the group moves back to it."""
        settings = self._settings_of(group.group_id)
        out.reload_if_lost = True  # the members' timers are gone
        if self.migration.may_downgrade(group, gone, settings):
            self.migration.downgrade(group, gone, settings, now_ms, out)
        else:
            self.protocol.remove(group, gone, settings, now_ms, out)

    def describe(self, group_id: str, token: Token, now_ms: int) -> Outcome:
        out = Outcome()
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
            out.reply(token, DescribeConsumerGroupReply(ErrorCode.GROUP_ID_NOT_FOUND, message, group_id))
            return out
        assignor = group.preferred_assignor(self._settings_of(group_id).assignors[0])
        members = tuple(
            DescribedConsumerMember(
                member_id,
                member.instance_id,
                member.rack_id,
                group.assignment_of(member_id).epoch,
                member.client_id,
                member.client_host,
                member.topic_names,
                member.topic_regex,
                _held(group.assignment_of(member_id)),
                group.target.get(member_id, EMPTY),
                member.classic is not None,
            )
            for member_id, member in group.members.items()
        )
        out.reply(
            token,
            DescribeConsumerGroupReply(
                ErrorCode.NONE,
                None,
                group_id,
                group.state.value,
                group.epoch,
                group.assignment_epoch,
                assignor,
                members,
            ),
        )
        return out

    def expire(self, kind: str, whose: tuple[str, ...], now_ms: int, out: Outcome) -> None:
        """A timer has expired."""
        group_id, member_id = whose
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            gone = self.protocol.overdue(group, kind, member_id, self._settings_of(group_id))
            if gone:
                self.remove(group, gone, now_ms, out)


def _held(current: MemberAssignment) -> Assignment:
    """The partitions that the member may still read, including those it must revoke."""
    held = dict(current.assigned)
    for topic_id, partitions in current.pending_revocation.items():
        held[topic_id] = held.get(topic_id, frozenset()) | partitions
    return held


def _nothing() -> None:
    pass
