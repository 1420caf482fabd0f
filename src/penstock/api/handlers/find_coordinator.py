"""FindCoordinator (key 10), versions 0-6.

This broker has no group and transaction coordinators yet, and says so in Kafka's word for it:
COORDINATOR_NOT_AVAILABLE. It is served all the same because librdkafka (kcat, confluent-kafka)
compresses with LZ4 only for brokers that list this API.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse


class FindCoordinatorHandler:
    api: ClassVar = Api.FIND_COORDINATOR
    min_version: ClassVar = 0
    max_version: ClassVar = 6

    def handle(self, ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        return self.refuse(
            request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no group or transaction coordinator"
        )

    def refuse(self, request: FindCoordinatorRequest, code: ErrorCode, message: str | None) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            error_code=code,
            error_message=message,
            node_id=-1,
            port=-1,
            coordinators=[
                Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)
                for key in request.coordinator_keys
            ],
        )
