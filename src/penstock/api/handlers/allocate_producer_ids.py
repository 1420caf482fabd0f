"""AllocateProducerIds (key 67), version 0, among brokers: a block of producer ids for one broker alone.

Not advertised to clients, as on a Kafka broker.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import TopicController
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse


class AllocateProducerIdsHandler:
    api: ClassVar = Api.ALLOCATE_PRODUCER_IDS
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    is_for_controller: ClassVar = True
    is_advertised: ClassVar = False

    def __init__(self, controller: TopicController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        block = await self._controller.allocate_producer_ids(request.broker_id, request.broker_epoch)
        return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.length)

    def refuse(
        self, request: AllocateProducerIdsRequest, code: ErrorCode, message: str | None
    ) -> AllocateProducerIdsResponse:
        return AllocateProducerIdsResponse(error_code=code)
