"""`flush.messages` goes to 1, and a broker crashes before its first flush: it must not lead with what it has left."""

from __future__ import annotations

import asyncio

from penstock.client.cluster import Cluster
from penstock.client.fetching import TopicPartition, fetch_one
from penstock.client.producer import Producer
from penstock.core.metadata.image import NO_LEADER, RESOURCE_TOPIC, PartitionState
from penstock.records.builder import Record
from penstock.sim.cluster import SimCluster
from penstock.sim.world import SimWorld
from scripted_leader import until

LAZY = {"flush.messages": "1000000", "min.insync.replicas": "2"}


def test_a_broker_that_never_flushed_does_not_lead() -> None:
    with SimWorld(21) as world:
        servers = SimCluster(world, 5)  # without the two there is still a majority
        client = world.machine("client")

        def controller() -> int:
            return next(number for number, node in servers.living.items() if node.controller.is_active)

        def state() -> PartitionState:
            return servers.living[controller()].image.topics["t"].partitions[0]

        async def story() -> None:
            active = controller()
            decide = servers.living[active].controller
            leader, follower, *_ = (number for number in servers.ids if number != active)
            run = servers.machines[active].run
            await run(decide.create_topic("t", -1, -1, {0: (leader, follower)}, LAZY))
            cluster = Cluster(servers.addresses, "test")
            producer = Producer(cluster)
            await producer.publish("t", Record(b"k", b"acknowledged", (), 1_700_000_000_000), 0)
            log = servers.living[follower].partitions.get("t", 0).log
            assert log.log_end_offset == 1
            assert log.stable_offset == 0

            servers.machines[follower].disk_times.is_hung = True  # so it does not get to its first flush
            durable = {**LAZY, "flush.messages": "1"}
            await run(decide.change_config(RESOURCE_TOPIC, "t", lambda _: durable, validate_only=False))
            await until(lambda: servers.living[follower].partitions.get("t", 0).is_durable)
            assert log.stable_offset == 0
            servers.crash(follower)
            await until(lambda: state().isr == (leader,))
            servers.kill(leader)
            await until(lambda: state().leader == NO_LEADER)

            servers.machines[follower].disk_times.is_hung = False
            await servers.bring_up(follower)
            await asyncio.sleep(10)
            assert state().leader == NO_LEADER, "who has everything is away"
            await servers.bring_up(leader)
            await until(lambda: len(state().isr) == 2)
            found = await fetch_one(cluster, TopicPartition("t", 0), 0, max_wait_ms=100)
            assert [record.value for record in found.records] == [b"acknowledged"]
            cluster.close()

        async def idle() -> None:
            pass

        async def main() -> None:
            await asyncio.gather(*(servers.bring_up(number) for number in servers.ids))
            await client.start(lambda ports: idle())
            await client.run(story())

        world.run(main(), timeout_s=600)
