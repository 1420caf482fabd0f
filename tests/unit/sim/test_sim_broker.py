"""The real broker in the simulated world: what is acknowledged is there, whatever happens, and a seed tells it again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random

import pytest

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.fetching import TopicPartition, fetch_one, offset_range
from penstock.client.producer import Producer
from penstock.model.errors import ApiError, OutcomeUnknown
from penstock.records.builder import Record
from penstock.sim.broker import broker
from penstock.sim.world import ProcessDied, SimMachine, SimWorld

NODE = "node-1"
TOPIC = "orders"
PARTITION = TopicPartition(TOPIC, 0)


@dataclass
class History:
    """What one producer saw."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)  # by offset
    uncertain: list[bytes] = field(default_factory=list)
    refused: int = 0


async def produce(cluster: Cluster, machine: SimMachine, history: History, until_s: float, pause_s: float) -> None:
    loop = asyncio.get_running_loop()
    producer = Producer(cluster)
    number = 0
    while loop.time() < until_s:
        value = b"value-%d" % number
        number += 1
        try:
            produced = await producer.publish(TOPIC, Record(b"key", value, (), machine.clock.now_ms()), 0)
        except OutcomeUnknown:
            history.uncertain.append(value)
        except (ClientError, ApiError):
            history.refused += 1
        else:
            assert produced.offset not in history.acknowledged, "an offset is given once"
            history.acknowledged[produced.offset] = value
        await asyncio.sleep(pause_s)


async def read_everything(cluster: Cluster) -> dict[int, bytes]:
    first, end = await offset_range(cluster, PARTITION)
    found: dict[int, bytes] = {}
    position = first
    while position < end:
        fetched = await fetch_one(cluster, PARTITION, position, max_wait_ms=100)
        found.update({record.offset: record.value or b"" for record in fetched.records})
        position = fetched.next_offset
    return found


def check(history: History, found: dict[int, bytes]) -> None:
    lost = {offset: value for offset, value in history.acknowledged.items() if found.get(offset) != value}
    assert not lost
    extra = [value for offset, value in sorted(found.items()) if offset not in history.acknowledged]
    assert sorted(extra) == sorted(value for value in history.uncertain if value in extra)
    assert list(found) == list(range(len(found))), "no gaps"


async def torment(world: SimWorld, machine: SimMachine, until_s: float, settings: dict[str, str]) -> int:
    """Kill it, cut its power, cut its network, break its connections; always start it again."""
    random = world.random("torment")
    loop = asyncio.get_running_loop()
    deaths = 0
    while loop.time() < until_s:
        await asyncio.sleep(random.uniform(0.5, 12))
        what = random.randrange(6)
        if what < 4:
            deaths += 1
            await die(random, machine, what)
            await asyncio.sleep(random.uniform(0, 3))
            await start(machine, random, settings)
            if random.random() < 0.7:  # otherwise a client of a dead machine waits for its own timeout
                world.network.reset("client", NODE)
        elif what == 4:
            world.network.partition(["client"], [NODE], one_way=random.random() < 0.5)
            await asyncio.sleep(random.uniform(0, 5))
            world.network.heal()
        else:
            world.network.reset("client", NODE)
        if random.random() < 0.2:
            machine.clock.jump(random.uniform(-2000, 2000))
    return deaths


async def die(random: Random, machine: SimMachine, what: int) -> None:
    if what == 0:
        machine.kill()
    elif what == 1:
        machine.crash()
    else:
        machine.crash_after(random.randint(1, 6))
        for _ in range(40):
            if not machine.is_running:
                return
            await asyncio.sleep(0.05)
        machine.disk.crash_after = None
        if machine.is_running:
            machine.kill()


async def start(machine: SimMachine, random: Random, settings: dict[str, str]) -> None:
    while True:
        if random.random() < 0.2:
            machine.crash_after(random.randint(1, 20))
        try:
            await machine.start(broker(settings=settings))
        except ProcessDied:
            await asyncio.sleep(0.1)
        else:
            machine.disk.crash_after = None
            return


def tormented(seed: int, seconds: float) -> tuple[History, dict[int, bytes], int, SimWorld]:
    settings = {"log.flush.offset.checkpoint.interval.ms": "5000", "log.roll.ms": "4000"}
    history = History()
    with SimWorld(seed) as world:
        machine = world.machine(NODE)

        async def main() -> tuple[dict[int, bytes], int]:
            await machine.start(broker(settings=settings))
            cluster = Cluster([(NODE, 9092)])
            producing = world.spawn("client", produce(cluster, machine, history, seconds, 0.2))
            deaths = await torment(world, machine, seconds, settings)
            await producing
            return await asyncio.wait_for(read_everything(Cluster([(NODE, 9092)])), 60), deaths

        found, deaths = world.run(main(), timeout_s=10 * seconds + 3600)
    return history, found, deaths, world


@pytest.mark.parametrize("seed", range(12))
def test_everything_acknowledged_survives_crashes_and_partitions(seed: int) -> None:
    history, found, deaths, _ = tormented(seed, 60)
    check(history, found)
    assert deaths
    assert history.acknowledged


def test_the_same_seed_tells_the_same_history() -> None:
    first, second, other = tormented(7, 40)[3], tormented(7, 40)[3], tormented(8, 40)[3]
    assert first.trace.text() == second.trace.text()
    assert first.trace.digest == second.trace.digest != other.trace.digest
    assert "crashes" in first.trace.text()


def test_five_minutes_of_a_broker_take_well_under_two_seconds() -> None:
    began = time.perf_counter()
    with SimWorld(3) as world:
        machine = world.machine(NODE)
        history = History()

        async def main() -> dict[int, bytes]:
            await machine.start(broker())
            cluster = Cluster([(NODE, 9092)])
            await produce(cluster, machine, history, 300, 0.5)
            return await read_everything(cluster)

        found = world.run(main())
        assert world.loop.time() >= 300
    assert len(found) == len(history.acknowledged) > 500
    assert time.perf_counter() - began < 2
