"""A log that goes offline: the replica stops counting and leading, and others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from penstock.core.metadata.image import NO_LEADER
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import read_header
from penstock.replica.partition import Partition
from penstock.replica.revival import LONGEST_PAUSE_S
from penstock.sim.machine.world import SimWorld
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import fetch_one
from penstock.wire_client.aio.publisher import Publisher
from support.scripted.leader import FOLLOWER, LEADER, FollowingBroker, batch, batches, ends_at, says, until
from support.worlds.three_brokers import TOPIC, ThreeBrokers, play

LAZY = {"flush.messages": "1000000"}
IN_SYNC = (LEADER, FOLLOWER)


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(4) as made:
        yield made


def run(world: SimWorld, work: Coroutine[Any, Any, None]) -> None:
    world.run(work, timeout_s=600)


async def follow_to(broker: FollowingBroker, count: int, isr: tuple[int, ...] = IN_SYNC) -> Partition:
    await broker.start()
    broker.leader.answers.append(says(records=batches(0, count, epoch=1), high_watermark=count))
    await broker.follow(isr=isr)
    await until(ends_at(broker.partitions[0], count))
    return broker.partitions[0]


async def fail_flush(broker: FollowingBroker, partition: Partition, offset: int) -> None:
    """The next batch of the leader arrives, and cannot be made stable."""
    broker.machine.disk.fail_sync = lambda path: path.endswith(".log")
    broker.leader.answers.append(says(records=batch(offset, 1), high_watermark=offset))
    broker.leader.release()
    await until(lambda: partition.log.offline is not None)


async def lead(broker: FollowingBroker, isr: tuple[int, ...]) -> None:
    await broker.follow(epoch=2, leader=FOLLOWER, isr=isr)


async def append(broker: FollowingBroker, partition: Partition) -> list[ErrorCode]:
    """As leader. How it ends is in the list, once it has."""
    outcomes: list[ErrorCode] = []

    async def work() -> None:
        data = batch(0, 0)
        base = partition.append(read_header(data), data, broker.clock.now_ms())
        partition.when_committed(base + 1, outcomes.append)

    await broker.machine.run(work())
    return outcomes


def asked_for(broker: FollowingBroker) -> int:
    return sum(1 for fetch in broker.leader.fetches if any(topic.partitions for topic in fetch.topics))


# -- following ------------------------------------------------------------------------------------


def test_a_follower_that_cannot_flush_leaves_the_in_sync_replicas_at_once(world: SimWorld) -> None:
    broker = FollowingBroker(world)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        await fail_flush(broker, partition, 9)
        began = world.loop.time()
        await until(lambda: bool(broker.leader.disowned))
        assert world.loop.time() - began < 0.1, "nobody waits until it is late"
        assert [entry.offset for entry in broker.leader.disowned] == [-1], "not even what it had before"
        await broker.follow(isr=(LEADER,))
        broker.leader.acknowledged.clear()
        before = asked_for(broker)
        await asyncio.sleep(20)
        assert asked_for(broker) == before, "a fetch would look as if it kept up"
        assert broker.leader.acknowledged == []
        assert len(broker.leader.disowned) == 1, "it has left"

    run(world, main())


def test_the_next_leader_is_told_too_and_so_is_one_that_has_not_heard(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        broker.machine.disk.fail_sync = lambda path: path.endswith(".log")
        await broker.machine.run(flush(partition))
        await until(lambda: len(broker.leader.disowned) == 1)
        await broker.follow(epoch=2, isr=IN_SYNC)
        await until(lambda: len(broker.leader.disowned) == 2)
        assert broker.leader.disowned[-1].leader_epoch == 2
        await broker.machine.run(look(broker))
        assert len(broker.leader.disowned) == 2
        await asyncio.sleep(5)
        await broker.machine.run(look(broker))
        await until(lambda: len(broker.leader.disowned) == 3)

    run(world, main())


async def flush(partition: Partition) -> None:
    partition._commit.request(partition)


async def look(broker: FollowingBroker) -> None:
    """As the keeper of in-sync replicas does now and then."""
    for partition in broker.partitions:
        partition.host.events.log_unusable(partition)


# -- leading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("minimum", ["1", "2"])
def test_a_leader_asks_to_be_relieved_by_whoever_is_in_sync(world: SimWorld, minimum: str) -> None:
    broker = FollowingBroker(world, settings={"min.insync.replicas": minimum})

    async def main() -> None:
        partition = await follow_to(broker, 9)
        await lead(broker, IN_SYNC)
        broker.machine.disk.fail_sync = lambda path: path.endswith(".log")
        outcomes = await append(broker, partition)
        await until(lambda: bool(outcomes))
        assert outcomes == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert partition.followers is not None
        assert partition.followers.pending_isr == (LEADER,)
        await broker.follow(epoch=3, isr=(LEADER,))
        before = asked_for(broker)
        await asyncio.sleep(5)
        assert asked_for(broker) == before

    run(world, main())


def test_a_leader_that_nobody_can_relieve_waits_for_others(world: SimWorld, caplog: pytest.LogCaptureFixture) -> None:
    broker = FollowingBroker(world)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        await lead(broker, (FOLLOWER,))
        broker.machine.disk.fail_sync = lambda path: path.endswith(".log")
        await append(broker, partition)
        await until(lambda: "no other replica is in sync" in caplog.text)
        assert partition.followers is not None
        assert partition.followers.pending_isr is None
        await lead(broker, (FOLLOWER, 3))
        assert partition.followers.pending_isr == (3,)

    run(world, main())


# -- the whole cluster ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_restarted", [False, True], ids=["by itself", "by a restart"])
def test_the_cluster_goes_on_and_the_replica_comes_back(is_restarted: bool) -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        for number in range(5):
            await brokers.publish(producer, b"%d" % number)
        sick = brokers.state.leader
        disk = brokers.servers.machines[sick].disk
        disk.fail_sync = lambda path: "/t-0/" in path
        with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
            await brokers.publish(producer, b"open")
        await until(lambda: brokers.state.leader not in (sick, NO_LEADER), timeout_s=1.0)
        assert len(brokers.state.isr) == 2
        for number in range(5, 10):
            await brokers.publish(producer, b"%d" % number)
        await asyncio.sleep(20)
        assert sick not in brokers.state.isr
        if is_restarted:
            await brokers.servers.stop(sick)
        disk.fail_sync = None
        if is_restarted:
            await brokers.servers.bring_up(sick)
        await until(lambda: len(brokers.state.isr) == 3, LONGEST_PAUSE_S)
        assert brokers.servers.living[sick].partitions.get(TOPIC, 0).log.offline is None
        found = await fetch_one(cluster, TopicPartition(TOPIC, 0), 0, max_wait_ms=100)
        values = [record.value for record in found.records if record.value != b"open"]
        assert values == [b"%d" % number for number in range(10)]

    play(5, story)
