"""Everybody in this process who acts when the metadata changes, as the one listener the controller knows."""

from __future__ import annotations

from collections.abc import Awaitable

from penstock.coordination.groups import GroupCoordinator
from penstock.core.metadata.image import TopicState
from penstock.replica.hosting import HostedPartitions


class MetadataListeners:
    """Partitions first: coordinators live on them."""

    def __init__(self, partitions: HostedPartitions) -> None:
        self._partitions = partitions
        self.groups: GroupCoordinator | None = None

    def topic_created(self, topic: TopicState) -> None:
        self._partitions.topic_created(topic)
        if self.groups is not None:
            self.groups.topic_created(topic)

    def partitions_added(self, topic: TopicState) -> None:
        self._partitions.partitions_added(topic)

    def topic_deleted(self, name: str, topic_id: bytes) -> Awaitable[None]:
        removal = self._partitions.topic_deleted(name, topic_id)
        if self.groups is not None:
            self.groups.topic_deleted(name)
        return removal

    def config_changed(self, topic: str) -> None:
        self._partitions.config_changed(topic)

    def persist_offsets(self) -> Awaitable[None]:
        return self._partitions.persist_offsets()
