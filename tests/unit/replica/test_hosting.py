"""Failures of the disk around checkpoints, closing and flushing: what is said to be stable is, and one log's
failure is not another's."""

from __future__ import annotations

import errno
from random import Random

import pytest

from penstock.model.errors import ErrorCode, StorageError
from penstock.sim.machine.disk import SimDisk, SimFile
from penstock.storage import checkpoints
from support.worlds.hosted import HostedWorld, cut_as_follower


class ShortOfDescriptors(SimDisk):
    """Refuses to open what the test names."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.refused = ""

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if self.refused and self.refused in path:
            raise OSError(errno.EMFILE, "too many open files", path)
        return super().open(path, create=create)


def recovery_points(world: HostedWorld) -> dict[tuple[str, int], int]:
    return checkpoints.read_offsets(world.disk, f"/data/{checkpoints.RECOVERY_POINTS}")


def filled(topics: dict[str, dict[str, str]], disk: SimDisk | None = None) -> HostedWorld:
    world = HostedWorld(topics, disk)
    for name in topics:
        for _ in range(5):
            world.append(world.hosted.get(name, 0), b"key")
    return world


def test_a_log_that_cannot_be_closed_leaves_no_clean_mark_and_keeps_its_recovery_point() -> None:
    world = filled({"sick": {"flush.messages": "1000"}, "well": {"flush.messages": "1000"}})
    world.disk.fail_sync = lambda path: "sick-0" in path
    world.close()
    assert not world.disk.exists("/data/.kafka_cleanshutdown")
    assert recovery_points(world) == {("sick", 0): 0, ("well", 0): 5}
    world.disk.fail_sync = None
    world.disk.kill()
    world.open()
    assert not world.report.was_clean
    assert world.hosted.get("well", 0).log.log_end_offset == 5
    world.close()
    assert world.disk.exists("/data/.kafka_cleanshutdown")


def test_logs_that_cannot_be_closed_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    world = filled({"a": {"flush.messages": "1000"}, "b": {"flush.messages": "1000"}, "well": {}})
    world.disk.fail_sync = lambda path: "a-0" in path or "b-0" in path
    world.close()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert line.startswith(
        "2 of 3 partitions could not be closed cleanly: the next start recovers them as after a crash"
    )
    assert "a-0" in line
    assert not world.disk.exists("/data/.kafka_cleanshutdown")


async def test_a_checkpoint_that_fails_does_so_alone() -> None:
    world = filled({"sick": {}, "well": {}})
    for name in ("sick", "well"):
        partition = world.hosted.get(name, 0)
        partition.log.roll(world.clock.ms)  # its indexes are to be made stable by the checkpoint
        world.append(partition, b"key")
    world.disk.fail_sync = lambda path: "sick-0" in path
    await world.hosted.housekeeping.checkpoint()
    assert recovery_points(world) == {("sick", 0): 0, ("well", 0): 6}
    assert world.hosted.get("sick", 0).log.persisted_recovery_point == 0
    world.disk.fail_sync = None
    await world.hosted.housekeeping.checkpoint()  # what failed was put back, and is tried again
    assert recovery_points(world) == {("sick", 0): 6, ("well", 0): 6}


async def test_a_recovery_point_counts_only_once_it_is_written() -> None:
    world = filled({"t": {}})
    world.disk.fail_sync = lambda path: checkpoints.RECOVERY_POINTS in path
    with pytest.raises(StorageError, match=r"cannot write .*recovery-point-offset-checkpoint"):
        await world.hosted.housekeeping.checkpoint()
    # Whoever deletes old snapshots or replaces segments asks this, so it may not be ahead of the file.
    assert world.hosted.get("t", 0).log.persisted_recovery_point == 0
    world.disk.fail_sync = None
    await world.hosted.housekeeping.checkpoint()
    assert world.hosted.get("t", 0).log.persisted_recovery_point == 5


async def test_a_cut_lowers_a_recovery_point_that_was_written_by_a_checkpoint_that_failed() -> None:
    world = filled({"t": {}})
    partition = world.hosted.get("t", 0)
    world.disk.fail_sync = lambda path: checkpoints.LOG_START_OFFSETS in path
    with pytest.raises(StorageError, match=r"cannot write .*log-start-offset-checkpoint"):
        await world.hosted.housekeeping.checkpoint()
    assert recovery_points(world) == {("t", 0): 5}
    world.disk.fail_sync = lambda path: checkpoints.RECOVERY_POINTS in path
    with pytest.raises(StorageError, match=r"cannot write .*recovery-point-offset-checkpoint"):
        await world.hosted.lower_recovery_point(partition, 2)
    world.disk.fail_sync = None
    await world.hosted.lower_recovery_point(partition, 2)
    cut_as_follower(partition, 2)
    assert recovery_points(world)["t", 0] <= 2


def test_a_flush_that_finds_no_descriptor_is_put_off_and_nothing_is_lost() -> None:
    disk = ShortOfDescriptors()
    world = filled({"t": {"flush.messages": "1000"}, "well": {"flush.messages": "1"}}, disk)
    partition = world.hosted.get("t", 0)
    partition.log._segments.active.release()
    answers: list[ErrorCode] = []
    partition.when_committed(100, answers.append)
    disk.refused = "t-0/"
    world.hosted._commit.request(partition)
    assert answers == []
    assert partition.log.offline is None
    world.append(world.hosted.get("well", 0), b"key")
    assert world.hosted.get("well", 0).high_watermark == 6
    disk.refused = "nothing"
    world.hosted._commit.request(partition)
    assert partition.log.stable_offset == partition.log.log_end_offset > 0
