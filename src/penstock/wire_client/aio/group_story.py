"""The story of a group, from a coordinator that keeps one: a setting of the group, `penstock.story`."""

from __future__ import annotations

import json
from typing import Any

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.aio.groups import with_coordinator
from penstock.wire_client.requests.errors import check

GROUP_RESOURCE = 32
STORY = "penstock.story"


async def group_story(cluster: AsyncCluster, group: str) -> list[dict[str, Any]]:
    """Its events, oldest first, as docs/groups.md has them. Raises ApiError."""

    async def ask(node_id: int, connection: AsyncConnection) -> list[dict[str, Any]]:
        resource = DescribeConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=[STORY]
        )
        answer = await connection.call(
            Api.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse
        )
        result = answer.results[0]
        check(result.error_code, result.error_message)
        for entry in result.configs:
            if entry.name == STORY and entry.value is not None:
                events: list[dict[str, Any]] = json.loads(entry.value)
                return events
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION, f"broker {node_id} keeps no stories of groups: only Penstock's do"
        )

    return await with_coordinator(cluster, group, ask)
