"""Partitions with their replicas, page by page, and their sizes on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.wire.messages import describe_topic_partitions as described
from penstock.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

PARTITIONS_A_PAGE: Final = 2_000


class PartitionReplicas(NamedTuple):
    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    """Eligible leader replicas: not in sync, but they have all committed records (KIP-966)."""


def page_request(topics: Sequence[str], cursor: described.Cursor | None) -> described.DescribeTopicPartitionsRequest:
    """`cursor`: from the answer with the page before. Topics that are before it may be left out."""
    return described.DescribeTopicPartitionsRequest(
        topics=[described.TopicRequest(name=name) for name in topics],
        response_partition_limit=PARTITIONS_A_PAGE,
        cursor=cursor,
    )


def read_partitions(topic: described.DescribeTopicPartitionsResponseTopic) -> Iterator[PartitionReplicas]:
    """The caller checks the topic's error code."""
    for one in topic.partitions:
        yield PartitionReplicas(
            topic.name or "",
            one.partition_index,
            one.leader_id if one.leader_id >= 0 else None,
            tuple(one.replica_nodes),
            tuple(one.isr_nodes),
            tuple(one.eligible_leader_replicas or ()),
        )


def sizes_request(partitions: Iterable[tuple[str, int]]) -> DescribeLogDirsRequest:
    """A broker knows only the sizes of its own replicas."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return DescribeLogDirsRequest(
        topics=[DescribableLogDirTopic(topic=topic, partitions=asked) for topic, asked in topics.items()]
    )


def read_sizes(answer: DescribeLogDirsResponse) -> dict[tuple[str, int], int]:
    """The size in bytes of each partition, in all directories of this broker."""
    found: dict[tuple[str, int], int] = {}
    for directory in answer.results:
        for topic in directory.topics:
            for one in topic.partitions:
                key = topic.name, one.partition_index
                found[key] = found.get(key, 0) + one.partition_size
    return found
