"""The history of a group: the coordinator has it as a setting of the group, `penstock.story`."""

from __future__ import annotations

import json
from typing import Any

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_configs import DescribeConfigsResponse
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.aio.groups import with_coordinator
from penstock.wire_client.requests.configs import GROUP, configs_request, read_configs

STORY = "penstock.story"


async def group_story(cluster: AsyncCluster, group: str) -> list[dict[str, Any]]:
    """The events of a group, oldest first; docs/groups.md describes them. Raises ApiError."""

    async def ask(node_id: int, connection: AsyncConnection) -> list[dict[str, Any]]:
        request = configs_request(GROUP, group, [STORY])
        answer = await connection.call(Api.DESCRIBE_CONFIGS, request, DescribeConfigsResponse)
        for entry in read_configs(answer):
            if entry.name == STORY and entry.value is not None:
                events: list[dict[str, Any]] = json.loads(entry.value)
                return events
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION, f"broker {node_id} keeps no history of groups: only Penstock brokers do"
        )

    return await with_coordinator(cluster, group, ask)
