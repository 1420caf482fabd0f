"""Creating and deleting topics, and reading their settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from penstock.model.errors import ApiError
from penstock.model.new_topic import NewTopic
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import CreateTopicsResponse
from penstock.wire.messages.delete_topics import DeleteTopicsResponse
from penstock.wire.messages.describe_configs import DescribeConfigsResponse
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.configs import TOPIC, configs_request, read_configs
from penstock.wire_client.requests.retriable import Again, may
from penstock.wire_client.requests.topics import check_deleted, create_topic_request, delete_topic_request, read_created

T = TypeVar("T")

TIMEOUT_MS = 30_000
RETRY_FOR_S = 10.0
RETRY_PAUSE_S = 0.1


class Setting(NamedTuple):
    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool


async def create_topic(cluster: AsyncCluster, topic: NewTopic, *, validate_only: bool = False) -> int:
    """The number of partitions. Raises ApiError."""
    request = create_topic_request(topic, TIMEOUT_MS, validate_only=validate_only)

    async def attempt(connection: AsyncConnection) -> int:
        return read_created(await connection.call(Api.CREATE_TOPICS, request, CreateTopicsResponse))

    created = await _with_controller(cluster, attempt)
    cluster.forget(topic.name)
    return created


async def delete_topic(cluster: AsyncCluster, name: str) -> None:
    request = delete_topic_request(name, TIMEOUT_MS)

    async def attempt(connection: AsyncConnection) -> None:
        answer = await connection.call(Api.DELETE_TOPICS, request, DeleteTopicsResponse)
        cluster.forget(name)
        check_deleted(answer)

    await _with_controller(cluster, attempt)


async def _with_controller(cluster: AsyncCluster, attempt: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    """Retries while there is no controller. A change with an unknown outcome is not repeated."""
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
    answer = await cluster.call_any(Api.DESCRIBE_CONFIGS, configs_request(TOPIC, name), DescribeConfigsResponse)
    default_source = 5
    return [
        Setting(entry.name, entry.value, entry.config_source == default_source, entry.read_only, entry.is_sensitive)
        for entry in read_configs(answer)
    ]
