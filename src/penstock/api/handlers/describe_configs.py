"""DescribeConfigs (key 32), versions 1-4.

- Each resource succeeds or fails alone, except one of an unknown type: that refuses the whole request, as in Kafka.
- No configuration_keys (null or empty) means all of them; unknown names are left out.
- Synonyms and documentation are sent on request, types from v3 on.
- A broker's loggers (resource type 8) are an empty list.
- A group has one more entry if requested by name, `penstock.story`: `api.admin.group_story`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from penstock.api.admin.config_resources import ConfigResources, ResourceType
from penstock.api.admin.group_story import STORY, story_entry
from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.config.describe import ConfigEntry
from penstock.core.group.story import StoryEvent
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

RESOURCES_PER_TURN = 4  # each has about a hundred settings


class DescribeConfigsHandler:
    api: ClassVar = Api.DESCRIBE_CONFIGS
    min_version: ClassVar = 1
    max_version: ClassVar = 4
    bounds: ClassVar = WIDE

    def __init__(self, resources: ConfigResources, story_of: Callable[[str], Sequence[StoryEvent]]) -> None:
        self._resources = resources
        self._story_of = story_of

    async def handle(self, ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        response = DescribeConfigsResponse()
        async for asked in ctx.pace.each(request.resources, RESOURCES_PER_TURN):
            if asked.resource_type not in ResourceType.__members__.values():
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected resource type {asked.resource_type} for resource {asked.resource_name}",
                )
            result = DescribeConfigsResult(resource_type=asked.resource_type, resource_name=asked.resource_name)
            names = frozenset(asked.configuration_keys) if asked.configuration_keys else None
            try:
                entries = self._resources.describe(ResourceType(asked.resource_type), asked.resource_name, names)
                if asked.resource_type == ResourceType.GROUP and names is not None and STORY in names:
                    entries.append(story_entry(self._story_of(asked.resource_name), ctx.version))
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message or ""
            else:
                result.configs = [_result(entry, request) for entry in entries]
            response.results.append(result)
        return response

    def refuse(self, request: DescribeConfigsRequest, code: ErrorCode, message: str | None) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    error_code=code,
                    error_message=message,
                    resource_type=asked.resource_type,
                    resource_name=asked.resource_name,
                )
                for asked in request.resources
            ]
        )


def _result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
