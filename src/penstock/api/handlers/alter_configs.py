"""AlterConfigs (key 33), versions 0-2: the older call, which replaces all settings of a resource.

- What is not named goes back to its default. Each resource succeeds or fails alone; one
  that comes twice in a request is refused (Kafka 4.3.1 never answers that).
- A broker setting that does not exist is refused; Kafka stores it.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from penstock.api.config_resources import ConfigResources
from penstock.api.context import RequestContext
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.wire.apis import Api
from penstock.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


class AlterConfigsHandler:
    api: ClassVar = Api.ALTER_CONFIGS
    min_version: ClassVar = 0
    max_version: ClassVar = 2

    def __init__(self, resources: ConfigResources) -> None:
        self._resources = resources

    async def handle(self, ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
        mentions = Counter((asked.resource_type, asked.resource_name) for asked in request.resources)
        response = AlterConfigsResponse()
        for asked in request.resources:
            result = AlterConfigsResourceResponse(
                error_message=None, resource_type=asked.resource_type, resource_name=asked.resource_name
            )
            configs = [(config.name, config.value) for config in asked.configs]
            try:
                if mentions[asked.resource_type, asked.resource_name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                await self._resources.replace(
                    asked.resource_type, asked.resource_name, configs, validate_only=request.validate_only
                )
            except (ApiError, StorageError) as error:
                result.error_code, result.error_message = error.code, str(error)
            response.responses.append(result)
        return response

    def refuse(self, request: AlterConfigsRequest, code: ErrorCode, message: str | None) -> AlterConfigsResponse:
        return AlterConfigsResponse(
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
