"""The group coordinator of this broker: which shard a group belongs to, and the topic under them all.

`__consumer_offsets` is created when somebody first asks for a coordinator, as in Kafka. Its
number of partitions decides where a group's state lies, so it is the topic's own and not the
setting's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, TypeVar

from penstock.cluster.controller import Controller
from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.coordination.consumer_groups import ConsumerSettingsOf, ImageTopics
from penstock.coordination.hosted_shard import HostedShard, News, Operation
from penstock.core.group.settings import GroupSettings
from penstock.core.group.shard import GroupShard
from penstock.core.group.story import StoryEvent
from penstock.core.metadata.image import TopicState
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.clock import Clock
from penstock.ports.workers import Workers
from penstock.replica.hosting import HostedPartitions

OFFSETS_TOPIC: Final = "__consumer_offsets"

R = TypeVar("R")


class GroupCoordinator:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: RunningConfig,
        controller: Controller,
        partitions: HostedPartitions,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self._running = running
        self._controller = controller
        self._partitions = partitions
        self._workers = workers
        self._clock = clock
        self._settings = GroupSettings.from_config(running.current)
        self._make_shard = partial(
            GroupShard,
            topics=ImageTopics(controller.image),
            consumer_settings_of=ConsumerSettingsOf(running, controller.image),
        )
        self._shards: list[HostedShard] = []
        self._creating: asyncio.Task[None] | None = None
        self._is_stopped = False
        running.subscribe(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        self._settings = GroupSettings.from_config(config)
        for shard in self._shards:
            shard.configure(self._settings)

    # -- life ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load what the topic holds; groups answer COORDINATOR_LOAD_IN_PROGRESS until theirs is."""
        self._host(len(self._partitions.by_name.get(OFFSETS_TOPIC, ())))

    def _host(self, count: int) -> None:
        image = self._controller.image
        for index in range(len(self._shards), count):
            shard = HostedShard(
                self._loop,
                self._partitions.get(OFFSETS_TOPIC, index),
                self._settings,
                self._workers,
                self._clock,
                lambda topic: topic in image.topics,
                self._make_shard,
            )
            self._shards.append(shard)
            shard.start()

    def stop(self) -> None:
        """Before connections are drained: whoever is parked gets an answer now."""
        self._is_stopped = True
        for shard in self._shards:
            shard.stop(ErrorCode.NOT_COORDINATOR)

    # -- the topic ----------------------------------------------------------------------

    async def ensure_topic(self) -> None:
        """The topic exists when this returns. Raises ApiError or StorageError."""
        if self._shards:
            return
        if self._creating is None:
            self._creating = self._loop.create_task(self._create_topic())
            self._creating.add_done_callback(self._created)
        await asyncio.shield(self._creating)

    async def _create_topic(self) -> None:
        settings = self._running.current
        # On fewer brokers than the default asks for Kafka refuses; one broker is no reason to do without groups.
        replication_factor = min(settings.offsets_topic_replication_factor, len(self._controller.brokers))
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        }
        try:
            await self._controller.create_topic(
                OFFSETS_TOPIC, settings.offsets_topic_num_partitions, replication_factor, {}, configs
            )
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _created(self, task: asyncio.Task[None]) -> None:
        self._creating = None
        if not task.cancelled():
            task.exception()  # whoever awaited it has it too

    def topic_created(self, topic: TopicState) -> None:
        if topic.name == OFFSETS_TOPIC and not self._is_stopped:
            self._host(len(topic.partitions))

    def topic_deleted(self, name: str) -> None:
        if name == OFFSETS_TOPIC:
            shards, self._shards = self._shards, []
            for shard in shards:
                shard.stop(ErrorCode.NOT_COORDINATOR)
            return
        for shard in self._shards:
            shard.topics_deleted([name])

    # -- asking -------------------------------------------------------------------------

    async def call(self, group_id: str, kind: type[R], operation: Operation) -> R:
        """Ask the shard of a group. Raises ApiError when it is not here, not loaded or cannot write."""
        reply = await self.submit(group_id, operation)
        assert isinstance(reply, kind)
        return reply

    def submit(self, group_id: str, operation: Operation) -> asyncio.Future[Any]:
        """The same in this very turn, for a request that what the client sends next may concern."""
        return self._shard_of(group_id).call(operation)

    def tell(self, group_id: str, news: News) -> None:
        """Something that needs no answer."""
        if self._shards:
            self._shard_of(group_id).tell(news)

    async def call_all(self, kind: type[R], operation: Operation) -> list[R]:
        """Ask every shard."""
        replies = await asyncio.gather(*[shard.call(operation) for shard in self._shards])
        return [reply for reply in replies if isinstance(reply, kind)]

    def story(self, group_id: str) -> tuple[StoryEvent, ...]:
        return self._shard_of(group_id).shard.story(group_id)

    def shards(self) -> Iterator[HostedShard]:
        yield from self._shards

    def _shard_of(self, group_id: str) -> HostedShard:
        if not self._shards:
            # Nobody has looked for a coordinator yet, so this client has not found it here either.
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return self._shards[partition_of(group_id, len(self._shards))]


def partition_of(group_id: str, count: int) -> int:
    """Kafka's: Java's hash of the string, without its sign, modulo the number of partitions."""
    value = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if value & 0x80000000:
        value = 0x100000000 - value
        if value == 0x80000000:
            value = 0  # the one number without an opposite
    return value % count
