"""Shards of transactions on their partitions: their markers are due once the decision is committed, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import pytest

from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.coordination import hosted_shard
from penstock.coordination.markers import MarkerSender, MarkerTask
from penstock.coordination.shard_host import Surroundings
from penstock.coordination.transactions import TransactionCoordinator
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import FeatureChanged, TopicCreated
from penstock.core.txn.exchange import AddRequest, EndReply, EndRequest, InitReply, InitRequest, ListFilter
from penstock.core.txn.shard import TRANSACTION_STATE_TOPIC
from penstock.core.txn.states import State
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from support.worlds.hosts import lone_host
from support.worlds.led_partition import ELSEWHERE, HERE, NOW_MS, LedPartition

A = TypeVar("A")
T = TypeVar("T")
P0, P1 = ("orders", 0), ("orders", 1)


class Workers:
    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(work())
        return future

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        return map(work, items)


class Clock:
    moment_ms = 5_000_000

    def now_ms(self) -> int:
        return NOW_MS + self.moment_ms

    def monotonic(self) -> float:
        return self.moment_ms / 1000


class Controller:
    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.brokers = [1, 2, 3]
        self.created: list[NewTopic] = []

    async def create_topic(self, topic: NewTopic) -> None:
        self.created.append(topic)


class ProducerIds:
    def __init__(self) -> None:
        self.given = 1000
        self.refusal: ApiError | None = None

    async def allocate_producer_id(self) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.given += 1
        return self.given


class Markers:
    def __init__(self) -> None:
        self.sent: list[MarkerTask] = []
        self.waiting = 0

    def send(self, task: MarkerTask) -> None:
        self.sent.append(task)

    def stop(self) -> None: ...


class Hosted:
    def __init__(self) -> None:
        self.by_name: dict[str, list[LedPartition | None]] = {}
        self.host = lone_host(HERE, Clock())


class Broker:
    """It coordinates all transactional ids: their topic has one partition."""

    def __init__(self, *, has_topic: bool = True, **settings: str) -> None:
        self.image = MetadataImage()
        config = BrokerConfig.load(None, {"log.dirs": "/data", "node.id": "1", **settings})[0]
        self.controller, self.hosted, self.clock = Controller(self.image), Hosted(), Clock()
        self.ids, self.markers = ProducerIds(), Markers()
        if has_topic:
            self.image.replay(TopicCreated(TRANSACTION_STATE_TOPIC, (b"x" * 16).hex(), ((1, 2),)))
        around = Surroundings(
            asyncio.get_running_loop(),
            RunningConfig(config, self.image),
            self.controller,
            cast(HostedPartitions, self.hosted),
            Workers(),
            self.clock,
        )
        self.coordinator = TransactionCoordinator(around, self.ids, cast(MarkerSender, self.markers))
        self.partition = LedPartition(topic=TRANSACTION_STATE_TOPIC)
        if has_topic:
            self.tell()

    def tell(self) -> None:
        self.coordinator.role_changed(cast(Partition, self.partition))

    def move(self, leader: int) -> None:
        self.partition.lead(leader, self.partition.leader_epoch + 1)
        self.tell()

    async def committed(self, asked: Awaitable[T]) -> T:
        """The answer; the replicas have everything at once."""
        task = asyncio.ensure_future(asked)
        while not task.done():
            await asyncio.sleep(0)
            self.partition.replicate()
        return await task

    async def begun(self, version: int = 2) -> InitReply:
        """A transaction in two partitions."""
        producer = await self.committed(self.coordinator.init_producer_id(InitRequest("id", 10_000)))
        assert producer.code is ErrorCode.NONE
        request = AddRequest("id", producer.producer_id, producer.epoch, frozenset((P0, P1)), version)
        assert (await self.committed(self.coordinator.add_partitions(request))).code is ErrorCode.NONE
        return producer

    def end(self, producer: InitReply, version: int = 2) -> asyncio.Task[EndReply]:
        request = EndRequest("id", producer.producer_id, producer.epoch, True, version)
        return asyncio.ensure_future(self.coordinator.end(request))

    async def state(self) -> State:
        described = await self.committed(self.coordinator.describe("id"))
        assert described.transaction is not None
        return described.transaction.state

    async def ready(self) -> None:
        for _ in range(1000):
            if all(shard.is_ready for shard in self.coordinator.shards()):
                return
            await asyncio.sleep(0.001)
        raise AssertionError("not loaded")


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def code_of(asked: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        await asked
    return refused.value.code


# -- deeds ------------------------------------------------------------------------------


async def test_markers_are_sent_when_the_decision_is_committed() -> None:
    broker = Broker()
    producer = await broker.begun()
    ending = broker.end(producer)
    await turns()
    assert (ending.done(), broker.markers.sent) == (False, [])
    broker.partition.replicate()
    assert await ending == EndReply(ErrorCode.NONE, producer.producer_id, 1)
    [task] = broker.markers.sent
    assert (task.due.epoch, task.due.is_commit, task.due.partitions) == (1, True, frozenset((P0, P1)))
    assert task.is_wanted()
    broker.coordinator.stop()


async def test_markers_that_are_written_complete_the_transaction() -> None:
    broker = Broker()
    producer = await broker.begun()
    await broker.committed(broker.end(producer))
    [task] = broker.markers.sent
    task.written(frozenset((P0,)))
    assert await broker.state() is State.PREPARE_COMMIT
    task.written(frozenset((P1,)))
    assert await broker.state() is State.COMPLETE_COMMIT
    task.written(frozenset((P0, P1)))
    assert await broker.state() is State.COMPLETE_COMMIT
    broker.coordinator.stop()


async def test_markers_wait_as_long_as_there_are_too_few_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told to ask again; the decision stands in the log."""
    monkeypatch.setattr(hosted_shard, "RETRY_S", 0.001)
    broker = Broker()
    producer = await broker.begun()
    ending = broker.end(producer)
    await turns()
    for _ in range(3):
        broker.partition.fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        await asyncio.sleep(0.01)
    assert await code_of(ending) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.markers.sent == []
    broker.partition.replicate()
    await asyncio.sleep(0.01)
    assert len(broker.markers.sent) == 1, "and once"
    again = await broker.committed(broker.end(producer))
    assert again.code is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.markers.sent[0].written(frozenset((P0, P1)))
    again = await broker.committed(broker.end(producer))
    assert again == EndReply(ErrorCode.NONE, producer.producer_id, 1)
    broker.coordinator.stop()


