"""The group coordinator of this broker: its shards on `__consumer_offsets`, and their view of the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from penstock.config.broker import BrokerConfig
from penstock.coordination.consumer_groups import ConsumerSettingsOf, ImageTopics
from penstock.coordination.hosted_shard import HostedShard, News, Operation
from penstock.coordination.regex_matching import RegexMatching
from penstock.coordination.shard_host import CoordinatorTopic, ShardHost, Surroundings
from penstock.core.group.consumer_group import ConsumerGroup
from penstock.core.group.exchange import EndTransactionReply
from penstock.core.group.settings import GroupSettings
from penstock.core.group.shard import GroupShard
from penstock.core.group.story import StoryEvent
from penstock.core.metadata.image import TopicState
from penstock.core.shard.exchange import Marker, Producer
from penstock.ports.workers import RecordWorkers
from penstock.records.batch import NO_SEQUENCE
from penstock.replica.partition import Partition

OFFSETS_TOPIC = "__consumer_offsets"

R = TypeVar("R")


class GroupKind:
    """The parts that all group shards share."""

    noun = "group"

    def __init__(self, around: Surroundings) -> None:
        self._image = around.controller.image
        self.settings = GroupSettings.from_config(around.running.current)
        self.consumer_settings = ConsumerSettingsOf(around.running, self._image)

    @property
    def commit_timeout_ms(self) -> int:
        return self.settings.offsets_commit_timeout_ms

    def make(self) -> GroupShard:
        return GroupShard(self.settings, ImageTopics(self._image), self.consumer_settings)

    def first_decisions(self) -> Sequence[News[GroupShard]]:
        """The second decision drops offsets of topics that were deleted just before a crash, or while the log was
        loaded.
        """
        exists = self._image.topics.__contains__
        return GroupShard.loaded, lambda shard, now_ms: shard.forget_earlier_topics(now_ms, exists)

    def carry_out(self, deed: Any, hosted: HostedShard[GroupShard]) -> None:
        raise AssertionError(f"unexpected deed of a group shard: {deed!r}")


class GroupCoordinator:
    def __init__(self, around: Surroundings, record_workers: RecordWorkers) -> None:
        self._kind = GroupKind(around)
        self._host = ShardHost(around, OFFSETS_TOPIC, _offsets_topic, self._kind)
        self.regexes = RegexMatching(around.controller.image, record_workers)
        around.running.subscribe(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        self._kind.settings = GroupSettings.from_config(config)
        for hosted in self._host:
            hosted.shard.configure(self._kind.settings)

    @property
    def speaks_consumer_protocol(self) -> bool:
        """KIP-848. The feature level or the broker's settings may disable it."""
        return self._kind.consumer_settings.is_enabled

    def regexes_of(self, group_id: str, regex: str | None) -> list[str]:
        """The regular expressions of a group's members, and `regex` if given."""
        hosted = self._host.find(group_id)
        group = None if hosted is None else hosted.shard.groups.get(group_id)
        found = dict.fromkeys(group.regexes) if isinstance(group, ConsumerGroup) else {}
        if regex:
            found[regex] = None
        return list(found)

    def topic_deleted(self, name: str) -> None:
        """A topic was deleted: delete its committed offsets, too."""
        self._host.topic_deleted(name)
        for hosted in self._host:
            hosted.tell(lambda shard, now_ms: shard.topics_deleted([name], now_ms))

    def topic_created(self, topic: TopicState) -> None:
        self._host.topic_created(topic)

    def start(self) -> None:
        self._host.start()

    def stop(self) -> None:
        self._host.stop()

    def role_changed(self, partition: Partition) -> None:
        self._host.role_changed(partition)

    async def ensure_topic(self) -> None:
        await self._host.ensure_topic()

    def leader_of(self, group_id: str) -> int | None:
        return self._host.leader_of(group_id)

    def index_of(self, group_id: str) -> int | None:
        """The partition of the offsets topic that holds the state of this group."""
        return self._host.index_of(group_id)

    # # -- requests -----------------------------------------------------------------------

    async def call(self, group_id: str, kind: type[R], operation: Operation[GroupShard]) -> R:
        return await self._host.call(group_id, kind, operation)

    def submit(self, group_id: str, operation: Operation[GroupShard]) -> Any:
        return self._host.submit(group_id, operation)

    def tell(self, group_id: str, news: News[GroupShard]) -> None:
        self._host.tell(group_id, news)

    async def call_all(self, kind: type[R], operation: Operation[GroupShard]) -> list[R]:
        return await self._host.call_all(kind, operation)

    def begin_verification(self, index: int, producer_id: int, epoch: int, *, raises_epoch: bool) -> Producer:
        """Call this before asking the transaction coordinator about this partition of the offsets topic. Raises
        ApiError.
        """
        producers = self._host.shard_at(index).partition.log.producers
        guard = producers.begin_verification(producer_id, NO_SEQUENCE, epoch, raises_epoch=raises_epoch)
        return Producer(producer_id, epoch, guard)

    async def end_transaction(self, index: int, marker: Marker) -> None:
        """Write the marker into this partition of the offsets topic. Returns when it is committed. Raises ApiError."""
        reply = await self._host.shard_at(index).call(
            lambda shard, token, now_ms: shard.end_transaction(marker, token, now_ms)
        )
        assert isinstance(reply, EndTransactionReply)

    def story(self, group_id: str) -> tuple[StoryEvent, ...]:
        return self._host.shard_of(group_id).shard.story(group_id)

    def shards(self) -> Iterator[HostedShard[GroupShard]]:
        return iter(self._host)


def _offsets_topic(config: BrokerConfig) -> CoordinatorTopic:
    return CoordinatorTopic(
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        config.offsets_topic_segment_bytes,
    )
