"""Changing topics and reading their settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from penstock.model.errors import ApiError
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.errors import check
from penstock.wire_client.requests.retriable import Again, may

T = TypeVar("T")

TIMEOUT_MS = 30_000
RETRY_FOR_S = 10.0
RETRY_PAUSE_S = 0.1
TOPIC_RESOURCE = 2


class Setting(NamedTuple):
    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool


async def create_topic(
    cluster: AsyncCluster,
    name: str,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str | None] | None = None,
    *,
    validate_only: bool = False,
) -> int:
    """The number of partitions; -1 leaves the number to the cluster. Raises ApiError."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=validate_only)

    async def attempt(connection: AsyncConnection) -> int:
        answer = await connection.call(Api.CREATE_TOPICS, request, CreateTopicsResponse)
        result = answer.topics[0]
        check(result.error_code, result.error_message)
        return result.num_partitions

    created = await _with_controller(cluster, attempt)
    cluster.forget(name)
    return created


async def delete_topic(cluster: AsyncCluster, name: str) -> None:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)

    async def attempt(connection: AsyncConnection) -> None:
        answer = await connection.call(Api.DELETE_TOPICS, request, DeleteTopicsResponse)
        cluster.forget(name)
        check(answer.responses[0].error_code, answer.responses[0].error_message)

    await _with_controller(cluster, attempt)


async def _with_controller(cluster: AsyncCluster, attempt: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    """Again while nobody leads the cluster; what may have happened is not tried twice."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RETRY_FOR_S
    while True:
        try:
            return await attempt(await cluster.controller())
        except ApiError as error:
            if not may(Again.FIND_CONTROLLER, error.code) or loop.time() > deadline:
                raise
        await asyncio.sleep(RETRY_PAUSE_S)


async def topic_settings(cluster: AsyncCluster, name: str) -> list[Setting]:
    resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
    answer = await cluster.call_any(
        Api.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse
    )
    result = answer.results[0]
    check(result.error_code, result.error_message)
    default_source = 5
    return [
        Setting(entry.name, entry.value, entry.config_source == default_source, entry.read_only, entry.is_sensitive)
        for entry in result.configs
    ]
