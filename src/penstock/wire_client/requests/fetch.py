"""Fetch: a request without a session, for partitions that have the same leader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.primitives import NULL_UUID
from penstock.wire_client.requests.leader_epochs import NO_EPOCH
from penstock.wire_client.requests.offsets import READ_COMMITTED, READ_UNCOMMITTED


class FetchFrom(NamedTuple):
    offset: int
    max_bytes: int
    """Of this partition."""
    leader_epoch: int = NO_EPOCH
    """By the metadata: a leader of another epoch refuses the fetch."""


class FetchTerms(NamedTuple):
    """When the broker answers, and with what."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool


def fetch_request(
    positions: Mapping[TopicPartition, FetchFrom], terms: FetchTerms, topic_id: bytes | None = None
) -> FetchRequest:
    """`topic_id`: for versions without topic names, if all partitions are of one topic."""
    topics: dict[str, list[FetchPartition]] = {}
    for (topic, partition), begin in positions.items():
        asked = FetchPartition(
            partition=partition,
            current_leader_epoch=begin.leader_epoch,
            fetch_offset=begin.offset,
            partition_max_bytes=begin.max_bytes,
        )
        topics.setdefault(topic, []).append(asked)
    return FetchRequest(
        max_wait_ms=terms.max_wait_ms,
        min_bytes=terms.min_bytes,
        max_bytes=terms.max_bytes,
        isolation_level=READ_COMMITTED if terms.read_committed else READ_UNCOMMITTED,
        session_epoch=-1,
        topics=[
            FetchTopic(topic=topic, topic_id=topic_id or NULL_UUID, partitions=asked) for topic, asked in topics.items()
        ],
    )


def joint_fetch_request(
    positions: Mapping[TopicPartition, FetchFrom], terms: FetchTerms, topic_ids: Mapping[str, bytes]
) -> FetchRequest:
    """For partitions of any topics. `topic_ids`: for versions without topic names, else empty."""
    request = fetch_request(positions, terms)
    for topic in request.topics:
        topic.topic_id = topic_ids.get(topic.topic, NULL_UUID)
    return request
