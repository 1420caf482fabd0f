"""Three simulated brokers with a topic of one partition on all of them, and a client beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.core.metadata.image import PartitionState
from penstock.model.new_topic import NewTopic
from penstock.records.builder import Record
from penstock.sim.cluster import SimCluster
from penstock.sim.machine.world import SimWorld
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.publisher import Publisher
from penstock.wire_client.aio.topics import create_topic

TOPIC = "t"


class ThreeBrokers:
    def __init__(self, world: SimWorld) -> None:
        self.servers = SimCluster(world, 3)
        self.machine = world.machine("client")

    @property
    def state(self) -> PartitionState:
        return next(iter(self.servers.living.values())).image.topics[TOPIC].partitions[0]

    async def publish(self, producer: Publisher, value: bytes) -> None:
        await producer.publish(TOPIC, Record(b"k", value, (), self.machine.clock.now_ms()), 0)


def play(seed: int, story: Callable[[ThreeBrokers, AsyncCluster, Publisher], Awaitable[None]]) -> None:
    """On the client's machine, when all serve and the topic is there."""
    with SimWorld(seed) as world:
        brokers = ThreeBrokers(world)

        async def idle() -> None:
            pass

        async def tell() -> None:
            cluster = AsyncCluster(brokers.servers.addresses, "test")
            await create_topic(cluster, NewTopic(TOPIC, 1, 3))
            await story(brokers, cluster, Publisher(cluster))
            cluster.close()

        async def main() -> None:
            await asyncio.gather(*(brokers.servers.bring_up(number) for number in brokers.servers.ids))
            await brokers.machine.start(lambda ports: idle())
            await brokers.machine.run(tell())

        world.run(main(), timeout_s=600)
