"""Consumer groups on asyncio: each call finds the group's coordinator, and retries if the coordinator has moved.

`requests.groups` has the requests and answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from penstock.wire.messages.describe_groups import DescribeGroupsResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorResponse
from penstock.wire.messages.list_groups import ListGroupsResponse
from penstock.wire.messages.offset_commit import OffsetCommitResponse
from penstock.wire.messages.offset_fetch import OffsetFetchResponse
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost
from penstock.wire_client.requests.groups import (
    NO_GENERATION,
    NO_MEMBER,
    GroupDescription,
    GroupSummary,
    OffsetAndMetadata,
    check_commit,
    classic_group_request,
    commit_request,
    committed_request,
    consumer_group_request,
    coordinator_request,
    list_groups_request,
    read_classic_group,
    read_committed,
    read_consumer_group,
    read_coordinator,
    read_groups,
)
from penstock.wire_client.requests.retriable import Again, may

T = TypeVar("T")

RETRY_FOR_S = 10.0
RETRY_PAUSE_S = 0.1


async def find_coordinator(cluster: AsyncCluster, group: str) -> int:
    """The node that coordinates this group. Raises ApiError."""
    request = coordinator_request(group)
    return read_coordinator(await cluster.call_any(Api.FIND_COORDINATOR, request, FindCoordinatorResponse))


async def with_coordinator(
    cluster: AsyncCluster, group: str, work: Callable[[int, AsyncConnection], Awaitable[T]]
) -> T:
    """Runs `work` at the group's coordinator, and again if that has moved, was lost or is still loading.

    So `work` must be harmless when it runs twice.
    """

    async def attempt() -> T:
        node_id = await find_coordinator(cluster, group)
        return await work(node_id, await cluster.control(node_id))

    return await _until_settled(attempt)


async def _until_settled(attempt: Callable[[], Awaitable[T]]) -> T:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RETRY_FOR_S
    while True:
        try:
            return await attempt()
        except ApiError as error:
            if not may(Again.FIND_COORDINATOR, error.code) or loop.time() > deadline:
                raise
        except (BrokerUnreachable, ConnectionLost):
            if loop.time() > deadline:
                raise
        await asyncio.sleep(RETRY_PAUSE_S)


async def commit(
    cluster: AsyncCluster,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    member_id: str = NO_MEMBER,
    generation: int = NO_GENERATION,
) -> None:
    """Raises ApiError, which names the first partition that was refused."""
    request = commit_request(group, offsets, member_id=member_id, generation=generation)

    async def send(_: int, connection: AsyncConnection) -> None:
        check_commit(group, await connection.call(Api.OFFSET_COMMIT, request, OffsetCommitResponse))

    await with_coordinator(cluster, group, send)


async def committed(
    cluster: AsyncCluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets of the given partitions, or of all. Partitions without one are left out."""
    request = committed_request(group, partitions)

    async def send(_: int, connection: AsyncConnection) -> dict[TopicPartition, OffsetAndMetadata]:
        return read_committed(group, await connection.call(Api.OFFSET_FETCH, request, OffsetFetchResponse))

    return await with_coordinator(cluster, group, send)


async def list_groups(cluster: AsyncCluster) -> list[GroupSummary]:
    """Asks every broker, since each knows only the groups that it coordinates."""

    async def attempt() -> list[GroupSummary]:
        found: dict[str, GroupSummary] = {}  # by name, because a group that moves meanwhile is listed twice
        for broker in (await cluster.describe()).brokers:
            connection = await cluster.control(broker.node_id)
            answer = await connection.call(Api.LIST_GROUPS, list_groups_request(), ListGroupsResponse)
            found |= read_groups(answer, broker.node_id)
        return sorted(found.values())

    return await _until_settled(attempt)


async def describe_group(cluster: AsyncCluster, group: str) -> GroupDescription:
    """A group of either protocol, with its members. Raises ApiError(GROUP_ID_NOT_FOUND)."""
    try:
        return await _describe_classic(cluster, group)
    except ApiError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    return await _describe_consumer(cluster, group)


async def _describe_consumer(cluster: AsyncCluster, group: str) -> GroupDescription:
    """A group of the consumer protocol (KIP-848)."""
    request = consumer_group_request(group)

    async def send(node_id: int, connection: AsyncConnection) -> GroupDescription:
        answer = await connection.call(Api.CONSUMER_GROUP_DESCRIBE, request, ConsumerGroupDescribeResponse)
        return read_consumer_group(answer, node_id)

    return await with_coordinator(cluster, group, send)


async def _describe_classic(cluster: AsyncCluster, group: str) -> GroupDescription:
    request = classic_group_request(group)

    async def send(node_id: int, connection: AsyncConnection) -> GroupDescription:
        answer = await connection.call(Api.DESCRIBE_GROUPS, request, DescribeGroupsResponse)
        return read_classic_group(answer, node_id)

    return await with_coordinator(cluster, group, send)
