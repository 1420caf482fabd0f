"""The group coordinator of this broker: which shard a group belongs to, and the topic under them all.

A group's state lies in one partition of `__consumer_offsets`, and whoever leads that partition
coordinates the group. Shards are here for the partitions that are led here and no others: they are
loaded when leadership comes and stopped when it goes (`role_changed`). The topic is created when
somebody first asks for a coordinator, as in Kafka. Its number of partitions decides where a group's
state lies, so it is the topic's own in the metadata and not the setting's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.coordination.consumer_groups import ConsumerSettingsOf, ImageTopics
from penstock.coordination.hosted_shard import HostedShard, News, Operation
from penstock.coordination.notices import Notices
from penstock.coordination.regex_matching import RegexMatching
from penstock.core.group.consumer_group import ConsumerGroup
from penstock.core.group.settings import GroupSettings
from penstock.core.group.shard import GroupShard
from penstock.core.group.story import StoryEvent
from penstock.core.metadata.image import MetadataImage, TopicState
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.clock import Clock
from penstock.ports.workers import RecordWorkers, Workers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition

log = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
LEAST_SEGMENT_BYTES: Final = 1 << 20
BROKERS_GRACE_S: Final = 5.0
"""A cluster that is being started has fewer brokers at first than it will have; the topic would keep that for good."""

R = TypeVar("R")


class ControllerSide(Protocol):
    """The active controller, here or elsewhere, and what it has decided so far."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def brokers(self) -> Sequence[int]: ...

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]],
        configs: dict[str, str],
    ) -> object: ...


