"""UnregisterBroker (key 64), version 0: a broker that will not come back is forgotten.

Kafka answers errors without a message; here it is there. Kafka forgets a broker that runs, too; here that is
INVALID_REQUEST, as it would register again at once as one that has nothing. So is a voter, whose registration names the
disk that its votes are on.
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
