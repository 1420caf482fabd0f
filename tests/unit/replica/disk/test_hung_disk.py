"""A disk that hangs, and answers again: others lead meanwhile, and the broker comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.core.metadata.image import NO_LEADER
from penstock.model.errors import ApiError
from penstock.model.topic_partition import TopicPartition
from penstock.replica.partition import Partition
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import fetch_one
from penstock.wire_client.aio.publisher import Publisher
from penstock.wire_client.requests.errors import WireClientError
from support.scripted.leader import until
from support.worlds.three_brokers import TOPIC, ThreeBrokers, play

LIMIT_S = 1.0  # penstock.disk.hung.ms in the simulation


def hang(brokers: ThreeBrokers, number: int, is_hung: bool = True) -> None:
    brokers.servers.machines[number].disk_times.is_hung = is_hung


def controller(brokers: ThreeBrokers) -> int:
    return next(number for number, node in brokers.servers.living.items() if node.controller.is_active)


async def publish(brokers: ThreeBrokers, producer: Publisher, value: bytes, timeout_s: float = 30.0) -> None:
    """Until it is acknowledged."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                await brokers.publish(producer, value)
                return
            except (ApiError, WireClientError):
                await asyncio.sleep(0.05)


async def lead_elsewhere(brokers: ThreeBrokers, wanted: int) -> None:
    """The partition is led by `wanted`."""
    while brokers.state.leader != wanted:
        leader = brokers.servers.living[brokers.state.leader]
        partition = leader.partitions.get(TOPIC, 0)
        await brokers.servers.machines[brokers.state.leader].run(_pass_on(partition, wanted))
        await asyncio.sleep(0.1)
    await until(lambda: len(brokers.state.isr) == 3)


async def _pass_on(partition: Partition, wanted: int) -> None:
    if partition.followers is not None and partition.followers.pending_isr is None:
        partition.propose_isr((wanted,))


async def values(cluster: AsyncCluster) -> list[bytes | None]:
    found = await fetch_one(cluster, TopicPartition(TOPIC, 0), 0, max_wait_ms=100)
    return [record.value for record in found.records]


