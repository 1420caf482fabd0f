"""Logs that went offline come back without a restart, and errors that pass take none offline."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest

from penstock.core.metadata.image import RESOURCE_TOPIC
from penstock.model.errors import ApiError
from penstock.model.new_topic import NewTopic
from penstock.model.topic_partition import TopicPartition
from penstock.ports.disk import File
from penstock.records.builder import Record
from penstock.replica.partition import Partition
from penstock.replica.revival import LONGEST_PAUSE_S
from penstock.sim.broker import SimBroker, broker
from penstock.sim.machine.disk import SimDisk
from penstock.sim.machine.world import SimWorld
from penstock.storage.durability import Flush
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import fetch_one
from penstock.wire_client.aio.publisher import Publisher
from penstock.wire_client.aio.topics import create_topic
from support.scripted.leader import until
from support.worlds.three_brokers import TOPIC, ThreeBrokers, play

RECORD = Record(b"k", b"v", (), 1_700_000_000_000)


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(11) as made:
        yield made


def without_descriptors(disk: SimDisk, monkeypatch: pytest.MonkeyPatch, of: str) -> list[str]:
    """No file of that path can be opened or directory synced from now on; the paths for which that was tried."""
    tried: list[str] = []

    def refuse(path: str) -> None:
        if of in path:
            tried.append(path)
            raise OSError(errno.EMFILE, "too many open files", path)

    opened, synced = disk.open, disk.sync_directory

    def open_file(path: str, *, create: bool = False) -> File:
        refuse(path)
        return opened(path, create=create)

    def sync_directory(path: str, mark: int | None = None) -> None:
        refuse(path)
        synced(path, mark)

    monkeypatch.setattr(disk, "open", open_file)
    monkeypatch.setattr(disk, "sync_directory", sync_directory)
    return tried


@pytest.mark.parametrize("of", ["partition.metadata", "t-0"])
def test_a_flush_without_a_descriptor_is_tried_again(of: str, world: SimWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, client = world.machine("alone"), world.machine("client")

    async def story() -> None:
        cluster = AsyncCluster([("alone", 9092)], "test")
        producer = Publisher(cluster)
        await create_topic(cluster, NewTopic(TOPIC, 1, 1))
        partition = nodes[0].partitions.get(TOPIC, 0)
        log = partition.log
        with monkeypatch.context() as patch:
            # The file of the segment is open by then: what the flush itself opens is refused.
            begin_flush, tried = log.begin_flush, []

            def begin() -> Flush | None:
                if not tried:
                    tried.append(without_descriptors(machine.disk, patch, of))
                return begin_flush()

            patch.setattr(log, "begin_flush", begin)
            publishing = asyncio.ensure_future(producer.publish(TOPIC, RECORD, 0))
            await asyncio.sleep(3)
            assert len(tried[0]) > 1, "it is tried again"
            assert log.offline is None
            assert not publishing.done()
        await publishing
        assert log.stable_offset == 1
        assert partition.log is log
        cluster.close()

    nodes: list[SimBroker] = []

    async def main() -> None:
        nodes.append(await machine.start(broker()))
        await client.start(lambda ports: _nothing())
        await client.run(story())

    world.run(main(), timeout_s=600)


async def _nothing() -> None:
    pass


def test_the_only_replica_comes_back_with_all_it_had(world: SimWorld) -> None:
    machine, client = world.machine("alone"), world.machine("client")

    async def story() -> None:
        cluster = AsyncCluster([("alone", 9092)], "test")
        producer = Publisher(cluster)
        await create_topic(cluster, NewTopic(TOPIC, 1, 1))
        for _ in range(5):
            await producer.publish(TOPIC, RECORD, 0)
        machine.disk.fail_sync = lambda path: path.endswith(".log")
        with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
            await producer.publish(TOPIC, RECORD, 0)
        partition: Partition = nodes[0].partitions.get(TOPIC, 0)
        await asyncio.sleep(30)
        assert partition.log.offline is not None
        machine.disk.fail_sync = None
        await until(lambda: partition.log.offline is None, LONGEST_PAUSE_S)
        assert nodes[0].revivals.revived == 1
        await producer.publish(TOPIC, RECORD, 0)
        found = await fetch_one(cluster, TopicPartition(TOPIC, 0), 0, max_wait_ms=100)
        assert [record.offset for record in found.records] == list(range(len(found.records)))
        assert len(found.records) >= 6
        assert partition.log.stable_offset == partition.log.log_end_offset
        cluster.close()

    nodes: list[SimBroker] = []

    async def main() -> None:
        nodes.append(await machine.start(broker()))
        await client.start(lambda ports: _nothing())
        await client.run(story())

    world.run(main(), timeout_s=600)


def test_what_a_failed_sync_left_in_memory_is_not_trusted() -> None:
    """After it the pages count as clean: the disk may not have them, however often they are synced."""

    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        for number in range(5):
            await brokers.publish(producer, b"%d" % number)
        sick = next(number for number in brokers.state.isr if number != brokers.state.leader)
        disk = brokers.servers.machines[sick].disk
        disk.fail_sync = lambda path: "/t-0/" in path
        for number in range(5, 10):
            await brokers.publish(producer, b"%d" % number)
        await until(lambda: sick not in brokers.state.isr)
        disk.fail_sync = None
        await until(lambda: len(brokers.state.isr) == 3, LONGEST_PAUSE_S)
        brokers.servers.crash(sick)
        await brokers.servers.bring_up(sick)
        log = brokers.servers.living[sick].partitions.get(TOPIC, 0).log
        assert log.recovery.truncated_bytes == 0
        assert log.log_end_offset >= 10, "in sync before the power failed"

    play(9, story)


def test_a_leader_whose_disk_is_full_is_relieved_and_comes_back() -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        for number in range(5):
            await brokers.publish(producer, b"%d" % number)
        sick = brokers.state.leader
        disk = brokers.servers.machines[sick].disk
        disk.capacity = 0
        disk.capacity = -disk.free_bytes()
        with pytest.raises(ApiError, match="no space left"):
            await brokers.publish(producer, b"no room")
        await until(lambda: brokers.state.leader not in (sick, -1), timeout_s=5.0)
        for number in range(5, 10):
            await brokers.publish(producer, b"%d" % number)
        assert sick not in brokers.state.isr
        disk.capacity = None
        await until(lambda: len(brokers.state.isr) == 3, LONGEST_PAUSE_S)

    play(13, story)


def test_where_flushing_is_left_to_the_system_all_that_was_not_stable_is_fetched_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It had claimed what a failed sync may have taken."""

    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        active = next(node for node in brokers.servers.living.values() if node.controller.is_active)
        machine = brokers.servers.machines[active.config.node_id]
        lazy = {"flush.messages": "1000000"}
        await machine.run(
            active.controller.topics.change_config(RESOURCE_TOPIC, TOPIC, lambda _: lazy, validate_only=False)
        )
        for number in range(10):
            await brokers.publish(producer, b"%d" % number)
        sick = next(number for number in brokers.state.isr if number != brokers.state.leader)
        node, disk = brokers.servers.living[sick], brokers.servers.machines[sick].disk
        partition = node.partitions.get(TOPIC, 0)
        await until(lambda: partition.log.log_end_offset == 10)
        disk.fail_sync = lambda path: "/t-0/" in path
        await brokers.servers.machines[sick].run(_flush(node, partition))
        await until(lambda: sick not in brokers.state.isr)
        disk.fail_sync = None
        await until(lambda: partition.log.offline is None, LONGEST_PAUSE_S)
        await until(lambda: len(brokers.state.isr) == 3, LONGEST_PAUSE_S)
        assert partition.log.log_end_offset == 10

    play(17, story)
    assert "t-0 is online again up to offset 0, was at 10" in caplog.text


async def _flush(node: SimBroker, partition: Partition) -> None:
    node.commit.request(partition)


def test_a_log_that_found_no_descriptor_at_the_start_is_opened_later(
    world: SimWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, client = world.machine("alone"), world.machine("client")

    async def write() -> None:
        cluster = AsyncCluster([("alone", 9092)], "test")
        await create_topic(cluster, NewTopic(TOPIC, 1, 1))
        for _ in range(5):
            await Publisher(cluster).publish(TOPIC, RECORD, 0)
        cluster.close()

    async def main() -> None:
        await machine.start(broker())
        await client.start(lambda ports: _nothing())
        await client.run(write())
        machine.kill()
        with monkeypatch.context() as patch:
            without_descriptors(machine.disk, patch, "/t-0/")
            node = await machine.start(broker())
            partition = node.partitions.get(TOPIC, 0)
            assert partition.log.offline is not None
        await until(lambda: partition.log.offline is None, LONGEST_PAUSE_S)
        assert partition.log.log_end_offset == partition.high_watermark == 5

    world.run(main(), timeout_s=600)
