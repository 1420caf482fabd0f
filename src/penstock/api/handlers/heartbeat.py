"""Heartbeat (key 12), versions 0-4: answered when there is news.

- Kafka responds at once, so a member learns of a rebalance with its next heartbeat, three seconds later by default.
  Here the response waits for up to `penstock.group.heartbeat.hold.ms`, a third of the session at most, and leaves when
  a rebalance begins. It leaves at once when the client sends anything else on the connection.
- While the group is being loaded the response has no error, as in Kafka: the member gets a whole session's time once
  loading is done.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar

from penstock.api.context import RequestContext
from penstock.api.parking import park
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

    def handle(self, ctx: RequestContext, request: HeartbeatRequest) -> Coroutine[Any, Any, HeartbeatResponse]:
        asked = exchange.HeartbeatRequest(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id, may_wait=True
        )
        answer = self._groups.submit(asked.group_id, lambda shard, token, now_ms: shard.heartbeat(asked, token, now_ms))

        def make_way(key: int) -> None:
            self._groups.tell(
                asked.group_id, lambda shard, now_ms: shard.release_heartbeat(asked.group_id, asked.member_id, now_ms)
            )

        return _respond(park(ctx.connection, answer, make_way))

    def refuse(self, request: HeartbeatRequest, code: ErrorCode, message: str | None) -> HeartbeatResponse:
        is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else code)


async def _respond(parked: Coroutine[Any, Any, exchange.HeartbeatReply]) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=(await parked).error)
