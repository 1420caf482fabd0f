"""The controller: one decision at a time, each on the image that the last one left.

`core.metadata.decisions` says what to do; this shell makes the records stable, replays
them and tells the hosts of partitions. A reply leaves only after all of that, so a topic
that was reported created is visible at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from penstock.cluster.metadata_log import MetadataLog
from penstock.core.metadata import decisions, scram
from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage, TopicState
from penstock.core.metadata.records import (
    ConfigChanged,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdsAllocated,
    TopicCreated,
    TopicDeleted,
)
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.clock import Entropy

PRODUCER_ID_BLOCK = 1000

log = logging.getLogger(__name__)


class MetadataListener(Protocol):
    """Whoever must act when the metadata changes: the host of partitions."""

    def topic_created(self, topic: TopicState) -> None: ...

    def partitions_added(self, topic: TopicState) -> None: ...

    def topic_deleted(self, name: str, topic_id: bytes) -> Awaitable[None]: ...

    def config_changed(self, topic: str) -> None: ...

    def persist_offsets(self) -> Awaitable[None]: ...


class Controller:
    def __init__(
        self,
        log: MetadataLog,
        image: MetadataImage,
        listener: MetadataListener,
        entropy: Entropy,
        brokers: Sequence[int],
    ) -> None:
        self._log = log
        self.image = image
        self._listener = listener
        self._entropy = entropy
        self.brokers = list(brokers)
        self._lock = asyncio.Lock()
        self._next_producer_id = image.next_producer_id
        self._producer_id_end = image.next_producer_id
        self._removals: dict[asyncio.Future[None], None] = {}
        self.on_broker_config: Callable[[], None] = lambda: None

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]],
        configs: dict[str, str],
        *,
        validate_only: bool = False,
    ) -> bytes:
        """The new topic's id. Raises ApiError."""
        async with self._lock:
            topic_id = self._new_topic_id()
            records = decisions.create_topic(
                self.image, self.brokers, name, topic_id, partitions, replication_factor, assignments, configs
            )
            if not validate_only:
                await self._commit(records)
            return topic_id

    async def create_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool
    ) -> None:
        async with self._lock:
            records = decisions.create_partitions(self.image, self.brokers, name, count, assignments)
            if not validate_only:
                await self._commit(records)

    async def delete_topic(self, topic_id: bytes) -> None:
        async with self._lock:
            if topic_id not in self.image.topics_by_id:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            await self._commit([TopicDeleted(topic_id.hex())])
            # Before a topic of the same name can be created.
            await self._listener.persist_offsets()

    async def change_config(
        self,
        resource_type: int,
        name: str,
        decide: Callable[[Mapping[str, str]], dict[str, str]],
        *,
        validate_only: bool,
    ) -> None:
        """`decide` maps the current overrides to the new ones, or raises."""
        async with self._lock:
            current = self.image.configs.get((resource_type, name), {})
            overrides = decide(current)
            if not validate_only and overrides != current:
                await self._commit([ConfigChanged(resource_type, name, overrides)])

    async def alter_scram_credentials(
        self, changes: Sequence[scram.Deletion | scram.Upsertion]
    ) -> dict[str, ApiError | None]:
        """By user, in the order of the request: None, or why it was refused."""
        async with self._lock:
            records, outcomes = scram.alter_credentials(self.image, changes)
            if records:
                await self._commit(records)
            return outcomes

    async def allocate_producer_id(self) -> int:
        if self._next_producer_id >= self._producer_id_end:
            async with self._lock:
                if self._next_producer_id >= self._producer_id_end:
                    # Ids of a block that a crash cuts short are never handed out twice.
                    start = self.image.next_producer_id
                    await self._commit([ProducerIdsAllocated(start + PRODUCER_ID_BLOCK)])
                    self._next_producer_id, self._producer_id_end = start, start + PRODUCER_ID_BLOCK
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        return producer_id

    def _new_topic_id(self) -> bytes:
        while True:
            topic_id = self._entropy.random_bytes(16)
            # Ids whose base64 form starts with a dash break command lines; Kafka avoids them too.
            if topic_id[0] >> 2 != 62 and topic_id not in self.image.topics_by_id and any(topic_id[:15]):
                return topic_id

    async def _commit(self, records: Sequence[MetadataRecord]) -> None:
        await self._log.append(records)
        for record in records:
            deleted = None
            if isinstance(record, TopicDeleted):
                deleted = self.image.topics_by_id[bytes.fromhex(record.topic_id)].name
            self.image.replay(record)
            self._tell(record, deleted)

    def _tell(self, record: MetadataRecord, deleted_name: str | None) -> None:
        match record:
            case TopicCreated(name):
                # The overrides of a new topic follow in the next record of the same commit.
                self._listener.topic_created(self.image.topics[name])
            case PartitionsAdded(topic_id):
                self._listener.partitions_added(self.image.topics_by_id[bytes.fromhex(topic_id)])
            case TopicDeleted(topic_id) if deleted_name is not None:
                self._remove(deleted_name, bytes.fromhex(topic_id))
            case ConfigChanged(resource_type, name) if resource_type == RESOURCE_TOPIC:
                self._listener.config_changed(name)
            case ConfigChanged():
                self.on_broker_config()

    def _remove(self, name: str, topic_id: bytes) -> None:
        """Forget the topic now; its files go while we answer."""
        removal = asyncio.ensure_future(self._listener.topic_deleted(name, topic_id))
        self._removals[removal] = None
        removal.add_done_callback(self._removals.pop)

    async def settle(self) -> None:
        """Before shutdown: let removals finish. What could not be removed goes at the next start."""
        outcomes = await asyncio.gather(*self._removals, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, OSError):
                log.warning("a deleted topic's files are still there: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
