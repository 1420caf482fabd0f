"""JoinGroup (key 11), versions 0-9: answered when the next generation has formed.

Version 0 has no rebalance timeout: the session timeout is used. Until version 3 a new member is added at once; from 4
on it first gets an id to join with.

A classic member joins a consumer group unless `group.consumer.migration.policy` is `disabled`:
INCONSISTENT_GROUP_PROTOCOL. Suppose the last member with the consumer protocol is static and returns with the classic
protocol. The group is stable for it only if all members have reached the target assignment. Kafka checks only that the
target is up to date; a partition that a member has yet to give up could then have two owners.

A client that closes while it waits sends LeaveGroup behind its own JoinGroup. Kafka reads it only after the rebalance
that includes the member. Here the waiting JoinGroup ends at once, so that LeaveGroup is handled.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar
from uuid import UUID

from penstock.api.bounds import SUBSCRIPTIONS
from penstock.api.context import RequestContext
from penstock.api.parking import park
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import JoinReply, JoinRequest
from penstock.model.errors import ErrorCode
from penstock.ports.clock import Entropy
from penstock.wire.apis import Api
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

FIRST_WITH_REQUIRED_ID = 4
FIRST_WITH_NULL_PROTOCOL = 7
FIRST_WITH_SKIPPED_ASSIGNMENT = 9


class JoinGroupHandler:
    api: ClassVar = Api.JOIN_GROUP
    min_version: ClassVar = 0
    max_version: ClassVar = 9
    bounds: ClassVar = SUBSCRIPTIONS

    def __init__(self, groups: GroupCoordinator, entropy: Entropy) -> None:
        self._groups = groups
        self._entropy = entropy

    def handle(self, ctx: RequestContext, request: JoinGroupRequest) -> Coroutine[Any, Any, JoinGroupResponse]:
        client_id = ctx.client_id or ""
        rebalance_timeout_ms = request.rebalance_timeout_ms
        asked = JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=client_id,
            client_host=f"/{ctx.peer_host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms if ctx.version > 0 else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            new_member_id=f"{request.group_instance_id or client_id}-{self._new_id()}",
            reason=request.reason or "",
            requires_known_member_id=ctx.version >= FIRST_WITH_REQUIRED_ID,
            can_skip_assignment=ctx.version >= FIRST_WITH_SKIPPED_ASSIGNMENT,
        )
        answer = self._groups.submit(asked.group_id, lambda shard, token, now_ms: shard.join(asked, token, now_ms))

        def make_way(key: int) -> None:
            if key == Api.LEAVE_GROUP:
                member_id = asked.member_id or asked.new_member_id
                self._groups.tell(
                    asked.group_id, lambda shard, now_ms: shard.step_aside(asked.group_id, member_id, now_ms)
                )

        return _respond(ctx.version, park(ctx.connection, answer, make_way))

    def _new_id(self) -> UUID:
        return UUID(bytes=self._entropy.random_bytes(16), version=4)

    def refuse(self, request: JoinGroupRequest, code: ErrorCode, message: str | None) -> JoinGroupResponse:
        return JoinGroupResponse(error_code=code, member_id=request.member_id)


async def _respond(version: int, parked: Coroutine[Any, Any, JoinReply]) -> JoinGroupResponse:
    reply = await parked
    name = reply.protocol_name
    return JoinGroupResponse(
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name="" if name is None and version < FIRST_WITH_NULL_PROTOCOL else name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in reply.members
        ],
    )
