"""`flush.messages` goes to 1, and a broker fails before or in its first flush: it must not lead with what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.core.metadata.image import NO_LEADER, RESOURCE_TOPIC, PartitionState
from penstock.model.new_topic import NewTopic
from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record
from penstock.replica.partition import Partition
from penstock.replica.revival import LONGEST_PAUSE_S
from penstock.sim.cluster import SimCluster
from penstock.sim.machine.world import SimWorld
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import fetch_one
from penstock.wire_client.aio.publisher import Publisher
from support.scripted.leader import until

LAZY = {"flush.messages": "1000000", "min.insync.replicas": "2"}
ACKNOWLEDGED = [b"first", b"second", b"third"]


Play = Callable[["Pair", AsyncCluster], Awaitable[None]]


class Pair:
    """A leader and its follower, of a topic with three acknowledged records, among five brokers: without the two there
    is still a majority of controllers."""

    def __init__(self, servers: SimCluster) -> None:
        self.servers = servers
        self.active = next(number for number, node in servers.living.items() if node.controller.is_active)
        self.leader, self.follower, *_ = (number for number in servers.ids if number != self.active)
        self.decide = servers.living[self.active].controller
        self.run = servers.machines[self.active].run

    @property
    def state(self) -> PartitionState:
        active = next(node for node in self.servers.living.values() if node.controller.is_active)
        return active.image.topics["t"].partitions[0]

    @property
    def replica(self) -> Partition:
        """Of the follower."""
        return self.servers.living[self.follower].partitions.get("t", 0)

    async def begin(self, cluster: AsyncCluster) -> None:
        await self.run(
            self.decide.topics.create_topic(NewTopic("t", assignments={0: (self.leader, self.follower)}, configs=LAZY))
        )
        producer = Publisher(cluster)
        for value in ACKNOWLEDGED:
            await producer.publish("t", Record(b"k", value, (), 1_700_000_000_000), 0)
        assert self.replica.log.log_end_offset == 3
        assert self.replica.log.stable_offset == 0

    async def become_durable(self) -> None:
        durable = {**LAZY, "flush.messages": "1"}
        await self.run(self.decide.topics.change_config(RESOURCE_TOPIC, "t", lambda _: durable, validate_only=False))
        await until(lambda: self.replica.is_durable)


def play(story: Play) -> None:
    with SimWorld(21) as world:
        servers = SimCluster(world, 5)
        client = world.machine("client")

        async def tell() -> None:
            cluster = AsyncCluster(servers.addresses, "test")
            pair = Pair(servers)
            await pair.begin(cluster)
            await story(pair, cluster)
            found = await fetch_one(cluster, TopicPartition("t", 0), 0, max_wait_ms=100)
            assert [record.value for record in found.records] == ACKNOWLEDGED
            cluster.close()

        async def idle() -> None:
            pass

        async def main() -> None:
            await asyncio.gather(*(servers.bring_up(number) for number in servers.ids))
            await client.start(lambda ports: idle())
            await client.run(tell())

        world.run(main(), timeout_s=600)


def test_a_broker_that_never_flushed_does_not_lead() -> None:
    async def story(pair: Pair, cluster: AsyncCluster) -> None:
        servers, leader, follower = pair.servers, pair.leader, pair.follower
        servers.machines[follower].disk_times.is_hung = True  # so it does not get to its first flush
        await pair.become_durable()
        assert pair.replica.log.stable_offset == 0
        servers.crash(follower)
        await until(lambda: pair.state.isr == (leader,))
        servers.kill(leader)
        await until(lambda: pair.state.leader == NO_LEADER)

        servers.machines[follower].disk_times.is_hung = False
        await servers.bring_up(follower)
        await asyncio.sleep(10)
        assert pair.state.leader == NO_LEADER, "who has everything is away"
        await servers.bring_up(leader)
        await until(lambda: len(pair.state.isr) == 2)

    play(story)


async def first_flush_fails(pair: Pair) -> None:
    """The follower leaves the ISR and stays eligible."""
    disk = pair.servers.machines[pair.follower].disk
    disk.fail_sync = lambda path: "/t-0/" in path and path.endswith(".log")
    await pair.become_durable()
    await until(lambda: pair.replica.log.offline is not None)
    await until(lambda: pair.state.isr == (pair.leader,))
    assert pair.state.elr == (pair.follower,)
    disk.fail_sync = None


def test_a_first_flush_that_fails_does_not_cut_an_eligible_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader dies in the turn in which the follower's log is online again: all that was acknowledged is there."""

    async def story(pair: Pair, cluster: AsyncCluster) -> None:
        await first_flush_fails(pair)

        listeners = pair.servers.living[pair.follower].partitions.host.events
        role_changed = listeners.role_changed

        def kill_leader(partition: Partition) -> None:
            if partition is pair.replica and partition.log.offline is None:
                monkeypatch.undo()
                pair.servers.kill(pair.leader)
            else:
                role_changed(partition)

        monkeypatch.setattr(listeners, "role_changed", kill_leader)
        await until(lambda: pair.replica.log.offline is None, 2 * LONGEST_PAUSE_S)
        assert pair.replica.log.stable_offset == 3
        await until(lambda: pair.state.leader == pair.follower)
        await pair.servers.bring_up(pair.leader)
        await until(lambda: len(pair.state.isr) == 2)

    play(story)


def test_an_eligible_replica_that_lost_what_it_promised_stays_offline(caplog: pytest.LogCaptureFixture) -> None:
    """Until the broker registers anew after a stop that was not clean: then it is not eligible, and fetches it."""

    async def story(pair: Pair, cluster: AsyncCluster) -> None:
        await first_flush_fails(pair)
        machine = pair.servers.machines[pair.follower]
        machine.disk.open("/data/t-0/00000000000000000000.log").truncate(100)  # as pages that were dropped
        await asyncio.sleep(2 * LONGEST_PAUSE_S)
        assert pair.replica.log.offline is not None
        assert "t-0 stays offline: 3 offsets were acknowledged, 1 are left" in caplog.text
        await pair.servers.stop(pair.follower)
        await pair.servers.bring_up(pair.follower)
        await until(lambda: len(pair.state.isr) == 2)

    play(story)