async def test_a_decision_that_cannot_be_written_sends_no_markers() -> None:
    broker = Broker()
    producer = await broker.begun()
    broker.partition.isr = (HERE,)
    assert await code_of(broker.end(producer)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.partition.isr = (HERE, ELSEWHERE)
    await turns()
    assert broker.markers.sent == []
    assert await broker.state() is State.ONGOING
    broker.coordinator.stop()


async def test_no_markers_are_sent_after_a_stop() -> None:
    broker = Broker()
    producer = await broker.begun()
    ending = broker.end(producer)
    await turns()
    broker.coordinator.stop()
    assert await code_of(ending) is ErrorCode.NOT_COORDINATOR
    broker.partition.replicate()
    await turns()
    assert broker.markers.sent == []


async def test_markers_of_a_leadership_that_is_over_are_wanted_no_more() -> None:
    broker = Broker()
    producer = await broker.begun()
    await broker.committed(broker.end(producer))
    [task] = broker.markers.sent
    broker.move(ELSEWHERE)
    assert not task.is_wanted()
    broker.move(HERE)
    await broker.ready()
    assert not task.is_wanted(), "the new life has its own"
    task.written(frozenset((P0, P1)))
    assert await broker.state() is State.PREPARE_COMMIT
    _, again = broker.markers.sent
    assert again.due == task.due
    assert again.coordinator_epoch == task.coordinator_epoch + 2
    again.written(frozenset((P0, P1)))
    assert await broker.state() is State.COMPLETE_COMMIT
    broker.coordinator.stop()


async def test_markers_are_due_again_after_a_load_once_that_is_committed() -> None:
    broker = Broker()
    producer = await broker.begun()
    ending = broker.end(producer)
    await turns()
    broker.partition.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await code_of(ending) is ErrorCode.NOT_COORDINATOR
    await turns()
    assert broker.markers.sent == []
    broker.partition.replicate()
    await broker.ready()
    assert [(task.due.epoch, task.is_wanted()) for task in broker.markers.sent] == [(1, True)]
    assert await broker.state() is State.PREPARE_COMMIT
    broker.coordinator.stop()


async def test_a_decision_that_the_next_leader_never_had_sends_no_markers() -> None:
    broker = Broker()
    producer = await broker.begun()
    end = broker.partition.log.log_end_offset
    ending = broker.end(producer)
    await turns()
    broker.move(ELSEWHERE)
    assert await code_of(ending) is ErrorCode.NOT_COORDINATOR
    broker.partition.log.truncate_to(end)
    broker.move(HERE)
    await broker.ready()
    assert broker.markers.sent == []
    assert await broker.state() is State.ONGOING
    broker.coordinator.stop()


async def test_a_time_out_is_decided_and_its_markers_wait_for_the_replicas() -> None:
    broker = Broker()
    await broker.begun()
    broker.clock.moment_ms += 10_001
    (shard,) = broker.coordinator.shards()
    shard._tick()
    await turns()
    assert broker.markers.sent == []
    broker.partition.replicate()
    await turns()
    [task] = broker.markers.sent
    assert (task.due.is_commit, task.due.epoch) == (False, 1)
    broker.coordinator.stop()


# -- requests ---------------------------------------------------------------------------


async def test_a_producer_id_is_asked_for_only_where_one_is_needed() -> None:
    broker = Broker()
    init = InitRequest("id", 10_000)
    assert await broker.committed(broker.coordinator.init_producer_id(init)) == InitReply(ErrorCode.NONE, 1001, 0)
    broker.ids.refusal = ApiError(ErrorCode.NOT_CONTROLLER)
    assert await broker.committed(broker.coordinator.init_producer_id(init)) == InitReply(ErrorCode.NONE, 1001, 1)
    other = broker.coordinator.init_producer_id(InitRequest("other", 10_000))
    assert await code_of(broker.committed(other)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.coordinator.stop()


async def test_what_is_not_committed_is_told_to_nobody() -> None:
    broker = Broker()
    asking = asyncio.ensure_future(broker.coordinator.init_producer_id(InitRequest("id", 10_000)))
    await turns()
    describing = asyncio.ensure_future(broker.coordinator.describe("id"))
    await turns()
    assert not asking.done()
    assert not describing.done()
    broker.partition.replicate()
    assert (await asking).code is ErrorCode.NONE
    assert (await describing).code is ErrorCode.NONE
    broker.coordinator.stop()


async def test_ids_of_another_broker_are_not_coordinated_here() -> None:
    broker = Broker()
    broker.move(ELSEWHERE)
    assert await code_of(broker.coordinator.init_producer_id(InitRequest("id", 1))) is ErrorCode.NOT_COORDINATOR
    assert await code_of(broker.coordinator.describe("id")) is ErrorCode.NOT_COORDINATOR
    assert await broker.coordinator.list_transactions(ListFilter()) == []


async def test_settings_that_change_at_run_time_count_at_once() -> None:
    broker = Broker(**{"transaction.max.timeout.ms": "5000"})
    refused = await broker.coordinator.init_producer_id(InitRequest("id", 5_001))
    assert refused.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    (hosted,) = broker.coordinator.shards()
    assert hosted.shard._version() == 2
    broker.image.replay(FeatureChanged("transaction.version", 1))
    assert hosted.shard._version() == 1
    broker.coordinator.stop()


async def test_the_topic_is_made_as_the_settings_say() -> None:
    settings = {
        "transaction.state.log.num.partitions": "7",
        "transaction.state.log.replication.factor": "2",
        "transaction.state.log.min.isr": "2",
        "transaction.state.log.segment.bytes": str(2 << 20),
    }
    broker = Broker(has_topic=False, **settings)
    assert broker.coordinator.leader_of("id") is None
    await broker.coordinator.ensure_topic()
    [made] = broker.controller.created
    assert (made.name, made.partitions, made.replication_factor) == (TRANSACTION_STATE_TOPIC, 7, 2)
    config = TopicConfig.resolve(made.configs)
    assert (config.min_insync_replicas, config.segment_bytes) == (2, 2 << 20)
    assert list(config.cleanup_policy) == ["compact"]
    assert not config.unclean_leader_election_enable
