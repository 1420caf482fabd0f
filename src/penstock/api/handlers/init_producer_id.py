"""InitProducerId (key 22), versions 0-5.

Hands out producer ids for idempotent producers from a block that the controller reserved for this
broker, so an id is never given twice, not even across a crash. There are no transactions yet: a transactional id
is CLUSTER_AUTHORIZATION_FAILED, which clients take as final. FindCoordinator has told them why.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import ProducerIds
from penstock.api.handlers.find_coordinator import NO_TRANSACTIONS
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


class InitProducerIdHandler:
    api: ClassVar = Api.INIT_PRODUCER_ID
    min_version: ClassVar = 0
    max_version: ClassVar = 5

    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    async def handle(self, ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            if not request.transactional_id:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            raise ApiError(NO_TRANSACTIONS)
        if (request.producer_id >= 0) != (request.producer_epoch >= 0):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        try:
            producer_id = await self._producer_ids.allocate_producer_id()
        except ApiError as error:
            # It passes, whatever the controller says or does not say; this is what all clients take it for.
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    def refuse(self, request: InitProducerIdRequest, code: ErrorCode, message: str | None) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
