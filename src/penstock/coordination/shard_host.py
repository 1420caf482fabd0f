"""The shards of one coordinator on this broker, and their internal topic.

The state of a group or a transactional id is in one partition of an internal topic, and the leader of that partition is
its coordinator. This broker hosts shards for the partitions it leads: a shard is loaded when leadership comes and
stopped when it goes (`role_changed`). The topic is created when a client first looks for a coordinator, as in Kafka.
The number of its partitions decides where a state is, so it is taken from the metadata and not from a setting.

Must not know: the content of a shard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.coordination.hosted_shard import HostedShard, News, Operation, Shard, ShardKind
from penstock.coordination.notices import Notices
from penstock.core.metadata.image import MetadataImage, TopicState
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.ports.clock import Clock
from penstock.ports.workers import Workers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition

log = logging.getLogger(__name__)

LEAST_SEGMENT_BYTES: Final = 1 << 20
BROKERS_GRACE_S: Final = 5.0
"""How long to wait for brokers: a starting cluster has few at first, and the topic would keep that replication
factor."""
SHORT_KEY: Final = 128
KEYS_REMEMBERED: Final = 4096

R = TypeVar("R")
S = TypeVar("S", bound=Shard)


class ControllerSide(Protocol):
    """The active controller, here or elsewhere, and its decisions so far."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def brokers(self) -> Sequence[int]: ...

    async def create_topic(self, topic: NewTopic) -> object: ...


class CoordinatorTopic(NamedTuple):
    """The settings for creating the topic."""

    partitions: int
    replication_factor: int
    segment_bytes: int
    configs: dict[str, str] = {}


class Surroundings(NamedTuple):
    """The surroundings of every coordinator."""

    loop: asyncio.AbstractEventLoop
    running: RunningConfig
    controller: ControllerSide
    partitions: HostedPartitions
    workers: Workers
    clock: Clock


