"""BrokerHeartbeat (key 63), versions 0-2, among brokers: a broker reports that it is alive and gets its state.

Not advertised to clients, as on a Kafka broker. Offline and cordoned directories have no effect: a broker here has one
data directory, and stops when it fails.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import BrokerController
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


class BrokerHeartbeatHandler:
    api: ClassVar = Api.BROKER_HEARTBEAT
    min_version: ClassVar = 0
    max_version: ClassVar = 2
    is_for_controller: ClassVar = True
    is_advertised: ClassVar = False

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        answer = await self._controller.heartbeat(
            request.broker_id,
            request.broker_epoch,
            request.current_metadata_offset,
            request.want_fence,
            request.want_shut_down,
        )
        return BrokerHeartbeatResponse(
            is_caught_up=answer.is_caught_up, is_fenced=answer.is_fenced, should_shut_down=answer.should_shut_down
        )

    def refuse(self, request: BrokerHeartbeatRequest, code: ErrorCode, message: str | None) -> BrokerHeartbeatResponse:
        return BrokerHeartbeatResponse(error_code=code)
