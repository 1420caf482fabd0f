"""IncrementalAlterConfigs (key 44), versions 0-1.

- SET, DELETE, APPEND and SUBTRACT for topics, brokers, groups and client-metrics
  subscriptions; what is not named stays. Each resource succeeds or fails alone; one that
  comes twice in a request is refused.
- The controller makes the change; that of a broker's own settings is checked by this broker first, and
  another broker's are refused: ask that one. A change is in force on this broker when the answer leaves.
- A broker setting that does not exist is refused; Kafka stores it. A broker has no loggers
  that could be changed.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from penstock.api.config_resources import ConfigResources
from penstock.api.context import RequestContext
from penstock.api.forwarding import Forwarding
from penstock.config.alter import Alteration
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.wire.apis import Api
from penstock.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class IncrementalAlterConfigsHandler:
    api: ClassVar = Api.INCREMENTAL_ALTER_CONFIGS
    min_version: ClassVar = 0
    max_version: ClassVar = 1
    accepts_forwarded: ClassVar = True

    def __init__(self, resources: ConfigResources, forwarding: Forwarding | None = None) -> None:
        self._resources = resources
        self._forwarding = forwarding

    async def handle(
        self, ctx: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        if ctx.is_forwarded:
            return await self._change(request)
        settled = self._settle(request)
        rest = [asked for asked in request.resources if _key(asked) not in settled]
        changed: dict[tuple[int, str], AlterConfigsResourceResponse] = {}
        if rest:
            narrowed = IncrementalAlterConfigsRequest(resources=rest, validate_only=request.validate_only)
            response = await self._through_controller(ctx, narrowed)
            changed = {(result.resource_type, result.resource_name): result for result in response.responses}
        return IncrementalAlterConfigsResponse(
            responses=[settled.get(_key(asked)) or changed[_key(asked)] for asked in request.resources]
        )

    def _settle(self, request: IncrementalAlterConfigsRequest) -> dict[tuple[int, str], AlterConfigsResourceResponse]:
        """What needs no controller: refusals that this broker must speak itself, and its loggers."""
        mentions = Counter(_key(asked) for asked in request.resources)
        settled: dict[tuple[int, str], AlterConfigsResourceResponse] = {}
        for asked in request.resources:
            result = _result(asked)
            try:
                if mentions[_key(asked)] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                if not self._resources.settle_here(asked.resource_type, asked.resource_name, _alterations(asked)):
                    continue
            except ApiError as error:
                result.error_code, result.error_message = error.code, str(error)
            settled[_key(asked)] = result
        return settled

    async def _through_controller(
        self, ctx: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        if self._forwarding is None:
            return await self._change(request)
        response = await self._forwarding.ask(ctx, request, lambda: self._change(request))
        assert isinstance(response, IncrementalAlterConfigsResponse)
        return response

    async def _change(self, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
        response = IncrementalAlterConfigsResponse()
        for asked in request.resources:
            result = _result(asked)
            try:
                await self._resources.alter(
                    asked.resource_type, asked.resource_name, _alterations(asked), validate_only=request.validate_only
                )
            except (ApiError, StorageError) as error:
                if error.code is ErrorCode.NOT_CONTROLLER:
                    raise  # sent on to whoever is
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


def _key(asked: AlterConfigsResource) -> tuple[int, str]:
    return asked.resource_type, asked.resource_name


def _result(asked: AlterConfigsResource) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_message=None, resource_type=asked.resource_type, resource_name=asked.resource_name
    )


def _alterations(asked: AlterConfigsResource) -> list[Alteration]:
    return [Alteration(config.name, config.config_operation, config.value) for config in asked.configs]
