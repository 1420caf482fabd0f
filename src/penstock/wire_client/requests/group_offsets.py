"""What is asked of a group's coordinator about offsets, and what its answers say. Bytes and sockets are elsewhere.

Commits are those of a simple consumer: of nobody in particular, which a group takes only while it has no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
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
from penstock.wire_client.requests.errors import NoSuchTopic, check, error_code
from penstock.wire_client.requests.offsets import TopicPartition


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str
    """What the committer wrote beside it."""


def committed_request(group: str, partitions: Iterable[TopicPartition]) -> OffsetFetchRequest:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[OffsetFetchRequestTopics(name=name, partition_indexes=asked) for name, asked in topics.items()],
            )
        ],
        # Before version 8 a request was about one group.
        group_id=group,
        topics=[OffsetFetchRequestTopic(name=name, partition_indexes=asked) for name, asked in topics.items()],
    )


def read_committed_offsets(group: str, answer: OffsetFetchResponse) -> dict[TopicPartition, CommittedOffset]:
    """Partitions without a committed offset are left out. Raises ApiError."""
    entry = answer.groups[0] if answer.groups else answer
    check(entry.error_code, f"group '{group}': {error_code(entry.error_code).name}")
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in entry.topics:
        for partition in topic.partitions:
            if partition.error_code:
                code = error_code(partition.error_code)
                raise ApiError(code, f"group '{group}', {topic.name}-{partition.partition_index}: {code.name}")
            if partition.committed_offset >= 0:
                tp = TopicPartition(topic.name, partition.partition_index)
                found[tp] = CommittedOffset(partition.committed_offset, partition.metadata or "")
    return found


def commit_request(group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        asked = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        topics.setdefault(topic, []).append(asked)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=name, partitions=asked) for name, asked in topics.items()],
    )


def check_committed(group: str, answer: OffsetCommitResponse) -> None:
    """Raises ApiError, naming the first partition that was refused."""
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise _refusal(error_code(partition.error_code), group, topic.name, partition.partition_index)


def _refusal(code: ErrorCode, group: str, topic: str, partition: int) -> ApiError:
    if code is ErrorCode.UNKNOWN_MEMBER_ID or code is ErrorCode.ILLEGAL_GENERATION:
        return ApiError(code, f"group '{group}' has members, and only they may commit")
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return NoSuchTopic(f"topic '{topic}' has no partition {partition}")
    return ApiError(code, f"group '{group}', {topic}-{partition}: {code.name}")
