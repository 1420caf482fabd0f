"""Converts librdkafka's answers to admin requests to our values. Only this module knows librdkafka's classes for them.

Those classes are largely untyped, hence `Any`.
"""

from __future__ import annotations

from typing import Any, Literal

from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import ConfigSource  # type: ignore[attr-defined]  # its stubs do not re-export

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.cluster import (
    BrokerInfo,
    ClusterInfo,
    ConfigSetting,
    GroupInfo,
    GroupListing,
    MemberInfo,
    PartitionInfo,
    TopicInfo,
)

DEAD = "Dead"
_STATES = {
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: DEAD,
    ConsumerGroupState.EMPTY: "Empty",
}
_PROTOCOLS: dict[ConsumerGroupType, Literal["classic", "consumer"]] = {
    ConsumerGroupType.CLASSIC: "classic",
    ConsumerGroupType.CONSUMER: "consumer",
}
_SOURCES: dict[ConfigSource, Literal["topic", "broker", "cluster", "file", "default", "group"]] = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "cluster",
    ConfigSource.STATIC_BROKER_CONFIG: "file",
    ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.GROUP_CONFIG: "group",
}


def cluster(found: Any) -> ClusterInfo:
    brokers = [BrokerInfo(node.id, node.host, node.port, node.rack or None) for node in found.nodes]
    return ClusterInfo(
        found.cluster_id or "", _node_id(found.controller), tuple(sorted(brokers, key=lambda one: one.id))
    )


def listed_topics(found: Any) -> list[TopicInfo]:
    return [
        TopicInfo(
            name,
            tuple(
                PartitionInfo(one.id, one.leader if one.leader >= 0 else None, tuple(one.replicas), tuple(one.isrs))
                for _, one in sorted(topic.partitions.items())
            ),
        )
        for name, topic in sorted(found.topics.items())
    ]


def topic(name: str, found: Any) -> TopicInfo:
    partitions = [
        PartitionInfo(
            one.id,
            _node_id(one.leader),
            tuple(node.id for node in one.replicas),
            tuple(node.id for node in one.isr),
        )
        for one in found.partitions
    ]
    return TopicInfo(name, tuple(sorted(partitions, key=lambda one: one.id)))


def listed_groups(found: Any) -> list[GroupListing]:
    listed = [GroupListing(one.group_id, _state(one), _protocol(one)) for one in found.valid]
    return sorted(listed, key=lambda one: one.group_id)


def group(group_id: str, found: Any) -> GroupInfo:
    members = [
        MemberInfo(
            one.member_id,
            one.client_id,
            one.host.lstrip("/"),
            one.group_instance_id or None,
            tuple(sorted(TopicPartition(part.topic, part.partition) for part in one.assignment.topic_partitions)),
        )
        for one in found.members
    ]
    return GroupInfo(
        group_id,
        _state(found),
        _protocol(found),
        found.partition_assignor or "",
        _node_id(found.coordinator),
        tuple(sorted(members, key=lambda member: (member.partitions[:1], member.client_id, member.member_id))),
    )


def settings(found: Any) -> list[ConfigSetting]:
    return [
        ConfigSetting(
            entry.name,
            entry.value,
            _SOURCES.get(ConfigSource(entry.source), "unknown"),
            entry.is_read_only,
            entry.is_sensitive,
            tuple(entry.synonyms),
        )
        for _, entry in sorted(found.items())
    ]


def _node_id(node: Any) -> int | None:
    return node.id if node is not None and node.id >= 0 else None


def _state(described: Any) -> str:
    """librdkafka sets the attribute only if the broker sent the state."""
    return _STATES.get(getattr(described, "state", ConsumerGroupState.UNKNOWN), "Unknown")


def _protocol(described: Any) -> Literal["classic", "consumer", "unknown"]:
    return _PROTOCOLS.get(getattr(described, "type", ConsumerGroupType.UNKNOWN), "unknown")
