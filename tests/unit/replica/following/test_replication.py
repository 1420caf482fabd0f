"""Three real brokers in a simulated world: followers, leaders and the controller together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import pytest

from penstock.model.new_topic import NewTopic
from penstock.node.node import Node
from penstock.records.builder import Record, build_batch
from penstock.replica.partition import Partition
from penstock.sim.broker import PORT, broker
from penstock.sim.machine.world import SimMachine, SimWorld
from penstock.wire.apis import Api
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.aio.publisher import Publisher
from penstock.wire_client.aio.topics import create_topic
from support.scripted.leader import stored, until

IDS = (1, 2, 3)
SETTINGS = {
    "controller.quorum.voters": ",".join(f"{node}@n{node}:{PORT}" for node in IDS),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
}


class ThreeBrokers:
    def __init__(self, world: SimWorld, settings: dict[str, str]) -> None:
        self.world = world
        self._settings = {**SETTINGS, **settings}
        self.machines: dict[int, SimMachine] = {node: world.machine(f"n{node}") for node in IDS}
        self.nodes: dict[int, Node] = {}

    async def start(self) -> None:
        await asyncio.gather(*(self.start_one(node) for node in IDS))
        self.ask(IDS)

    def ask(self, nodes: Sequence[int]) -> None:
        """Clients that know only these: nobody tells the old ones that a machine has lost power."""
        self.producer = Publisher(AsyncCluster([(f"n{node}", PORT) for node in nodes]))

    async def start_one(self, node: int) -> None:
        self.nodes[node] = await self.machines[node].start(broker(node, self._settings))

    async def create(self, topic: str, partitions: int = 1) -> None:
        await create_topic(AsyncCluster([("n1", PORT)]), NewTopic(topic, partitions, 3))
        await until(lambda: all(topic in node.partitions.by_name for node in self.nodes.values()))

    async def publish(self, topic: str, count: int) -> None:
        for number in range(count):
            await self.producer.publish(topic, Record(b"k", b"%d" % number, (), 1_700_000_000_000))

    def replica(self, node: int, topic: str = "t", index: int = 0) -> Partition:
        return self.nodes[node].partitions.get(topic, index)

    def leader(self, topic: str = "t", index: int = 0) -> int:
        for node in self.nodes:
            if self.machines[node].is_running and self.replica(node, topic, index).is_leader:
                return node
        return -1

    def agree(self, topic: str = "t", index: int = 0) -> bool:
        """All three hold the same batches of the same leaders, and know them to be committed."""
        replicas = [self.replica(node, topic, index) for node in self.nodes]
        end = max(replica.log.log_end_offset for replica in replicas)
        if any((one.log.log_end_offset, one.high_watermark) != (end, end) for one in replicas):
            return False
        return stored(replicas[0]) == stored(replicas[1]) == stored(replicas[2])

    def in_sync(self, topic: str = "t", index: int = 0) -> int:
        leader = self.leader(topic, index)
        return 0 if leader < 0 else len(self.replica(leader, topic, index).isr)


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(21) as made:
        yield made


def run(world: SimWorld, work: Coroutine[Any, Any, None]) -> None:
    world.run(work, timeout_s=900)


@pytest.mark.parametrize("flush", ["1", "1000000"])
def test_what_is_acknowledged_is_everywhere_with_one_fetch_and_one_acknowledgement_a_record(
    world: SimWorld, flush: str
) -> None:
    brokers = ThreeBrokers(world, {"log.flush.interval.messages": flush})

    async def main() -> None:
        await brokers.start()
        await brokers.create("t")
        await brokers.publish("t", 1)
        leader = brokers.leader()
        fetchers = [brokers.nodes[node].fetchers.by_leader[leader] for node in IDS if node != leader]
        before = [(fetcher.fetches, fetcher.claims.acknowledgements) for fetcher in fetchers]
        await brokers.publish("t", 50)
        for fetcher, (fetches, acknowledgements) in zip(fetchers, before, strict=True):
            assert 40 <= fetcher.fetches - fetches <= 60
            assert fetcher.claims.acknowledgements - acknowledgements <= (51 if flush == "1" else 0)
        await until(brokers.agree)
        assert brokers.replica(1).log.log_end_offset == 51
        assert brokers.in_sync() == 3

    run(world, main())


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_a_leader_that_dies_and_comes_back_agrees_with_the_new_one(world: SimWorld, how: str) -> None:
    brokers = ThreeBrokers(world, {})

    async def main() -> None:
        await brokers.start()
        await brokers.create("t")
        await brokers.publish("t", 20)
        dead = brokers.leader()
        getattr(brokers.machines[dead], how)()
        await until(lambda: brokers.leader() > 0)
        brokers.ask([node for node in IDS if node != dead])
        await brokers.publish("t", 20)
        await brokers.start_one(dead)
        await until(lambda: brokers.in_sync() == 3, 60)
        await brokers.publish("t", 1)
        await until(brokers.agree)
        assert brokers.replica(dead).log.log_end_offset >= 41

    run(world, main())


def test_what_a_cut_off_leader_took_in_alone_is_cut_when_it_is_back(world: SimWorld) -> None:
    brokers = ThreeBrokers(world, {"log.flush.interval.messages": "1000000"})

    async def main() -> None:
        await brokers.start()
        await brokers.create("t")
        await brokers.publish("t", 5)
        old = brokers.leader()
        connection = await AsyncConnection.open(f"n{old}", PORT, "test")
        for node in IDS:
            if node != old:
                world.network.partition([f"n{old}"], [f"n{node}"])
        alone = build_batch([Record(b"k", b"alone", (), 1_700_000_000_000)])
        await connection.call(
            Api.PRODUCE,
            ProduceRequest(
                acks=1,
                timeout_ms=1000,
                topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=alone)])],
            ),
            ProduceResponse,
        )
        assert brokers.replica(old).log.log_end_offset == 6
        others = [node for node in IDS if node != old]
        await until(lambda: any(brokers.replica(node).is_leader for node in others), 60)
        new = next(node for node in others if brokers.replica(node).is_leader)
        assert brokers.replica(new).log.log_end_offset == 5
        brokers.ask(others)
        await brokers.publish("t", 3)
        world.network.heal()
        await until(lambda: brokers.in_sync() == 3, 120)
        await brokers.publish("t", 1)
        await until(brokers.agree, 60)
        assert brokers.replica(old).log.log_end_offset == 9
        assert len({epoch for _, epoch in stored(brokers.replica(old))}) == 2

    run(world, main())


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_damaged_replica_leaves_is_mended_and_returns(world: SimWorld, who: str) -> None:
    brokers = ThreeBrokers(world, {})

    async def main() -> None:
        await brokers.start()
        await brokers.create("t")
        await brokers.publish("t", 20)
        sick = next(node for node in IDS if (node == brokers.leader()) == (who == "leader"))
        replica = brokers.replica(sick)
        path = replica.log.segments[0].path
        brokers.machines[sick].disk.flip_bit(path, replica.log.segments[0].size // 2)
        repairs = brokers.nodes[sick].fetchers.repairs

        async def found() -> None:
            repairs.found(replica, path)

        await brokers.machines[sick].run(found())
        await until(lambda: repairs.repaired == 1, 10)
        await until(lambda: brokers.in_sync() == 3, 60)
        await brokers.publish("t", 1)
        await until(brokers.agree)

    run(world, main())


def test_a_log_that_cannot_be_opened_is_fetched_anew(world: SimWorld) -> None:
    brokers = ThreeBrokers(world, {})

    async def main() -> None:
        await brokers.start()
        await brokers.create("t")
        await brokers.publish("t", 20)
        sick = next(node for node in IDS if node != brokers.leader())
        machine, path = brokers.machines[sick], brokers.replica(sick).log.segments[0].path
        last = brokers.replica(sick).log.reader.position_of(19).position
        await machine.run(brokers.nodes[sick].stop())
        machine.exited()
        machine.disk.flip_bit(path, last + 8)  # the length of the last batch: where the log ends is unknown
        await brokers.start_one(sick)
        await until(lambda: brokers.nodes[sick].fetchers.repairs.repaired == 1)
        await until(lambda: brokers.in_sync() == 3, 60)
        await brokers.publish("t", 1)
        await until(brokers.agree)
        # What could not be opened was kept until the replica was in sync again.
        await until(lambda: not [name for name in machine.disk.list_directory("/data") if "-damaged" in name])

    run(world, main())


@pytest.mark.parametrize("flush", ["1", "1000000"])
def test_a_follower_with_a_full_disk_leaves_once_and_returns_when_there_is_room(world: SimWorld, flush: str) -> None:
    brokers = ThreeBrokers(world, {"log.flush.interval.messages": flush})

    async def main() -> None:
        await brokers.start()
        await brokers.create("t")
        await brokers.publish("t", 20)
        await until(lambda: brokers.in_sync() == 3)
        leader = brokers.leader()
        full = next(node for node in IDS if node != leader)
        disk, host = brokers.machines[full].disk, brokers.nodes[leader].partitions.host
        disk.capacity = 1 << 30
        disk.capacity -= disk.free_bytes()  # what it holds is all that fits
        shrinks, expands = host.isr_shrinks, host.isr_expands
        for _ in range(60):
            await brokers.publish("t", 1)
            await asyncio.sleep(0.5)
        assert brokers.in_sync() == 2
        assert (host.isr_shrinks - shrinks, host.isr_expands - expands) == (1, 0)
        disk.capacity = None
        await until(lambda: brokers.in_sync() == 3, 60)
        await brokers.publish("t", 1)
        await until(brokers.agree)

    run(world, main())


def test_hundreds_of_idle_partitions_cost_two_fetches_a_second(world: SimWorld) -> None:
    brokers = ThreeBrokers(world, {})

    async def main() -> None:
        await brokers.start()
        await brokers.create("many", 300)
        await asyncio.sleep(5)
        fetchers = [fetcher for node in brokers.nodes.values() for fetcher in node.fetchers.by_leader.values()]
        assert len(fetchers) == 6
        before = [fetcher.fetches for fetcher in fetchers]
        await asyncio.sleep(10)
        for fetcher, fetches in zip(fetchers, before, strict=True):
            assert 17 <= fetcher.fetches - fetches <= 23
            assert fetcher.errors == 0

    run(world, main())
