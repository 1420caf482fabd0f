"""`replication-offset-checkpoint`: what was known to be committed outlives the broker."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock.core.metadata.records import TopicCreated
from penstock.model.errors import StorageError
from penstock.sim.machine.disk import SimDisk
from penstock.storage import checkpoints
from penstock.storage.files import read_whole, write_atomic
from support.scripted.leader import batches
from support.worlds.hosted import HostedWorld

PATH = f"/data/{checkpoints.HIGH_WATERMARKS}"
TOPIC_ID = bytes([9] * 16).hex()


def replicated() -> HostedWorld:
    """A topic of which this broker (0) is one of two replicas, led by the other."""
    world = HostedWorld({"alone": {}})
    world.close()
    world.image.replay(TopicCreated("shared", TOPIC_ID, ((2, world.hosted.broker.node_id),)))
    world.open()
    return world


def test_high_watermarks_of_replicated_partitions_come_back() -> None:
    world = replicated()
    shared = world.hosted.get("shared", 0)
    shared.append_fetched(batches(0, 5, epoch=0), shared.leader_epoch, 3, 0, world.clock.ms)
    world.append(world.hosted.get("alone", 0), b"k")
    asyncio.run(world.hosted.housekeeping.checkpoint_high_watermarks())
    assert read_whole(world.disk, PATH) == b"0\n1\nshared 0 3\n"
    world.open()  # after a kill
    assert world.hosted.get("shared", 0).high_watermark == 3
    assert world.hosted.get("alone", 0).high_watermark == 1


def test_a_clean_stop_writes_them() -> None:
    world = replicated()
    shared = world.hosted.get("shared", 0)
    shared.append_fetched(batches(0, 5, epoch=0), shared.leader_epoch, 4, 0, world.clock.ms)
    world.close()
    assert read_whole(world.disk, PATH) == b"0\n1\nshared 0 4\n"


def test_nothing_new_is_not_written() -> None:
    world = replicated()
    asyncio.run(world.hosted.housekeeping.checkpoint_high_watermarks())
    before = world.disk.changes
    asyncio.run(world.hosted.housekeeping.checkpoint_high_watermarks())
    assert world.disk.changes == before


def test_a_broker_that_is_alone_has_no_such_file() -> None:
    world = HostedWorld({"alone": {}})
    world.append(world.hosted.get("alone", 0), b"k")
    asyncio.run(world.hosted.housekeeping.checkpoint_high_watermarks())
    world.close()
    assert not world.disk.exists(PATH)


@pytest.mark.parametrize("name", [checkpoints.HIGH_WATERMARKS, checkpoints.CLEANED_OFFSETS])
def test_a_damaged_file_says_what_to_do(name: str) -> None:
    disk = SimDisk(Random(0))
    disk.make_directory("/data")
    write_atomic(disk, f"/data/{name}", b"0\n7\n")
    with pytest.raises(StorageError, match="or delete it"):
        checkpoints.read_offsets(disk, f"/data/{name}")