class ShardHost(Generic[S]):
    def __init__(
        self,
        around: Surroundings,
        topic: str,
        wanted: Callable[[BrokerConfig], CoordinatorTopic],
        kind: ShardKind[S],
    ) -> None:
        self._loop = around.loop
        self._running = around.running
        self._controller = around.controller
        self._image = around.controller.image
        self._partitions = around.partitions
        self._workers = around.workers
        self._clock = around.clock
        self.topic = topic
        self._wanted = wanted
        self._kind = kind
        self._notices = Notices(self._loop.time)
        self._shards: dict[int, HostedShard[S]] = {}
        self._epochs: dict[int, int] = {}
        """The leader epoch in which each shard was last seen."""
        self._creating: asyncio.Task[None] | None = None
        self._first_asked_at: float | None = None
        self._is_stopped = False

    def __iter__(self) -> Iterator[HostedShard[S]]:
        return iter(self._shards.values())

    # # -- start and stop -----------------------------------------------------------------

    def start(self) -> None:
        """Begin to load the shards led here; requests get COORDINATOR_LOAD_IN_PROGRESS until that is done."""
        for partition in list(self._partitions.by_name.get(self.topic, ())):
            if partition is not None:
                self.role_changed(partition)

    def role_changed(self, partition: Partition) -> None:
        """A partition was added or removed, or has another leader or epoch."""
        if partition.topic != self.topic or self._is_stopped:
            return
        index = partition.index
        shard = self._shards.get(index)
        is_led_here = not partition.is_deleted and partition.leader == self._running.current.node_id
        if shard is not None and not is_led_here:
            if shard.partition is not partition and partition.is_deleted:
                return  # from an earlier topic of this name
            self._drop(index, "it is deleted" if partition.is_deleted else f"broker {partition.leader} leads it")
        elif is_led_here:
            epoch = partition.leader_epoch
            seen = self._epochs.get(index, epoch)
            # An epoch in between may belong to another leader, whose records are not in memory.
            if shard is not None and shard.partition is partition and shard.is_current and epoch - seen <= 1:
                self._epochs[index] = epoch
                return
            if shard is not None:
                self._drop(index, f"this broker leads it again in epoch {epoch}")
            self._host(partition)

    def _host(self, partition: Partition) -> None:
        shard = self._shards[partition.index] = HostedShard(
            self._loop, partition, self._kind, self._workers, self._clock, self._may_lead, self._notices
        )
        self._epochs[partition.index] = partition.leader_epoch
        shard.start()

    def _may_lead(self) -> bool:
        lease = self._partitions.host.lease
        return lease is None or lease()

    def _drop(self, index: int, why: str) -> None:
        shard = self._shards.pop(index)
        self._epochs.pop(index, None)
        count = len(shard.shard)
        shard.stop(ErrorCode.NOT_COORDINATOR)
        level = logging.INFO if count else logging.DEBUG  # most of fifty shards are empty, and all move at a restart
        noun = f"{self._kind.noun}{'s' * (count != 1)}"
        log.log(level, "%r with %d %s is no longer coordinated by this broker: %s", shard, count, noun, why)

    def stop(self) -> None:
        """Call before connections are drained: waiting requests get an answer now."""
        self._is_stopped = True
        for shard in self._shards.values():
            shard.stop(ErrorCode.NOT_COORDINATOR)

    # -- the topic ----------------------------------------------------------------------

    async def ensure_topic(self) -> None:
        """The topic exists when this returns. Raises ApiError or StorageError."""
        if self.topic in self._image.topics:
            return
        if self._creating is None:
            self._creating = self._loop.create_task(self._create_topic())
            self._creating.add_done_callback(self._created)
        await asyncio.shield(self._creating)

    async def _create_topic(self) -> None:
        wanted = self._wanted(self._running.current)
        segment_bytes = str(wanted.segment_bytes)
        configs = {"cleanup.policy": "compact", "compression.type": "producer", **wanted.configs}
        # A topic's own setting must be at least a mebibyte.
        name = "segment.bytes" if wanted.segment_bytes >= LEAST_SEGMENT_BYTES else "internal.segment.bytes"
        configs[name] = segment_bytes
        replication_factor = self._replication_factor(wanted.replication_factor)
        try:
            await self._controller.create_topic(
                NewTopic(self.topic, wanted.partitions, replication_factor, configs=configs)
            )
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _replication_factor(self, wanted: int) -> int:
        """Kafka refuses to create the topic on fewer brokers than the setting; here it gets fewer replicas."""
        live = len(self._controller.brokers)
        if live < min(wanted, len(self._running.current.controller_quorum_voters)):
            now = self._clock.monotonic()
            if self._first_asked_at is None:
                self._first_asked_at = now
            if now - self._first_asked_at < BROKERS_GRACE_S:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"only {live} broker(s) are up yet")
            log.warning(
                "%s is created with %d replica(s) instead of %d, because only so many brokers are up; to change that "
                "later, reassign its partitions (penstock cluster reassign)",
                self.topic,
                max(live, 1),
                wanted,
            )
        return max(min(wanted, live), 1)

    def _created(self, task: asyncio.Task[None]) -> None:
        self._creating = None
        if not task.cancelled():
            task.exception()  # the waiting caller gets the error, too

    def topic_deleted(self, name: str) -> None:
        if name == self.topic:
            for index in list(self._shards):
                self._drop(index, "its topic is deleted")

    def topic_created(self, topic: TopicState) -> None:
        if topic.name == self.topic:
            self.start()

    # # -- where a key is -----------------------------------------------------------------

    def index_of(self, key: str) -> int | None:
        """The partition of this key; None while the topic does not exist."""
        topic = self._image.topics.get(self.topic)
        return None if topic is None else partition_of(key, len(topic.partitions))

    def leader_of(self, key: str) -> int | None:
        """The broker that coordinates a key, from the metadata; None if there is none."""
        index = self.index_of(key)
        if index is None:
            return None
        leader = self._image.topics[self.topic].partitions[index].leader
        return leader if leader >= 0 else None

    def find(self, key: str) -> HostedShard[S] | None:
        index = self.index_of(key)
        return None if index is None else self._shards.get(index)

    def shard_of(self, key: str) -> HostedShard[S]:
        shard = self.find(key)
        if shard is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return shard

    def shard_at(self, index: int) -> HostedShard[S]:
        shard = self._shards.get(index)
        if shard is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return shard

    # # -- requests -----------------------------------------------------------------------

    async def call(self, key: str, kind: type[R], operation: Operation[S]) -> R:
        """Run an operation on the shard of a key. Raises ApiError if it is not here, not loaded or cannot write."""
        reply = await self.submit(key, operation)
        assert isinstance(reply, kind)
        return reply

    def submit(self, key: str, operation: Operation[S]) -> asyncio.Future[Any]:
        """Like `call`, but in this turn, for a request that must precede the client's next one."""
        return self.shard_of(key).call(operation)

    def tell(self, key: str, news: News[S]) -> None:
        """An event that needs no reply."""
        shard = self.find(key)
        if shard is not None:
            shard.tell(news)

    async def call_all(self, kind: type[R], operation: Operation[S]) -> list[R]:
        """Run an operation on every shard here; a shard that moves meanwhile is left to its new broker."""
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

    async def _ask(self, shard: HostedShard[S], operation: Operation[S]) -> Any:
        return await shard.call(operation)


def partition_of(key: str, count: int) -> int:
    """As in Kafka: the absolute value of Java's string hash, modulo the number of partitions."""
    return (_hash_of_short if len(key) <= SHORT_KEY else _hash_of)(key) % count


def _hash_of(key: str) -> int:
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if value & 0x80000000:
        value = 0x100000000 - value
        if value == 0x80000000:
            value = 0  # the only number without an absolute value
    return value


_hash_of_short = lru_cache(KEYS_REMEMBERED)(_hash_of)
"""Every request of a producer or member looks for its key again."""
