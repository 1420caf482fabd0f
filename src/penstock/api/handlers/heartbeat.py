"""Heartbeat (key 12), versions 0-4.

While the group is being loaded the answer is that all is well, as Kafka's: the member gets a
whole session's time once loading is done.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group import exchange
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


class HeartbeatHandler:
    api: ClassVar = Api.HEARTBEAT
    min_version: ClassVar = 0
    max_version: ClassVar = 4

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def handle(self, ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        asked = exchange.HeartbeatRequest(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        reply = await self._groups.call(
            asked.group_id,
            exchange.HeartbeatReply,
            lambda shard, token, now_ms: shard.heartbeat(asked, token, now_ms),
        )
        return HeartbeatResponse(error_code=reply.error)

    def refuse(self, request: HeartbeatRequest, code: ErrorCode, message: str | None) -> HeartbeatResponse:
        is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else code)