class GroupCoordinator:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: RunningConfig,
        controller: ControllerSide,
        partitions: HostedPartitions,
        workers: Workers,
        record_workers: RecordWorkers,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self._running = running
        self._controller = controller
        self._image = image = controller.image
        self._partitions = partitions
        self._workers = workers
        self._clock = clock
        self._settings = GroupSettings.from_config(running.current)
        self._consumer_settings = ConsumerSettingsOf(running, image)
        self.regexes = RegexMatching(image, record_workers)
        self._notices = Notices(loop.time)
        self._make_shard = partial(
            GroupShard,
            topics=ImageTopics(image),
            consumer_settings_of=self._consumer_settings,
        )
        self._shards: dict[int, HostedShard] = {}
        self._epochs: dict[int, int] = {}
        """The leader epoch in which each shard was seen last."""
        self._creating: asyncio.Task[None] | None = None
        self._first_asked_at: float | None = None
        self._is_stopped = False
        running.subscribe(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        self._settings = GroupSettings.from_config(config)
        for shard in self._shards.values():
            shard.configure(self._settings)

    @property
    def speaks_consumer_protocol(self) -> bool:
        """KIP-848. The feature or the broker's settings may switch it off."""
        return self._consumer_settings.is_enabled

    def regexes_of(self, group_id: str, regex: str | None) -> list[str]:
        """Those of a group's members, and one that a member brings."""
        shard = self._find(group_id)
        group = None if shard is None else shard.shard.groups.get(group_id)
        found = dict.fromkeys(group.regexes) if isinstance(group, ConsumerGroup) else {}
        if regex:
            found[regex] = None
        return list(found)

    # -- life ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load what is led here; groups answer COORDINATOR_LOAD_IN_PROGRESS until theirs is."""
        for partition in list(self._partitions.by_name.get(OFFSETS_TOPIC, ())):
            if partition is not None:
                self.role_changed(partition)

    def role_changed(self, partition: Partition) -> None:
        """A partition came, went, or has another leader or epoch: hook of `HostedPartitions.on_role`."""
        if partition.topic != OFFSETS_TOPIC or self._is_stopped:
            return
        index = partition.index
        shard = self._shards.get(index)
        is_led_here = not partition.is_deleted and partition.leader == self._running.current.node_id
        if shard is not None and not is_led_here:
            if shard.partition is not partition and partition.is_deleted:
                return  # of a topic of this name that was here before
            self._drop(index, "it is deleted" if partition.is_deleted else f"broker {partition.leader} leads it")
        elif is_led_here:
            epoch = partition.leader_epoch
            seen = self._epochs.get(index, epoch)
            # An epoch that nobody showed us belonged to another leader, perhaps: what he wrote is not in memory.
            if shard is not None and shard.partition is partition and shard.is_current and epoch - seen <= 1:
                self._epochs[index] = epoch
                return
            if shard is not None:
                self._drop(index, f"it is led here anew in epoch {epoch}")
            self._host(partition)

    def _host(self, partition: Partition) -> None:
        image = self._image
        shard = self._shards[partition.index] = HostedShard(
            self._loop,
            partition,
            self._settings,
            self._workers,
            self._clock,
            lambda topic: topic in image.topics,
            self._make_shard,
            self._may_lead,
            self._notices,
        )
        self._epochs[partition.index] = partition.leader_epoch
        shard.start()

    def _may_lead(self) -> bool:
        lease = self._partitions.host.lease
        return lease is None or lease()

    def _drop(self, index: int, why: str) -> None:
        shard = self._shards.pop(index)
        self._epochs.pop(index, None)
        groups = len(shard.shard.groups)
        shard.stop(ErrorCode.NOT_COORDINATOR)
        level = logging.INFO if groups else logging.DEBUG  # of fifty shards most are empty, and all move at a restart
        log.log(level, "%r with %d group%s is coordinated here no more: %s", shard, groups, "s" * (groups != 1), why)

    def stop(self) -> None:
        """Before connections are drained: whoever is parked gets an answer now."""
        self._is_stopped = True
        for shard in self._shards.values():
            shard.stop(ErrorCode.NOT_COORDINATOR)

    # -- the topic ----------------------------------------------------------------------

    async def ensure_topic(self) -> None:
        """The topic exists when this returns. Raises ApiError or StorageError."""
        if OFFSETS_TOPIC in self._image.topics:
            return
        if self._creating is None:
            self._creating = self._loop.create_task(self._create_topic())
            self._creating.add_done_callback(self._created)
        await asyncio.shield(self._creating)

    async def _create_topic(self) -> None:
        settings = self._running.current
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        }
        if settings.offsets_topic_segment_bytes < LEAST_SEGMENT_BYTES:  # which a topic's own setting does not allow
            configs["internal.segment.bytes"] = configs.pop("segment.bytes")
        replication_factor = self._replication_factor(settings.offsets_topic_replication_factor)
        try:
            await self._controller.create_topic(
                OFFSETS_TOPIC, settings.offsets_topic_num_partitions, replication_factor, {}, configs
            )
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _replication_factor(self, wanted: int) -> int:
        """On fewer brokers than the setting asks for Kafka refuses; that is no reason to do without groups."""
        live = len(self._controller.brokers)
        if live < min(wanted, len(self._running.current.controller_quorum_voters)):
            now = self._clock.monotonic()
            if self._first_asked_at is None:
                self._first_asked_at = now
            if now - self._first_asked_at < BROKERS_GRACE_S:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"only {live} broker(s) are up yet")
            log.warning(
                "%s is created with %d replica(s) instead of %d, since so many brokers are up; that stays so until its "
                "partitions are reassigned (penstock cluster reassign)",
                OFFSETS_TOPIC,
                max(live, 1),
                wanted,
            )
        return max(min(wanted, live), 1)

    def _created(self, task: asyncio.Task[None]) -> None:
        self._creating = None
        if not task.cancelled():
            task.exception()  # whoever awaited it has it too

    def topic_deleted(self, name: str) -> None:
        """Its committed offsets go too."""
        if name == OFFSETS_TOPIC:
            for index in list(self._shards):
                self._drop(index, "its topic is deleted")
        for shard in self._shards.values():
            shard.topics_deleted([name])

    def topic_created(self, topic: TopicState) -> None:
        if topic.name == OFFSETS_TOPIC:
            self.start()

    def leader_of(self, group_id: str) -> int | None:
        """The broker that coordinates a group, as the metadata have it; None while there is none."""
        index = self._index_of(group_id)
        if index is None:
            return None
        leader = self._image.topics[OFFSETS_TOPIC].partitions[index].leader
        return leader if leader >= 0 else None

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
        shard = self._find(group_id)
        if shard is not None:
            shard.tell(news)

    async def call_all(self, kind: type[R], operation: Operation) -> list[R]:
        """Ask every shard that is here; one that goes meanwhile is another broker's to tell of."""
        asked = [self._ask(shard, operation) for shard in self._shards.values()]
        replies: list[R] = []
        failure: ApiError | None = None
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, kind):
                replies.append(outcome)
            elif not isinstance(outcome, ApiError):
                assert isinstance(outcome, BaseException)
                raise outcome
            elif outcome.code is not ErrorCode.NOT_COORDINATOR:
                failure = outcome
        if failure is not None:
            raise failure
        return replies

    async def _ask(self, shard: HostedShard, operation: Operation) -> Any:
        return await shard.call(operation)

    def story(self, group_id: str) -> tuple[StoryEvent, ...]:
        return self._shard_of(group_id).shard.story(group_id)

    def shards(self) -> Iterator[HostedShard]:
        yield from self._shards.values()

    def _shard_of(self, group_id: str) -> HostedShard:
        shard = self._find(group_id)
        if shard is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return shard

    def _find(self, group_id: str) -> HostedShard | None:
        index = self._index_of(group_id)
        return None if index is None else self._shards.get(index)

    def _index_of(self, group_id: str) -> int | None:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        return None if topic is None else partition_of(group_id, len(topic.partitions))


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
