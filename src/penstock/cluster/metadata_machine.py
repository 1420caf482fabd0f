"""The metadata's state machine: applies committed entries to the image and notifies the listeners.

Every node runs it over the same entries in the same order. Notifications start with `listen`. A node that is still
opening its logs opens those of a copy of the image and gets the difference then. Must not know: how entries are
committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Protocol

from penstock.core.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage, PartitionState, TopicState
from penstock.core.metadata.records import (
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterCreated,
    ConfigChanged,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    PeerAddressRemoved,
    PeerAddressSet,
    TopicCreated,
    TopicDeleted,
    decode_entry,
    encode_in_steps,
)

log = logging.getLogger(__name__)


class MetadataListener(Protocol):
    """Acts on metadata changes. Called in log order, in the same turn as the change."""

    def topic_created(self, topic: TopicState) -> None: ...

    def partitions_added(self, topic: TopicState) -> None: ...

    def partition_changed(self, topic: TopicState, state: PartitionState) -> Awaitable[None] | None:
        """Returns an awaitable if files are being removed."""
        ...

    def topic_deleted(self, name: str, topic_id: bytes) -> Awaitable[None]: ...

    def config_changed(self, topic: str) -> None: ...


class MetadataMachine:
    """A `cluster.quorum.StateMachine`."""

    def __init__(
        self,
        image: MetadataImage,
        *,
        on_cluster_id: Callable[[str], None],
        on_brokers: Callable[[], None],
        on_settings: Callable[[], None],
    ) -> None:
        """`on_brokers`: a broker or the address of a node changed. `on_settings`: broker settings changed. All three
        are called from the first entry on: a controller depends on settings before it serves.
        """
        self.image = image
        self._on_cluster_id = on_cluster_id
        self._on_brokers = on_brokers
        self._on_settings = on_settings
        self._listener: MetadataListener | None = None
        self._removals: dict[asyncio.Future[None], None] = {}

    # -- from the quorum ----------------------------------------------------------------

    def apply(self, index: int, data: bytes) -> None:
        """An entry is one decision: listeners are called only when the image contains all of it."""
        records = decode_entry(data)
        deleted: dict[str, str] = {}
        for record in records:
            if isinstance(record, TopicDeleted):
                deleted[record.topic_id] = self.image.topics_by_id[bytes.fromhex(record.topic_id)].name
            self.image.replay(record)
        for record in records:
            self._tell(record, deleted)

    def restore(self, index: int, data: bytes) -> None:
        """Replace the image by a snapshot; listeners get the difference."""
        before = self.image.copy()
        self.image.clear()
        for record in decode_entry(data):
            self.image.replay(record)
        if self.image.cluster_id != before.cluster_id:
            self._on_cluster_id(self.image.cluster_id)
        self._on_settings()
        if self._listener is not None:
            self._tell_difference(self._listener, before)
        self._on_brokers()

    def snapshot(self) -> Generator[None, None, bytes]:
        """A snapshot of the image at the time of the call."""
        return encode_in_steps(self.image.copy().each_snapshot_record())

    def copy(self) -> MetadataImage:
        return self.image.copy()

    def listen(self, listener: MetadataListener, since: MetadataImage) -> None:
        """Notify of changes from now on, and now of the differences from `since`."""
        self._listener = listener
        self._tell_difference(listener, since)

    # # -- notifications ------------------------------------------------------------------

    def _tell(self, record: MetadataRecord, deleted: dict[str, str]) -> None:
        match record:
            case BrokerRegistered() | BrokerChanged() | BrokerUnregistered() | PeerAddressSet() | PeerAddressRemoved():
                self._on_brokers()
            case ClusterCreated(cluster_id):
                self._on_cluster_id(cluster_id)
            case ConfigChanged(resource_type) if resource_type == RESOURCE_BROKER:
                self._on_settings()
        listener = self._listener
        if listener is None:
            return
        image = self.image
        match record:
            case TopicCreated(name):
                listener.topic_created(image.topics[name])
            case PartitionsAdded(topic_id):
                listener.partitions_added(image.topics_by_id[bytes.fromhex(topic_id)])
            case PartitionChanged(topic_id, partition):
                topic = image.topics_by_id[bytes.fromhex(topic_id)]
                self._await(listener.partition_changed(topic, topic.partitions[partition]))
            case TopicDeleted(topic_id):
                self._await(listener.topic_deleted(deleted[topic_id], bytes.fromhex(topic_id)))
            case ConfigChanged(resource_type, name) if resource_type == RESOURCE_TOPIC:
                listener.config_changed(name)

    def _await(self, removal: Awaitable[None] | None) -> None:
        """The partition is forgotten now; its files are removed later."""
        if removal is not None:
            task = asyncio.ensure_future(removal)
            self._removals[task] = None
            task.add_done_callback(self._removals.pop)

    async def settle(self) -> None:
        """Before shutdown: let removals finish. Remaining files are removed at the next start."""
        outcomes = await asyncio.gather(*self._removals, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, OSError):
                log.warning("files of a deleted topic remain until the next start: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    def _tell_difference(self, listener: MetadataListener, before: MetadataImage) -> None:
        if before is self.image:
            return
        old_topics, old_configs = before.topics_by_id, before.configs
        image = self.image
        for topic_id, old in old_topics.items():
            if topic_id not in image.topics_by_id:
                self._await(listener.topic_deleted(old.name, topic_id))
        # Before partitions: a leader with a smaller ISR must use the minimum that applied to it. Until a partition has
        # its new state, its high watermark waits.
        for kind, name in {**old_configs, **image.configs}:
            is_known = kind == RESOURCE_TOPIC and name in image.topics and image.topics[name].topic_id in old_topics
            if is_known and old_configs.get((kind, name)) != image.configs.get((kind, name)):
                listener.config_changed(name)
        for topic_id, topic in image.topics_by_id.items():
            known_topic = old_topics.get(topic_id)
            if known_topic is None:
                listener.topic_created(topic)
                continue
            if len(topic.partitions) > len(known_topic.partitions):
                listener.partitions_added(topic)
            for known, state in zip(known_topic.partitions, topic.partitions, strict=False):
                if known != state:
                    self._await(listener.partition_changed(topic, state))
