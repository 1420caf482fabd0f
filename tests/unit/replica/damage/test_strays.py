"""Directories of partitions that the metadata does not place on this broker: set aside at start, never before the
metadata is known, and never removed."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.new_topic import NewTopic
from penstock.sim.broker import DATA
from penstock.sim.cluster import host_of
from penstock.sim.machine.disk import SimDisk
from penstock.storage.files import read_whole
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.publisher import Publisher
from penstock.wire_client.aio.topics import create_topic, delete_topic
from support.worlds.three_brokers import TOPIC, ThreeBrokers, play

STARTED = 3
FIRST_SEGMENT = "00000000000000000000.log"
STRAY = "gone-0"


def partitions_on(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.list_directory(DATA) if name.startswith((f"{TOPIC}-", "gone-")))


def plant(disk: SimDisk) -> None:
    """As of a topic that was deleted while the broker was away."""
    disk.make_directory(f"{DATA}/{STRAY}")
    file = disk.open(f"{DATA}/{STRAY}/{FIRST_SEGMENT}", create=True)
    file.write(0, [b"nobody's"])
    file.close()


def forget_metadata(brokers: ThreeBrokers) -> SimDisk:
    """The broker is down, and when it starts it has heard of no topic."""
    brokers.servers.kill(STARTED)
    disk = brokers.servers.machines[STARTED].disk
    disk.remove_directory(f"{DATA}/__cluster_metadata-0")
    return disk


def test_only_what_the_cluster_does_not_know_is_set_aside_and_only_when_it_was_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        await brokers.publish(producer, b"kept")
        await asyncio.sleep(1)
        disk = forget_metadata(brokers)
        plant(disk)
        held = read_whole(disk, f"{DATA}/{TOPIC}-0/{FIRST_SEGMENT}")
        assert held is not None
        assert b"kept" in held
        network = brokers.servers.world.network
        network.isolate(host_of(STARTED))
        coming = asyncio.ensure_future(brokers.servers.bring_up(STARTED))
        await asyncio.sleep(20)
        assert not coming.done()
        assert partitions_on(disk) == [STRAY, f"{TOPIC}-0"]
        assert "-stray" not in caplog.text
        network.heal()
        await coming
        aside, known = partitions_on(disk)
        assert known == f"{TOPIC}-0"
        assert read_whole(disk, f"{DATA}/{known}/{FIRST_SEGMENT}") == held
        assert aside.startswith(f"{STRAY}.")
        assert aside.endswith("-stray")
        (said,) = [record.getMessage() for record in caplog.records if "-stray" in record.getMessage()]
        assert aside in said
        assert "you may delete them" in said
        caplog.clear()
        brokers.servers.kill(STARTED)
        await brokers.servers.bring_up(STARTED)
        assert partitions_on(disk) == [aside, known]
        assert read_whole(disk, f"{DATA}/{aside}/{FIRST_SEGMENT}") == b"nobody's"
        assert "-stray" not in caplog.text

    play(1, story)


def test_a_topic_made_again_under_its_name_has_its_own_records_alone() -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        await brokers.publish(producer, b"of the old one")
        await asyncio.sleep(1)
        disk = forget_metadata(brokers)
        await delete_topic(cluster, TOPIC)
        await asyncio.sleep(1)
        await create_topic(cluster, NewTopic(TOPIC, 1, 3))
        await brokers.publish(producer, b"of the new one")
        await brokers.servers.bring_up(STARTED)
        await asyncio.sleep(5)
        for _ in range(2):
            new, old = partitions_on(disk)
            assert (new, old[: len(new) + 1], old[-6:]) == (f"{TOPIC}-0", f"{TOPIC}-0.", "-stray")
            found = [read_whole(disk, f"{DATA}/{name}/{FIRST_SEGMENT}") or b"" for name in (new, old)]
            assert [b"of the new one" in data for data in found] == [True, False]
            assert [b"of the old one" in data for data in found] == [False, True]
            brokers.servers.kill(STARTED)  # a second start changes nothing
            await brokers.servers.bring_up(STARTED)
            await asyncio.sleep(1)

    play(2, story)
