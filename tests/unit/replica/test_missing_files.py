"""A replica whose files are gone, or shorter than what was stable, takes them again from its leader."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.admin import create_topic
from penstock.client.cluster import Cluster
from penstock.client.fetching import TopicPartition, fetch_one
from penstock.client.producer import Producer
from penstock.core.metadata.image import PartitionState
from penstock.records.builder import Record
from penstock.sim.cluster import SimCluster
from penstock.sim.world import SimWorld

SEGMENT = "/data/t-0/00000000000000000000.log"


@pytest.mark.parametrize("what", ["directory", "tail"])
@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_replica_without_its_files_fetches_them_anew(what: str, who: str) -> None:
    with SimWorld(7) as world:
        servers = SimCluster(world, 3)
        machine = world.machine("client")

        def state() -> PartitionState:
            return next(iter(servers.living.values())).image.topics["t"].partitions[0]

        async def main() -> None:
            await asyncio.gather(*(servers.bring_up(number) for number in servers.ids))
            await machine.start(lambda ports: idle())
            await machine.run(story())

        async def idle() -> None:
            pass

        async def story() -> None:
            cluster = Cluster(servers.addresses, "test")
            await create_topic(cluster, "t", 1, 3)
            producer = Producer(cluster)
            for number in range(5):
                await producer.publish("t", Record(b"k", b"%d" % number, (), machine.clock.now_ms()), 0)
            led = state().leader
            loser = led if who == "leader" else next(one for one in state().isr if one != led)
            await servers.stop(loser)
            disk = servers.machines[loser].disk
            if what == "directory":
                disk.remove_directory("/data/t-0")
            else:
                disk.open(SEGMENT).truncate(200)
            await servers.bring_up(loser)
            await until_in_sync()
            partition = servers.living[loser].partitions.get("t", 0)
            assert partition.log.offline is None
            assert partition.log.log_end_offset == 5
            found = await fetch_one(cluster, TopicPartition("t", 0), 0, max_wait_ms=100)
            assert [record.value for record in found.records] == [b"%d" % number for number in range(5)]
            cluster.close()

        async def until_in_sync() -> None:
            async with asyncio.timeout(60):
                while len(state().isr) < 3:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.1)

        world.run(main(), timeout_s=600)
