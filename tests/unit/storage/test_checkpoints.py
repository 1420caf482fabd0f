from __future__ import annotations

from random import Random

import pytest

from penstock.model.errors import StorageError
from penstock.sim.machine.disk import SimCrash, SimDisk
from penstock.storage import checkpoints
from penstock.storage.files import read_whole, write_atomic

TOPIC_ID = bytes(range(16))


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(Random(0))
    disk.make_directory("/data")
    disk.make_directory("/data/t-0")
    disk.sync_directory("")
    disk.sync_directory("/data")
    return disk


def test_offsets_in_kafkas_text_format(disk: SimDisk) -> None:
    path = checkpoints.recovery_point_path("/data")
    assert checkpoints.read_offsets(disk, path) == {}
    offsets = {("orders", 0): 12, ("a-b.c_d", 3): 2**40}
    checkpoints.write_offsets(disk, path, offsets)
    assert read_whole(disk, path) == b"0\n2\norders 0 12\na-b.c_d 3 1099511627776\n"
    assert checkpoints.read_offsets(disk, path) == offsets


def test_a_damaged_checkpoint_is_named(disk: SimDisk) -> None:
    path = checkpoints.log_start_path("/data")
    write_atomic(disk, path, b"0\n2\norders 0 12\n")
    with pytest.raises(StorageError, match=path):
        checkpoints.read_offsets(disk, path)


def test_partition_metadata(disk: SimDisk) -> None:
    assert checkpoints.read_partition_metadata(disk, "/data/t-0") is None
    for sync in (True, False):
        checkpoints.write_partition_metadata(disk, "/data/t-0", TOPIC_ID, sync=sync)
        assert read_whole(disk, "/data/t-0/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
        assert checkpoints.read_partition_metadata(disk, "/data/t-0") == TOPIC_ID
    disk.open("/data/t-0/partition.metadata").write(30, (bytes(13),))  # grown, and its last bytes never written
    assert checkpoints.read_partition_metadata(disk, "/data/t-0") is None
    disk.open("/data/t-0/partition.metadata").truncate(30)
    assert checkpoints.read_partition_metadata(disk, "/data/t-0") is None


def test_the_clean_shutdown_marker_is_taken_once(disk: SimDisk) -> None:
    assert not checkpoints.take_clean_shutdown_marker(disk, "/data")
    checkpoints.write_clean_shutdown_marker(disk, "/data", 5)
    assert read_whole(disk, "/data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":5}'
    disk.crash()
    assert checkpoints.take_clean_shutdown_marker(disk, "/data")
    disk.crash()
    assert not checkpoints.take_clean_shutdown_marker(disk, "/data")


def test_an_atomic_write_is_the_old_or_the_new_wherever_the_machine_stops() -> None:
    outcomes = set()
    for seed in range(60):
        for stop in range(1, 7):
            disk = SimDisk(Random(seed))
            disk.make_directory("/data")
            disk.sync_directory("")
            write_atomic(disk, "/data/f", b"old")
            disk.crash_after = disk.changes + stop
            try:
                write_atomic(disk, "/data/f", b"new and longer")
                finished = True
            except SimCrash:
                finished = False
            disk.crash_after = None
            disk.crash()
            content = read_whole(disk, "/data/f")
            assert content in (b"old", b"new and longer")
            assert not finished or content == b"new and longer"
            outcomes.add(content)
    assert len(outcomes) == 2
