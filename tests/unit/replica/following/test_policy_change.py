"""A compacted topic gets new replicas, then `cleanup.policy=delete`: what they fetched has gaps, and is sound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.metadata.image import PartitionState
from penstock.core.metadata.requests import Reassignment
from penstock.model.new_topic import NewTopic
from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record
from penstock.sim.cluster import SimCluster
from penstock.sim.machine.world import SimWorld
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import fetch
from penstock.wire_client.aio.publisher import Publisher

TOPIC, RESOURCE_TOPIC, COUNT = "t", 2, 150
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "internal.segment.bytes": "2000",
    "min.insync.replicas": "1",
}


class Brokers:
    def __init__(self, world: SimWorld) -> None:
        settings = {"log.cleaner.backoff.ms": "300", "replica.lag.time.max.ms": "3000"}
        self.servers = SimCluster(world, 5, settings=settings)

    @property
    def _controller(self) -> int:
        return next(number for number, node in self.servers.living.items() if node.controller.is_active)

    @property
    def state(self) -> PartitionState:
        return self.servers.living[self._controller].image.topics[TOPIC].partitions[0]

    async def control(self, ask: Callable[[Any], Any]) -> None:
        number = self._controller
        await self.servers.machines[number].run(ask(self.servers.living[number].controller))

    async def configure(self, **changes: str) -> None:
        settings = {name.replace("_", "."): value for name, value in changes.items()}
        await self.control(
            lambda controller: controller.topics.change_config(
                RESOURCE_TOPIC, TOPIC, lambda current: {**current, **settings}, validate_only=False
            )
        )

    def log_of(self, number: int) -> Any:
        return self.servers.living[number].partitions.get(TOPIC, 0).log


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to that")


async def read_all(cluster: AsyncCluster) -> list[bytes | None]:
    place, at, keys = TopicPartition(TOPIC, 0), 0, []
    for _ in range(200):
        found = (await fetch(cluster, {place: at}, max_wait_ms=10)).get(place)
        if found is None:
            await asyncio.sleep(0.05)
            continue
        assert not found.error, found.error
        keys += [record.key for record in found.records]
        at = max(at, found.next_offset)
        if at >= COUNT:
            return keys
    raise AssertionError(f"read no further than {at}")


def test_replicas_that_fetched_a_compacted_log_stay_whole_when_it_is_no_longer_compacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with SimWorld(5) as world:
        brokers = Brokers(world)
        servers = brokers.servers

        async def story() -> None:
            cluster = AsyncCluster(servers.addresses, "test")
            producer = Publisher(cluster)
            await brokers.control(
                lambda controller: controller.topics.create_topic(
                    NewTopic(TOPIC, assignments={0: (1, 2)}, configs=COMPACTED)
                )
            )
            for number in range(COUNT):
                key = b"k%d" % (number % 7 if number % 3 else 1000 + number)
                await producer.publish(TOPIC, Record(key, b"v%d" % number, (), 1_700_000_000_000 + number), 0)
            await until(lambda: all(brokers.log_of(number).cleaned_offset > COUNT // 2 for number in (1, 2)))
            await brokers.configure(internal_segment_bytes="1000000")  # the new replicas compact nothing themselves
            await brokers.control(
                lambda controller: controller.partitions.alter_reassignments([Reassignment(TOPIC, 0, (3, 4, 5))])
            )
            await until(lambda: brokers.state.replicas == (3, 4, 5) and set(brokers.state.isr) == {3, 4, 5})
            keys = await read_all(cluster)
            assert len(keys) < COUNT, "it was compacted"
            await brokers.configure(cleanup_policy="delete", retention_ms="-1")
            for number in (3, 4, 5):  # a rolling restart, in good order
                await servers.stop(number)
                await asyncio.sleep(1)
                await servers.bring_up(number)
                await asyncio.sleep(8)
                assert await read_all(cluster) == keys
            await until(lambda: set(brokers.state.isr) == {3, 4, 5})
            for number in (3, 4, 5):
                assert brokers.log_of(number).log_end_offset == COUNT
                assert servers.living[number].fetchers.repairs.repaired == 0
            assert "damage" not in caplog.text
            cluster.close()

        async def main() -> None:
            await asyncio.gather(*(servers.bring_up(number) for number in servers.ids))
            await world.spawn("client", story())

        world.run(main(), timeout_s=900)
