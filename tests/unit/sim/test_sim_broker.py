"""The real broker in the simulated world: what is acknowledged is there, and a seed tells it all again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from penstock.model.errors import ApiError, OutcomeUnknown
from penstock.model.new_topic import NewTopic
from penstock.model.topic_partition import TopicPartition
from penstock.ports.disk import File
from penstock.records.builder import Record
from penstock.sim.broker import broker
from penstock.sim.machine.network import LinkProfile
from penstock.sim.machine.world import ProcessDied, SimMachine, SimPorts, SimWorld
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import fetch_one, offset_range
from penstock.wire_client.aio.publisher import Publisher
from penstock.wire_client.aio.topics import create_topic
from penstock.wire_client.requests.errors import WireClientError

NODE = "node-1"
TOPIC = "orders"
PARTITION = TopicPartition(TOPIC, 0)
SEEDS = range(*map(int, os.environ.get("PENSTOCK_SIM_SEEDS", "0:12").split(":")))


@dataclass
class History:
    """The history of one producer."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)  # by offset
    uncertain: list[bytes] = field(default_factory=list)
    refused: int = 0


async def produce(cluster: AsyncCluster, machine: SimMachine, history: History, until_s: float, pause_s: float) -> None:
    loop = asyncio.get_running_loop()
    producer = Publisher(cluster)
    number = 0
    while loop.time() < until_s:
        value = b"value-%d" % number
        number += 1
        try:
            produced = await producer.publish(TOPIC, Record(b"key", value, (), machine.clock.now_ms()), 0)
        except OutcomeUnknown:
            history.uncertain.append(value)
        except (WireClientError, ApiError):
            history.refused += 1
        else:
            assert produced.offset not in history.acknowledged, "an offset is given once"
            history.acknowledged[produced.offset] = value
        await asyncio.sleep(pause_s)


async def read_everything(cluster: AsyncCluster) -> dict[int, bytes]:
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
            cluster = AsyncCluster([(NODE, 9092)])
            producing = world.spawn("client", produce(cluster, machine, history, seconds, 0.2))
            deaths = await torment(world, machine, seconds, settings)
            await producing
            return await asyncio.wait_for(read_everything(AsyncCluster([(NODE, 9092)])), 60), deaths

        found, deaths = world.run(main(), timeout_s=10 * seconds + 3600)
    return history, found, deaths, world


@pytest.mark.parametrize("seed", SEEDS)
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


def test_five_virtual_minutes_of_a_broker_and_its_writer() -> None:
    """The suite's time limit would not let anybody wait for them to pass."""
    with SimWorld(3) as world:
        machine = world.machine(NODE)
        history = History()

        async def main() -> dict[int, bytes]:
            await machine.start(broker())
            cluster = AsyncCluster([(NODE, 9092)])
            await produce(cluster, machine, history, 300, 0.5)
            return await read_everything(cluster)

        found = world.run(main())
        assert world.loop.time() >= 300
    assert len(found) == len(history.acknowledged) > 500


def test_a_clean_stop_is_clean(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with SimWorld(4) as world:
        machine = world.machine(NODE)
        history = History()

        async def main() -> dict[int, bytes]:
            served = await machine.start(broker())
            cluster = AsyncCluster([(NODE, 9092)])
            await produce(cluster, machine, history, 10, 0.1)
            await machine.run(served.stop())
            machine.exited()
            with pytest.raises(WireClientError):
                await fetch_one(cluster, PARTITION, 0, max_wait_ms=10)
            await machine.start(broker())
            return await read_everything(AsyncCluster([(NODE, 9092)]))

        found = world.run(main())
    check(history, found)
    assert "after a clean stop" in caplog.text


@pytest.mark.parametrize("is_cold", [False, True])
def test_large_answers_leave_piece_by_piece_through_small_windows(is_cold: bool) -> None:
    profile = LinkProfile(windows_bytes=(4096,), cut_chance=0.5)
    with SimWorld(5, profile=profile) as world:
        machine = world.machine(NODE)
        values = [world.random("values").randbytes(100_000) for _ in range(40)]

        async def main() -> list[bytes]:
            await machine.start(broker())
            cluster = AsyncCluster([(NODE, 9092)])
            producer = Publisher(cluster)
            topic = await cluster.topic(TOPIC, create=True)
            pending = [producer.enqueue(topic, Record(None, value, (), machine.clock.now_ms()), 0) for value in values]
            await asyncio.gather(*pending)
            machine.disk.is_cold = is_cold
            found: list[bytes] = []
            while len(found) < len(values):
                fetched = await fetch_one(cluster, PARTITION, len(found), max_wait_ms=100, max_bytes=4 << 20)
                found += [record.value or b"" for record in fetched.records]
            return found

        assert world.run(main(), timeout_s=3600) == values


def test_compaction_runs_in_virtual_time() -> None:
    settings = {"log.cleaner.backoff.ms": "1000", "log.roll.ms": "2000"}
    with SimWorld(6) as world:
        machine = world.machine(NODE)

        async def main() -> tuple[int, dict[int, bytes]]:
            served = await machine.start(broker(settings=settings))
            cluster = AsyncCluster([(NODE, 9092)])
            await create_topic(cluster, NewTopic(TOPIC, 1, configs={"cleanup.policy": "compact", "segment.ms": "2000"}))
            history = History()
            await produce(cluster, machine, history, 120, 0.5)
            machine.crash()
            await machine.start(broker(settings=settings))
            found = await read_everything(AsyncCluster([(NODE, 9092)]))
            last = max(history.acknowledged)
            assert found[last] == history.acknowledged[last]
            return served.cleaning.cleanings, found

        cleanings, found = world.run(main(), timeout_s=3600)
    assert cleanings
    assert len(found) < 100


class LyingFlusher:
    """Says that everything is stable, and does nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def flush(
        self, files: Sequence[File], directories: Sequence[str], on_stable: Callable[[OSError | None], None]
    ) -> None:
        self._loop.call_later(0.001, on_stable, None)

    def close(self) -> None:
        """Nothing to join."""


def test_a_broker_that_acknowledges_before_the_flush_is_found_out() -> None:
    """The world is bad enough, and the check strict enough, to see such a defect."""

    def is_caught(seed: int) -> bool:
        with SimWorld(seed) as world:
            machine = world.machine(NODE)
            history = History()

            async def lying(ports: SimPorts) -> None:
                vars(ports).update(flusher=LyingFlusher(ports.loop))
                await broker()(ports)

            async def main() -> dict[int, bytes]:
                await machine.start(broker())
                cluster = AsyncCluster([(NODE, 9092)])
                await cluster.topic(TOPIC, create=True)
                machine.kill()
                await machine.start(lying)
                await produce(cluster, machine, history, 5, 0.1)
                machine.crash()
                await machine.start(broker())
                return await read_everything(AsyncCluster([(NODE, 9092)]))

            found = world.run(main())
        return any(found.get(offset) != value for offset, value in history.acknowledged.items())

    assert any(is_caught(seed) for seed in range(5))
