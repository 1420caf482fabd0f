"""IncrementalAlterConfigs (key 44), versions 0-1.

- SET, DELETE, APPEND and SUBTRACT for topics, brokers, groups and client-metrics
  subscriptions; what is not named stays. Each resource succeeds or fails alone; one that
  comes twice in a request is refused.
- A change is stable and in force on this broker when the answer leaves.
- A broker setting that does not exist is refused; Kafka stores it. A broker has no loggers
  that could be changed.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from penstock.api.config_resources import ConfigResources
from penstock.api.context import RequestContext
from penstock.config.alter import Alteration
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.wire.apis import Api
from penstock.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class IncrementalAlterConfigsHandler:
    api: ClassVar = Api.INCREMENTAL_ALTER_CONFIGS
    min_version: ClassVar = 0
    max_version: ClassVar = 1

    def __init__(self, resources: ConfigResources) -> None:
        self._resources = resources

    async def handle(
        self, ctx: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        mentions = Counter((asked.resource_type, asked.resource_name) for asked in request.resources)
        response = IncrementalAlterConfigsResponse()
        for asked in request.resources:
            result = AlterConfigsResourceResponse(
                error_message=None, resource_type=asked.resource_type, resource_name=asked.resource_name
            )
            alterations = [Alteration(config.name, config.config_operation, config.value) for config in asked.configs]
            try:
                if mentions[asked.resource_type, asked.resource_name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                await self._resources.alter(
                    asked.resource_type, asked.resource_name, alterations, validate_only=request.validate_only
                )
            except (ApiError, StorageError) as error:
                result.error_code, result.error_message = error.code, str(error)
            response.responses.append(result)
        return response

    def refuse(
        self, request: IncrementalAlterConfigsRequest, code: ErrorCode, message: str | None
    ) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=code,
                    error_message=message,
                    resource_type=asked.resource_type,
                    resource_name=asked.resource_name,
                )
                for asked in request.resources
            ]
        )
