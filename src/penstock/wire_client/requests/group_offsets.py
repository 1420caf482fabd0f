"""What is asked of a group's coordinator about offsets, and what its answers say. Bytes and sockets are elsewhere.

Commits are those of a simple consumer: of nobody in particular, which a group takes only while it has no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
from penstock.wire_client.requests.errors import error_code
from penstock.wire_client.requests.offsets import TopicPartition
from penstock.wire_client.requests.sentences import commit_refused, committed_refused, group_refused


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
    if entry.error_code:
        raise group_refused(error_code(entry.error_code), group)
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in entry.topics:
        for partition in topic.partitions:
            if partition.error_code:
                code = error_code(partition.error_code)
                raise committed_refused(code, group, topic.name, partition.partition_index)
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
                raise commit_refused(error_code(partition.error_code), group, topic.name, partition.partition_index)
