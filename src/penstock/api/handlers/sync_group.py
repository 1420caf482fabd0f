"""SyncGroup (key 14), versions 0-5: followers wait until the leader's assignment is stored.

A client that closes meanwhile sends LeaveGroup behind its SyncGroup. The waiting SyncGroup then ends at once.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar

from penstock.api.bounds import ASSIGNMENTS
from penstock.api.context import RequestContext
from penstock.api.parking import park
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import SyncReply, SyncRequest
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

FIRST_WITH_PROTOCOL = 5


class SyncGroupHandler:
    api: ClassVar = Api.SYNC_GROUP
    min_version: ClassVar = 0
    max_version: ClassVar = 5
    bounds: ClassVar = ASSIGNMENTS

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def handle(self, ctx: RequestContext, request: SyncGroupRequest) -> Coroutine[Any, Any, SyncGroupResponse]:
        if ctx.version >= FIRST_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        asked = SyncRequest(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            {given.member_id: given.assignment for given in request.assignments},
        )
        answer = self._groups.submit(asked.group_id, lambda shard, token, now_ms: shard.sync(asked, token, now_ms))

        def make_way(key: int) -> None:
            if key == Api.LEAVE_GROUP:
                self._groups.tell(
                    asked.group_id, lambda shard, now_ms: shard.step_aside(asked.group_id, asked.member_id, now_ms)
                )

        return _respond(park(ctx.connection, answer, make_way))

    def refuse(self, request: SyncGroupRequest, code: ErrorCode, message: str | None) -> SyncGroupResponse:
        return SyncGroupResponse(error_code=code)


async def _respond(parked: Coroutine[Any, Any, SyncReply]) -> SyncGroupResponse:
    reply = await parked
    return SyncGroupResponse(
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )
