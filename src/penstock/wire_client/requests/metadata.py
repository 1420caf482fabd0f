"""The cluster's metadata: brokers, topics, partitions and their leaders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

METADATA_MAX_AGE_S = 30.0


class BrokerMetadata(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    partition: int
    leader_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int = -1
    """-1 if the broker does not say."""


class TopicMetadata(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]
    """Sorted by partition."""


class ClusterMetadata(NamedTuple):
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerMetadata, ...]
    topics: tuple[TopicMetadata, ...]
    """All topics, sorted by name."""


def metadata_request(names: Iterable[str] | None, *, create: bool = False) -> MetadataRequest:
    """None asks for all topics. With `create` the broker may create a topic that does not exist."""
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


def read_brokers(answer: MetadataResponse) -> dict[int, BrokerMetadata]:
    return {
        broker.node_id: BrokerMetadata(broker.node_id, broker.host, broker.port, broker.rack)
        for broker in answer.brokers
    }


def read_topic(entry: MetadataResponseTopic) -> TopicMetadata:
    """Converts an entry. The caller checks error codes."""
    partitions = sorted(
        PartitionMetadata(p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes), p.leader_epoch)
        for p in entry.partitions
    )
    return TopicMetadata(entry.name or "", entry.topic_id, entry.is_internal, tuple(partitions))
