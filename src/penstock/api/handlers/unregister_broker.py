"""UnregisterBroker (key 64), version 0: removes a broker that will not come back.

Kafka returns errors without a message; here there is one. Kafka also removes a running broker. Here that is
INVALID_REQUEST, because it would register again at once as a new one. So is a voter, whose registration identifies the
disk of its votes.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import BrokerController
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


class UnregisterBrokerHandler:
    api: ClassVar = Api.UNREGISTER_BROKER
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    is_for_controller: ClassVar = True

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        await self._controller.unregister_broker(request.broker_id)
        return UnregisterBrokerResponse(error_message=None)

    def refuse(
        self, request: UnregisterBrokerRequest, code: ErrorCode, message: str | None
    ) -> UnregisterBrokerResponse:
        return UnregisterBrokerResponse(error_code=code, error_message=message)
