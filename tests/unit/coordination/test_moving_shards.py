"""Shards come with leadership and go with it; nobody hears of what another leader may never have seen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig, validate_topic_overrides
from penstock.coordination.groups import OFFSETS_TOPIC, GroupCoordinator
from penstock.coordination.shard_host import BROKERS_GRACE_S, Surroundings, partition_of
from penstock.core.group.exchange import (
    CommitReply,
    CommitRequest,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    HeartbeatRequest,
    JoinRequest,
    ListGroupsReply,
    OffsetToCommit,
    SyncRequest,
)
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import TopicCreated
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.sim.machine.threads import SimRecordWorkers
from support.worlds.hosts import lone_host
from support.worlds.led_partition import ELSEWHERE, HERE, NOW_MS, LedPartition

A = TypeVar("A")
T = TypeVar("T")
PARTITIONS = 4
GROUP = "g"
AT = partition_of(GROUP, PARTITIONS)
SAME_SHARD = next(name for name in map(str, range(100)) if partition_of(name, PARTITIONS) == AT)
OTHER = next(name for name in "abcdef" if partition_of(name, PARTITIONS) != AT)


class Workers:
    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(work())
        return future

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        return map(work, items)


class Clock:
    def __init__(self) -> None:
        self.moment_ms = 5_000_000

    def now_ms(self) -> int:
        return NOW_MS + self.moment_ms

    def monotonic(self) -> float:
        return self.moment_ms / 1000


class Controller:
    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.brokers = [1]
        self.created: list[tuple[str, int, int]] = []
        self.refusal: ApiError | None = None
        self.configs: dict[str, str] = {}

    async def create_topic(self, topic: NewTopic) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.created.append((topic.name, topic.partitions, topic.replication_factor))
        validate_topic_overrides(topic.configs)
        self.configs = dict(topic.configs)


class Hosted:
    def __init__(self) -> None:
        self.by_name: dict[str, list[LedPartition | None]] = {}
        self.host = lone_host(HERE, Clock())


class Broker:
    """Of a cluster in which it leads what a test says."""

    def __init__(self, *, has_topic: bool = True, voters: str = "", segment_bytes: int = 0) -> None:
        self.image = MetadataImage()
        settings = {"log.dirs": "/data", "node.id": "1", "group.initial.rebalance.delay.ms": "0"}
        settings["penstock.group.rebalance.settle.ms"] = "0"
        if voters:
            settings["controller.quorum.voters"] = voters
        if segment_bytes:
            settings["offsets.topic.segment.bytes"] = str(segment_bytes)
        config = BrokerConfig.load(None, settings)[0]
        self.controller, self.hosted, self.clock = Controller(self.image), Hosted(), Clock()
        self.image.replay(TopicCreated("t", (b"t" * 16).hex(), ((1,),)))
        if has_topic:
            self.image.replay(TopicCreated(OFFSETS_TOPIC, (b"o" * 16).hex(), ((1,),) * PARTITIONS))
        around = Surroundings(
            asyncio.get_running_loop(),
            RunningConfig(config, self.image),
            self.controller,
            cast(HostedPartitions, self.hosted),
            Workers(),
            self.clock,
        )
        self.coordinator = GroupCoordinator(around, SimRecordWorkers(Workers()))

    def host(self, index: int = AT) -> LedPartition:
        partition = LedPartition(index)
        self.hosted.by_name.setdefault(OFFSETS_TOPIC, [None] * PARTITIONS)[index] = partition
        self.tell(partition)
        return partition

    def tell(self, partition: LedPartition) -> None:
        self.coordinator.role_changed(cast(Partition, partition))

    def move(self, partition: LedPartition, leader: int, epoch: int) -> None:
        partition.lead(leader, epoch)
        self.tell(partition)

    def commit(self, offset: int, group: str = GROUP) -> asyncio.Future[Any]:
        request = CommitRequest(group, "", None, -1, (OffsetToCommit("t", 0, offset, -1, ""),))
        return self.coordinator.submit(group, lambda shard, token, now_ms: shard.commit_offsets(request, token, now_ms))

    def fetch(self, group: str = GROUP) -> asyncio.Future[Any]:
        request = FetchOffsetsRequest(group, {"t": (0,)})
        return self.coordinator.submit(group, lambda shard, token, now_ms: shard.fetch_offsets(request, token, now_ms))

    async def offset(self) -> int | None:
        reply = await self.fetch()
        assert isinstance(reply, FetchOffsetsReply)
        found = reply.topics["t"][0]
        return None if found is None else found.offset

    def join(self, member: str) -> asyncio.Future[Any]:
        request = JoinRequest(GROUP, "", None, "c", "/h", 10_000, 10_000, "consumer", (("range", b""),), member)
        request = request._replace(requires_known_member_id=False)
        return self.coordinator.submit(GROUP, lambda shard, token, now_ms: shard.join(request, token, now_ms))

    def sync(self, member: str) -> asyncio.Future[Any]:
        request = SyncRequest(GROUP, member, None, 1, None, None, {member: b"all"})
        return self.coordinator.submit(GROUP, lambda shard, token, now_ms: shard.sync(request, token, now_ms))

    def heartbeat(self, member: str) -> asyncio.Future[Any]:
        request = HeartbeatRequest(GROUP, member, None, 1, may_wait=True)
        return self.coordinator.submit(GROUP, lambda shard, token, now_ms: shard.heartbeat(request, token, now_ms))

    def stop(self) -> None:
        self.coordinator.stop()


async def code_of(asked: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        await asked
    return refused.value.code


def refusal(ask: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        ask()
    return refused.value.code


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def ready(broker: Broker) -> None:
    shard = next(broker.coordinator.shards())
    for _ in range(1000):
        if shard.is_ready:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not loaded")


async def committed(broker: Broker, partition: LedPartition, offset: int) -> None:
    committing = broker.commit(offset)
    partition.replicate()
    assert await committing == CommitReply(ErrorCode.NONE, (ErrorCode.NONE,))


async def test_groups_of_partitions_that_are_led_elsewhere_are_not_coordinated_here() -> None:
    broker = Broker()
    partition = broker.host()
    assert refusal(lambda: broker.fetch(OTHER)) is ErrorCode.NOT_COORDINATOR
    await committed(broker, partition, 5)
    follower = LedPartition(partition_of(OTHER, PARTITIONS))
    follower.leader = ELSEWHERE
    broker.tell(follower)
    assert refusal(lambda: broker.fetch(OTHER)) is ErrorCode.NOT_COORDINATOR
    assert [shard.partition.index for shard in broker.coordinator.shards()] == [AT]
    broker.stop()


async def test_whoever_is_parked_is_answered_when_leadership_goes() -> None:
    broker = Broker()
    partition = broker.host()
    assert (await broker.join("m")).generation == 1
    syncing = broker.sync("m")
    partition.replicate()
    assert (await syncing).assignment == b"all"
    held = broker.heartbeat("m")
    await turns()
    assert not held.done(), "it waits for something to tell"
    broker.move(partition, ELSEWHERE, 1)
    assert await code_of(held) is ErrorCode.NOT_COORDINATOR

    broker.move(partition, HERE, 2)
    await turns()
    parked = [broker.join("another"), broker.sync("m")]
    await turns()
    assert not parked[0].done(), "m has not joined again"
    broker.move(partition, ELSEWHERE, 3)
    assert await code_of(parked[0]) is ErrorCode.NOT_COORDINATOR
    assert (await parked[1]).error is ErrorCode.REBALANCE_IN_PROGRESS

    broker.move(partition, HERE, 4)
    await turns()
    parked = [broker.commit(5, SAME_SHARD), broker.fetch(SAME_SHARD), broker.fetch()]
    broker.move(partition, ELSEWHERE, 5)
    assert [await code_of(one) for one in parked] == [ErrorCode.NOT_COORDINATOR] * 3
    assert refusal(lambda: broker.heartbeat("m")) is ErrorCode.NOT_COORDINATOR
    partition.replicate()  # whatever the old leader's log does now
    assert not list(broker.coordinator.shards())


async def test_only_shards_that_had_groups_are_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "penstock.coordination.shard_host")
    broker = Broker()
    used, empty = broker.host(), broker.host(partition_of(OTHER, PARTITIONS))
    await committed(broker, used, 3)
    broker.move(used, ELSEWHERE, 2)
    broker.move(empty, ELSEWHERE, 2)
    gone = [record for record in caplog.records if "no longer" in record.getMessage()]
    assert [record.levelname for record in gone] == ["INFO", "DEBUG"]
    assert " with 1 group is no longer coordinated by this broker" in gone[0].getMessage()
    broker.stop()


async def test_a_deleted_partition_takes_its_shard_along() -> None:
    broker = Broker()
    partition = broker.host()
    committing = broker.commit(5)
    partition.delete()
    broker.tell(partition)
    assert await code_of(committing) in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert refusal(broker.fetch) is ErrorCode.NOT_COORDINATOR


async def test_a_new_leader_is_silent_until_what_it_found_is_committed() -> None:
    """It could die, and one that never had those records lead after it: then a reply would have told of nothing."""
    broker = Broker()
    partition = broker.host()
    await committed(broker, partition, 5)
    uncommitted = broker.commit(6)
    broker.move(partition, ELSEWHERE, 1)
    assert await code_of(uncommitted) is ErrorCode.NOT_COORDINATOR
    broker.move(partition, HERE, 2)
    assert partition.high_watermark < partition.log.log_end_offset
    await turns()
    assert refusal(broker.fetch) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refusal(lambda: broker.commit(7)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    partition.replicate()
    await turns()
    assert await broker.offset() == 6, "in the log of the leader and replicated by it: committed after all"
    broker.stop()


async def test_what_was_not_committed_when_leadership_was_lost_is_gone_if_the_next_leader_has_it_not() -> None:
    broker = Broker()
    partition = broker.host()
    await committed(broker, partition, 5)
    end = partition.log.log_end_offset
    uncommitted = broker.commit(6)
    broker.move(partition, ELSEWHERE, 1)
    assert await code_of(uncommitted) is ErrorCode.NOT_COORDINATOR
    partition.log.truncate_to(end)  # as its follower
    broker.move(partition, HERE, 2)
    await turns()
    assert await broker.offset() == 5
    broker.stop()


async def test_an_epoch_more_of_the_same_leader_changes_nothing() -> None:
    broker = Broker()
    partition = broker.host()
    assert (await broker.join("m")).generation == 1
    parked, committing = broker.join("another"), broker.commit(5)
    broker.move(partition, HERE, 1)
    partition.replicate()
    assert (await committing).error is ErrorCode.UNKNOWN_MEMBER_ID, "the group is still there, with its members"
    assert not parked.done()
    broker.stop()


async def test_an_epoch_that_was_not_seen_may_have_been_another_leaders() -> None:
    broker = Broker()
    partition = broker.host()
    await committed(broker, partition, 5)
    waiting = broker.commit(6)
    broker.move(partition, HERE, 2)
    assert await code_of(waiting) is ErrorCode.NOT_COORDINATOR
    partition.replicate()
    await turns()
    assert await broker.offset() == 6
    broker.stop()


async def test_too_few_replicas_refuse_a_commit_and_forget_it() -> None:
    broker = Broker()
    partition = broker.host()
    await committed(broker, partition, 5)
    partition.isr = (HERE,)
    assert await code_of(broker.commit(6)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await broker.offset() == 5
    partition.isr = (HERE, ELSEWHERE)
    await committed(broker, partition, 7)
    assert await broker.offset() == 7
    broker.stop()


async def test_replicas_that_leave_after_the_append_leave_the_outcome_open() -> None:
    broker = Broker()
    partition = broker.host()
    await committed(broker, partition, 5)
    committing = broker.commit(6)
    partition.fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert await code_of(committing) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    asking = broker.fetch()
    await turns()
    assert not asking.done(), "nobody is told of 6, and nobody of 5: either may be what counts"
    partition.replicate()
    assert (await asking).topics["t"][0].offset == 6
    broker.stop()


async def test_loading_goes_on_when_there_are_replicas_again() -> None:
    broker = Broker()
    partition = broker.host()
    await committed(broker, partition, 5)
    broker.commit(6).add_done_callback(lambda done: done.exception())
    broker.move(partition, ELSEWHERE, 1)
    broker.move(partition, HERE, 2)
    await turns()
    partition.fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    await turns()
    partition.replicate()
    await ready(broker)
    assert await broker.offset() == 6
    broker.stop()


async def test_whoever_waits_too_long_for_replicas_may_ask_again() -> None:
    broker = Broker()
    partition = broker.host()
    committing = broker.commit(5)
    shard = next(broker.coordinator.shards())
    broker.clock.moment_ms += 4_999
    later = broker.commit(6)
    shard._look_at_uncommitted()
    assert not committing.done()
    broker.clock.moment_ms += 1
    shard._look_at_uncommitted()
    assert await code_of(committing) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not later.done()
    partition.replicate()
    assert (await later).error is ErrorCode.NONE
    assert await broker.offset() == 6
    broker.stop()


async def test_a_leader_that_may_not_append_loads_again_when_it_leads_after_all() -> None:
    broker = Broker()
    partition = broker.host()
    await committed(broker, partition, 5)
    committing = broker.commit(6)
    partition.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await code_of(committing) is ErrorCode.NOT_COORDINATOR
    assert refusal(broker.fetch) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    partition.replicate()
    await ready(broker)
    assert await broker.offset() == 6
    broker.stop()


async def test_groups_are_listed_by_whoever_coordinates_them() -> None:
    broker = Broker()
    first, second = broker.host(AT), broker.host(partition_of(OTHER, PARTITIONS))
    await committed(broker, first, 5)
    committing = broker.commit(1, OTHER)
    second.replicate()
    await committing

    async def listed() -> list[str]:
        replies = await broker.coordinator.call_all(
            ListGroupsReply, lambda shard, token, now_ms: shard.list_groups([], [], token, now_ms)
        )
        return sorted(group.group_id for reply in replies for group in reply.groups)

    assert await listed() == sorted((GROUP, OTHER))
    broker.commit(2, OTHER).add_done_callback(lambda done: done.exception())
    listing = asyncio.ensure_future(listed())
    await turns()
    broker.move(second, ELSEWHERE, 1)
    assert await listing == [GROUP]
    broker.stop()


async def test_start_takes_over_what_is_led_here() -> None:
    broker = Broker()
    led, followed = LedPartition(AT), LedPartition(partition_of(OTHER, PARTITIONS))
    followed.leader = ELSEWHERE
    hosted: list[LedPartition | None] = [None] * PARTITIONS
    hosted[led.index], hosted[followed.index] = led, followed
    broker.hosted.by_name[OFFSETS_TOPIC] = hosted
    broker.coordinator.start()
    assert [shard.partition.index for shard in broker.coordinator.shards()] == [AT]
    broker.stop()


async def test_the_coordinator_of_a_group_is_the_leader_that_the_metadata_name() -> None:
    broker = Broker()
    partitions = broker.image.topics[OFFSETS_TOPIC].partitions
    partitions[AT] = replace(partitions[AT], leader=3)
    assert broker.coordinator.leader_of(GROUP) == 3
    partitions[AT] = replace(partitions[AT], leader=-1)
    assert broker.coordinator.leader_of(GROUP) is None
    assert Broker(has_topic=False).coordinator.leader_of(GROUP) is None


async def test_the_topic_gets_as_many_replicas_as_there_are_brokers() -> None:
    broker = Broker(has_topic=False)
    await broker.coordinator.ensure_topic()
    assert broker.controller.created == [(OFFSETS_TOPIC, 50, 1)]
    broker = Broker(has_topic=False)
    broker.controller.brokers = [1, 2, 3, 4]
    await broker.coordinator.ensure_topic()
    assert broker.controller.created == [(OFFSETS_TOPIC, 50, 3)]
    broker = Broker()
    await broker.coordinator.ensure_topic()
    assert broker.controller.created == []


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20, 100 << 20])
async def test_any_segment_size_of_the_topic_can_be_had(segment_bytes: int) -> None:
    broker = Broker(has_topic=False, segment_bytes=segment_bytes)
    await broker.coordinator.ensure_topic()
    assert TopicConfig.resolve(broker.controller.configs).segment_bytes == segment_bytes


async def test_a_cluster_that_is_being_started_waits_a_moment_for_its_brokers() -> None:
    broker = Broker(has_topic=False, voters="1@a:9092,2@b:9092,3@c:9092")
    assert await code_of(broker.coordinator.ensure_topic()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.controller.brokers = [1, 2]
    assert await code_of(broker.coordinator.ensure_topic()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.controller.created == []
    broker.clock.moment_ms += int(BROKERS_GRACE_S * 1000)
    await broker.coordinator.ensure_topic()
    assert broker.controller.created == [(OFFSETS_TOPIC, 50, 2)]


async def test_two_brokers_that_create_the_topic_at_once_agree() -> None:
    broker = Broker(has_topic=False)
    broker.controller.refusal = ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)
    await broker.coordinator.ensure_topic()
    broker.controller.refusal = ApiError(ErrorCode.NOT_CONTROLLER)
    assert await code_of(broker.coordinator.ensure_topic()) is ErrorCode.NOT_CONTROLLER


async def test_a_broker_that_has_lost_the_controller_says_nothing() -> None:
    """Another may coordinate the group by now, and have taken in later commits."""
    broker = Broker()
    partition = broker.host()
    await committed(broker, partition, 5)
    may_lead = False
    broker.hosted.host.lease = lambda: may_lead
    assert refusal(broker.fetch) is ErrorCode.NOT_COORDINATOR
    may_lead = True
    assert await broker.offset() == 5
    broker.stop()


async def test_a_topic_that_has_fewer_replicas_than_the_minimum_can_be_written_to() -> None:
    broker = Broker()
    partition = broker.host()
    partition.replicas = partition.isr = (HERE,)
    await committed(broker, partition, 5)
    broker.stop()
