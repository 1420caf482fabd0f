"""Consumer groups seen from outside: their coordinator, committed offsets, state, lag.

Commits made here are "simple": no member, generation -1, which the coordinator takes while the
group has no members. A member's own commits go the same way with its generation (`member`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.wire_client.aio.cluster import Cluster
from penstock.wire_client.aio.connection import Connection
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, check, error_code
from penstock.wire_client.requests.offsets import TopicPartition
from penstock.wire_client.requests.retriable import Again, may
from penstock.wire_client.requests.sentences import commit_refused, no_such_group
from penstock.wire_client.requests.subscription import decode_assignment

T = TypeVar("T")

RETRY_FOR_S = 10.0
RETRY_PAUSE_S = 0.1


class Committed(NamedTuple):
    offset: int
    metadata: str | None


class GroupSummary(NamedTuple):
    group_id: str
    state: str
    group_type: str
    protocol_type: str
    coordinator_id: int


class MemberInfo(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


class GroupInfo(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    members: tuple[MemberInfo, ...]
    coordinator_id: int


async def find_coordinator(cluster: Cluster, group: str) -> int:
    """The node that coordinates this group. Raises ApiError."""
    request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
    answer = await cluster.call_any(Api.FIND_COORDINATOR, request, FindCoordinatorResponse)
    if not answer.coordinators:  # before version 4
        check(answer.error_code, answer.error_message)
        return answer.node_id
    found = answer.coordinators[0]
    check(found.error_code, found.error_message)
    return found.node_id


async def with_coordinator(cluster: Cluster, group: str, work: Callable[[int, Connection], Awaitable[T]]) -> T:
    """Run `work` at the group's coordinator; again where it has moved, was lost or is still loading.

    So `work` is nothing that does harm when it is done twice.
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
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, Committed],
    *,
    member_id: str = "",
    generation: int = -1,
) -> None:
    """Raises ApiError, naming the first partition that was refused."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), committed in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=committed.offset, committed_metadata=committed.metadata
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=asked) for topic, asked in topics.items()],
    )

    async def send(_: int, connection: Connection) -> None:
        answer = await connection.call(Api.OFFSET_COMMIT, request, OffsetCommitResponse)
        for topic in answer.topics:
            for entry in topic.partitions:
                if entry.error_code:
                    raise commit_refused(error_code(entry.error_code), group, topic.name, entry.partition_index)

    await with_coordinator(cluster, group, send)


async def committed(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Committed]:
    """Committed offsets, of all partitions where none are named; those without one are left out."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions or ():
        topics.setdefault(topic, []).append(partition)
    asked = (
        None
        if partitions is None
        else [OffsetFetchRequestTopics(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()]
    )
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)])

    async def send(_: int, connection: Connection) -> dict[TopicPartition, Committed]:
        answer = await connection.call(Api.OFFSET_FETCH, request, OffsetFetchResponse)
        entry = answer.groups[0]
        check(entry.error_code)
        found: dict[TopicPartition, Committed] = {}
        for topic in entry.topics:
            for partition in topic.partitions:
                check(partition.error_code)
                if partition.committed_offset >= 0:
                    key = TopicPartition(topic.name, partition.partition_index)
                    found[key] = Committed(partition.committed_offset, partition.metadata)
        return found

    return await with_coordinator(cluster, group, send)


async def list_groups(cluster: Cluster) -> list[GroupSummary]:
    """Of every broker, since each knows those it coordinates."""

    async def attempt() -> list[GroupSummary]:
        found: dict[str, GroupSummary] = {}  # by name: a group that moves meanwhile is told of twice
        for broker in (await cluster.describe()).brokers:
            connection = await cluster.control(broker.node_id)
            answer = await connection.call(Api.LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse)
            check(answer.error_code)
            for entry in answer.groups:
                found[entry.group_id] = GroupSummary(
                    entry.group_id, entry.group_state, entry.group_type, entry.protocol_type, broker.node_id
                )
        return sorted(found.values())

    return await _until_settled(attempt)


async def describe_group(cluster: Cluster, group: str) -> GroupInfo:
    """A group of either protocol with its members. Raises ApiError(GROUP_ID_NOT_FOUND)."""
    try:
        return await _describe_classic(cluster, group)
    except ApiError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    return await _describe_consumer(cluster, group)


async def _describe_consumer(cluster: Cluster, group: str) -> GroupInfo:
    """The protocol of KIP-848."""

    async def send(node_id: int, connection: Connection) -> GroupInfo:
        answer = await connection.call(
            Api.CONSUMER_GROUP_DESCRIBE,
            ConsumerGroupDescribeRequest(group_ids=[group]),
            ConsumerGroupDescribeResponse,
        )
        entry = answer.groups[0]
        if entry.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, no_such_group(group))
        check(entry.error_code, entry.error_message)
        members = tuple(
            MemberInfo(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                tuple(
                    TopicPartition(topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ),
            )
            for member in entry.members
        )
        return GroupInfo(group, entry.group_state, "consumer", entry.assignor_name, members, node_id)

    return await with_coordinator(cluster, group, send)


async def _describe_classic(cluster: Cluster, group: str) -> GroupInfo:
    async def send(node_id: int, connection: Connection) -> GroupInfo:
        answer = await connection.call(
            Api.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse
        )
        entry = answer.groups[0]
        check(entry.error_code, entry.error_message)
        if entry.group_state == "Dead":
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, no_such_group(group))
        members = tuple(
            MemberInfo(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                decode_assignment(member.member_assignment),
            )
            for member in entry.members
        )
        return GroupInfo(group, entry.group_state, entry.protocol_type, entry.protocol_data, members, node_id)

    return await with_coordinator(cluster, group, send)
