"""SyncGroup (key 14), versions 0-5: followers wait until the leader's assignment is stored."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
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

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def handle(self, ctx: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
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
        reply = await self._groups.call(
            asked.group_id, SyncReply, lambda shard, token, now_ms: shard.sync(asked, token, now_ms)
        )
        return SyncGroupResponse(
            error_code=reply.error,
            protocol_type=reply.protocol_type,
            protocol_name=reply.protocol_name,
            assignment=reply.assignment,
        )

    def refuse(self, request: SyncGroupRequest, code: ErrorCode, message: str | None) -> SyncGroupResponse:
        return SyncGroupResponse(error_code=code)
