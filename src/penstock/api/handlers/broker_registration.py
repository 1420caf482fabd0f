"""BrokerRegistration (key 62), versions 0-4, among brokers: a starting broker registers with the cluster.

- Not advertised to clients, as on a Kafka broker.
- The first of `log_dirs` is the id of the data directory: a broker with a new one has none of its earlier data.
- `previous_broker_epoch` (v3) says that the run with that epoch ended cleanly.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import BrokerController
from penstock.core.metadata.requests import Registration, uuid_text
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from penstock.wire.primitives import NULL_UUID


class BrokerRegistrationHandler:
    api: ClassVar = Api.BROKER_REGISTRATION
    min_version: ClassVar = 0
    max_version: ClassVar = 4
    is_for_controller: ClassVar = True
    is_advertised: ClassVar = False

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        if not request.listeners:
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "A broker must have a listener that clients can reach.")
        epoch = await self._controller.register_broker(
            Registration(
                request.broker_id,
                request.cluster_id,
                request.incarnation_id,
                {listener.name: (listener.host, listener.port) for listener in request.listeners},
                request.rack,
                request.previous_broker_epoch,
                {known.name: (known.min_supported_version, known.max_supported_version) for known in request.features},
                uuid_text(next(iter(request.log_dirs), NULL_UUID)),
            )
        )
        return BrokerRegistrationResponse(broker_epoch=epoch)

    def refuse(
        self, request: BrokerRegistrationRequest, code: ErrorCode, message: str | None
    ) -> BrokerRegistrationResponse:
        return BrokerRegistrationResponse(error_code=code)