@pytest.mark.parametrize("is_controller", [False, True], ids=["a broker", "the controller"])
def test_a_leader_whose_disk_hangs_is_relieved_and_comes_back(
    is_controller: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        before = controller(brokers)
        sick = before if is_controller else next(number for number in (1, 2, 3) if number != before)
        await lead_elsewhere(brokers, sick)
        await publish(brokers, producer, b"0")
        hang(brokers, sick)
        began_s = asyncio.get_running_loop().time()
        await publish(brokers, producer, b"1")
        assert asyncio.get_running_loop().time() - began_s < 3 * LIMIT_S
        assert brokers.state.leader not in (sick, NO_LEADER)
        assert sick not in brokers.state.isr
        await until(lambda: controller(brokers) != sick)
        node = brokers.servers.living[sick]
        assert node.disk_watch.is_hung
        assert node.disk_watch.waited_s >= LIMIT_S
        for number in range(2, 10):
            await publish(brokers, producer, b"%d" % number)
        await asyncio.sleep(60)
        assert sick not in brokers.state.isr
        assert node.partitions.get(TOPIC, 0).log.offline is None

        hang(brokers, sick, False)
        await until(lambda: len(brokers.state.isr) == 3)
        assert not node.disk_watch.is_hung
        assert node.disk_watch.times_hung == 1
        await publish(brokers, producer, b"10")
        assert list(dict.fromkeys(await values(cluster))) == [b"%d" % number for number in range(11)]

    play(3, story)
    said = [record.message for record in caplog.records if record.name == "penstock.replica.disk_watch"]
    assert len(said) == 2, said
    assert "/data hangs" in said[0]
    assert "/data answers again" in said[1]


def test_a_follower_whose_disk_hangs_leaves_the_in_sync_replicas() -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        await publish(brokers, producer, b"0")
        leader = brokers.state.leader
        sick = next(number for number in brokers.state.isr if number != leader)
        hang(brokers, sick)
        await publish(brokers, producer, b"1", 3 * LIMIT_S)
        assert brokers.state.leader == leader
        assert sick not in brokers.state.isr
        fetched = brokers.servers.living[sick].fetchers.bytes_fetched
        await publish(brokers, producer, b"2")
        await asyncio.sleep(5)
        assert brokers.servers.living[sick].fetchers.bytes_fetched == fetched, "what cannot be stored is not fetched"
        hang(brokers, sick, False)
        await until(lambda: sick in brokers.state.isr)

    play(5, story)


def test_when_all_disks_hang_leadership_settles_and_all_come_back() -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        await publish(brokers, producer, b"0")
        epoch = brokers.state.leader_epoch
        for number in (1, 2, 3):
            hang(brokers, number)
        with pytest.raises(TimeoutError):
            await publish(brokers, producer, b"1", 5.0)
        await asyncio.sleep(60)
        assert brokers.state.leader_epoch <= epoch + 2
        for number in (1, 2, 3):
            hang(brokers, number, False)
        await until(lambda: len(brokers.state.isr) == 3, 60)
        assert brokers.state.leader_epoch <= epoch + 3
        await publish(brokers, producer, b"2")
        assert {b"0", b"2"} <= set(await values(cluster))

    play(6, story)


def test_a_very_slow_disk_does_not_come_and_go() -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        await publish(brokers, producer, b"0")
        sick = brokers.state.leader
        times = brokers.servers.machines[sick].disk_times
        times.sync_s = times.work_s = 1.5 * LIMIT_S
        times.slow_chance = 0
        for number in range(120):
            await publish(brokers, producer, b"%d" % number)
            await asyncio.sleep(1)
        assert brokers.state.leader != sick
        assert brokers.servers.living[sick].disk_watch.times_hung <= 3

    play(7, story)


def test_a_disk_that_answers_again_is_found_well_beside_readers_of_cold_data() -> None:
    async def read_on(brokers: ThreeBrokers, number: int, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            await brokers.servers.living[number].workers.run(lambda: None)

    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        await publish(brokers, producer, b"0")
        sick = brokers.state.leader
        machine = brokers.servers.machines[sick]
        machine.disk_times.work_s, machine.disk_times.slow_chance = LIMIT_S / 20, 0
        is_over = asyncio.Event()
        readers = [machine.run(read_on(brokers, sick, is_over)) for _ in range(40)]  # each waits for ten others
        hang(brokers, sick)
        await publish(brokers, producer, b"1")
        assert brokers.servers.living[sick].disk_watch.is_hung
        hang(brokers, sick, False)
        await asyncio.sleep(10 * LIMIT_S)
        assert not brokers.servers.living[sick].disk_watch.is_hung
        is_over.set()
        await asyncio.gather(*readers)

    play(8, story)


@pytest.mark.parametrize("hangs_in", ["partitions", "metadata"])
def test_a_disk_that_hangs_while_logs_are_closed_does_not_hold_up_the_stop(hangs_in: str) -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        await publish(brokers, producer, b"0")
        sick = next(number for number in (1, 2, 3) if number != controller(brokers))
        node = brokers.servers.living[sick]
        owner = node._disk_lane if hangs_in == "partitions" else node._quorum_workers
        run = owner.run

        def run_on_a_hung_disk(work: Callable[[], object]) -> Awaitable[object]:
            if node.is_stopping:
                hang(brokers, sick)
            return run(work)

        owner.run = run_on_a_hung_disk  # type: ignore[method-assign, assignment]
        async with asyncio.timeout(60):
            await brokers.servers.machines[sick].run(node.stop())
        assert brokers.servers.machines[sick].disk_times.is_hung
        assert node.is_abandoned
        assert node.disk_watch.is_hung
        brokers.servers.kill(sick)
        hang(brokers, sick, False)
        await brokers.servers.bring_up(sick)
        await until(lambda: len(brokers.state.isr) == 3)
        assert await values(cluster) == [b"0"]

    play(9, story)
