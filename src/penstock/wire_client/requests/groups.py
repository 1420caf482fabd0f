"""Requests about consumer groups: coordinator, committed offsets, state and members.

Only a member's commit (`aio.member`) has a member id and a generation. A commit without them is "simple": the
coordinator accepts it while the group has no members. Must not know: how the coordinator is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from penstock.wire.messages.delete_groups import DeleteGroupsRequest
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
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.wire_client.requests.errors import check, error_code
from penstock.wire_client.requests.sentences import commit_refused, committed_refused, group_refused, no_such_group
from penstock.wire_client.requests.subscription import decode_assignment

GROUP_KEY, TRANSACTION_KEY = 0, 1
NO_MEMBER, NO_GENERATION = "", -1


class CoordinatorKey(NamedTuple):
    """A coordinator serves groups or transactional ids."""

    kind: int
    name: str


class OffsetAndMetadata(NamedTuple):
    offset: int
    metadata: str | None
    """The metadata string of the commit."""


class GroupSummary(NamedTuple):
    group_id: str
    state: str
    group_type: str
    protocol_type: str
    coordinator_id: int


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    members: tuple[MemberDescription, ...]
    coordinator_id: int


# -- the coordinator --------------------------------------------------------------------


def coordinator_request(name: str, kind: int = GROUP_KEY) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key=name, key_type=kind, coordinator_keys=[name])


def read_coordinator(answer: FindCoordinatorResponse) -> int:
    """The node that coordinates the group or the transactional id. Raises ApiError."""
    found = answer.coordinators[0] if answer.coordinators else answer  # one key before version 4
    check(found.error_code, found.error_message)
    return found.node_id


# -- committed offsets ------------------------------------------------------------------


def committed_request(
    group: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
) -> OffsetFetchRequest:
    """None asks for all partitions with a committed offset.

    `require_stable`: UNSTABLE_OFFSET_COMMIT while a transaction that commits offsets is open.
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions or ():
        topics.setdefault(topic, []).append(partition)
    is_all = partitions is None
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if is_all
                else [OffsetFetchRequestTopics(name=name, partition_indexes=asked) for name, asked in topics.items()],
            )
        ],
        # Before version 8 a request had only one group.
        group_id=group,
        topics=None
        if is_all
        else [OffsetFetchRequestTopic(name=name, partition_indexes=asked) for name, asked in topics.items()],
        require_stable=require_stable,
    )


def read_committed(group: str, answer: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
    """Partitions without a committed offset are left out. Raises ApiError."""
    entry = answer.groups[0] if answer.groups else answer
    if entry.error_code:
        raise group_refused(error_code(entry.error_code), group)
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in entry.topics:
        for partition in topic.partitions:
            if partition.error_code:
                code = error_code(partition.error_code)
                raise committed_refused(code, group, topic.name, partition.partition_index)
            if partition.committed_offset >= 0:
                tp = TopicPartition(topic.name, partition.partition_index)
                found[tp] = OffsetAndMetadata(partition.committed_offset, partition.metadata)
    return found


def commit_request(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    member_id: str = NO_MEMBER,
    generation: int = NO_GENERATION,
) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), committed in offsets.items():
        asked = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=committed.offset, committed_metadata=committed.metadata
        )
        topics.setdefault(topic, []).append(asked)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=name, partitions=asked) for name, asked in topics.items()],
    )


def check_commit(group: str, answer: OffsetCommitResponse) -> None:
    """Raises ApiError, which names the first partition that was refused."""
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise commit_refused(error_code(partition.error_code), group, topic.name, partition.partition_index)


# -- groups and their members -----------------------------------------------------------


def delete_group_request(group: str) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=[group])


def list_groups_request() -> ListGroupsRequest:
    """A broker knows only the groups that it coordinates."""
    return ListGroupsRequest()


def read_groups(answer: ListGroupsResponse, coordinator_id: int) -> dict[str, GroupSummary]:
    """The groups that this broker coordinates, by name. Raises ApiError."""
    check(answer.error_code)
    return {
        entry.group_id: GroupSummary(
            entry.group_id, entry.group_state, entry.group_type, entry.protocol_type, coordinator_id
        )
        for entry in answer.groups
    }


def consumer_group_request(group: str) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=[group])


def read_consumer_group(answer: ConsumerGroupDescribeResponse, coordinator_id: int) -> GroupDescription:
    """A group of the consumer protocol (KIP-848). Raises ApiError."""
    entry = answer.groups[0]
    if entry.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, no_such_group(entry.group_id))
    check(entry.error_code, entry.error_message)
    members = tuple(
        MemberDescription(
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
    return GroupDescription(entry.group_id, entry.group_state, "consumer", entry.assignor_name, members, coordinator_id)


def classic_group_request(group: str) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=[group])


def read_classic_group(answer: DescribeGroupsResponse, coordinator_id: int) -> GroupDescription:
    """A group of the classic protocol. Raises ApiError."""
    entry = answer.groups[0]
    check(entry.error_code, entry.error_message)
    if entry.group_state == "Dead":
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, no_such_group(entry.group_id))
    members = tuple(
        MemberDescription(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            decode_assignment(member.member_assignment),
        )
        for member in entry.members
    )
    return GroupDescription(
        entry.group_id, entry.group_state, entry.protocol_type, entry.protocol_data, members, coordinator_id
    )
