"""Passes metadata changes on to all listeners in this process; the state machine knows only this one."""

from __future__ import annotations

from collections.abc import Awaitable

from penstock.core.metadata.image import PartitionState, TopicState
from penstock.node.coordinators import Coordinators
from penstock.replica.hosting import HostedPartitions


class MetadataListeners:
    """Partitions first: coordinators depend on them."""

    def __init__(self, partitions: HostedPartitions, coordinators: Coordinators) -> None:
        self._partitions = partitions
        self._coordinators = coordinators

    def topic_created(self, topic: TopicState) -> None:
        self._partitions.topic_created(topic)
        self._coordinators.topic_created(topic)

    def partitions_added(self, topic: TopicState) -> None:
        self._partitions.partitions_added(topic)

    def partition_changed(self, topic: TopicState, state: PartitionState) -> Awaitable[None] | None:
        return self._partitions.partition_changed(topic, state)

    def topic_deleted(self, name: str, topic_id: bytes) -> Awaitable[None]:
        removal = self._partitions.topic_deleted(name, topic_id)
        self._coordinators.topic_deleted(name)
        return removal

    def config_changed(self, topic: str) -> None:
        self._partitions.config_changed(topic)
