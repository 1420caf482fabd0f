"""Old segments are deleted by a worker, and everything else that may happen to their log meanwhile."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from test_cuts import HeldWorkers

from penstock.core.metadata.records import TopicCreated
from penstock.model.errors import LogBusy, LogOffline
from penstock.records.batch import iterate_headers, read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.divergence import Recovering
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import SimCrash, SimDisk
from penstock.storage.group_commit import flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.producers.producer_state import ProducerStates
from penstock.storage.replay import replay_producers
from support.worlds.hosted import HostedWorld, follow_nobody

COUNT = 40
NOW_MS = 1_700_000_000_000
BASES = [0, 4, 8, 12, 16, 20, 24, 28, 32, 36]
RETENTION = {"internal.segment.bytes": "320", "retention.bytes": "560", "flush.messages": "1"}


class World(HostedWorld):
    """A leader with forty records of one producer, four a segment; retention keeps the last two segments."""

    def __init__(self, disk: SimDisk | None = None, **settings: str) -> None:
        super().__init__({"t": RETENTION | settings}, disk)
        self.held = HeldWorkers()
        self.hosted.housekeeping._workers = self.held
        self.partition = self.hosted.get("t", 0)
        for number in range(COUNT):
            self.append_next(number)

    def append_next(self, number: int) -> None:
        data = build_batch(
            [Record(b"k", b"v%02d" % number, (), self.clock.ms)], producer_id=7, producer_epoch=0, base_sequence=number
        )
        self.partition.append(read_header(data), data, self.clock.ms)

    @property
    def log(self) -> Log:
        return self.partition.log

    async def begin(self) -> asyncio.Task[int]:
        """Up to where the worker has the files and has not touched them."""
        self.held.is_held = True
        task = asyncio.ensure_future(self.hosted.housekeeping.apply_retention())
        await self.held.asked.wait()
        assert self.log.is_deleting
        return task

    async def end(self, task: asyncio.Task[int]) -> int:
        self.held.go_on.set()
        return await task


def values(log: Log) -> list[int]:
    found: list[int] = []
    at = log.log_start_offset
    while (piece := log.reader.read(at, 1 << 20)) is not None:
        found += [header.base_offset for _, header in iterate_headers(piece.read(), "")]
        at = piece.next_offset
    return found


def logs_of(world: World) -> list[str]:
    return [name for name in world.disk.list_directory(world.log.directory) if name.endswith(".log")]


def knows_the_last(world: World, log: Log) -> bool:
    last = build_batch(
        [Record(b"k", b"v", (), world.clock.ms)], producer_id=7, producer_epoch=0, base_sequence=COUNT - 1
    )
    return log.producers.check(read_header(last)) == COUNT - 1


async def test_the_loop_touches_no_file_of_segments_that_go(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    changes, syncs = world.disk.changes, []
    sync = world.disk.sync_directory
    monkeypatch.setattr(world.disk, "sync_directory", lambda path, *mark: syncs.append(path) or sync(path, *mark))
    task = await world.begin()
    assert (world.disk.changes, syncs) == (changes, [])
    assert (world.log.log_start_offset, world.log.segment_bases) == (32, [32, 36])
    assert values(world.log) == list(range(32, COUNT))
    assert await world.end(task) == 8
    assert len(logs_of(world)) == 2
    assert values(world.log) == list(range(32, COUNT))


async def test_the_log_goes_on_while_its_oldest_segments_go() -> None:
    world = World()
    task = await world.begin()
    world.held.is_held = False
    for number in range(COUNT, COUNT + 20):
        world.append_next(number)
    await world.hosted.housekeeping.checkpoint()
    assert world.partition.high_watermark == COUNT + 20
    assert values(world.log) == list(range(32, COUNT + 20))
    await world.hosted.housekeeping.apply_retention()  # one at a time
    assert world.log.log_start_offset == 32
    await world.end(task)
    await world.hosted.housekeeping.apply_retention()
    assert world.log.log_start_offset == 52
    world.disk.crash()
    world.open()
    assert values(world.hosted.get("t", 0).log) == list(range(52, COUNT + 20))


async def test_a_cut_waits_for_the_segments_that_go() -> None:
    world = World()
    task = await world.begin()
    for begin in (lambda: world.log.begin_cut(34), lambda: world.log.begin_anew(50)):
        with pytest.raises(LogBusy):
            begin()
    follow_nobody(world.partition)
    recovering = Recovering(asyncio.get_running_loop(), world.hosted, world.workers)
    cut = asyncio.ensure_future(recovering.start_anew(world.partition, 50))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not cut.done()
    assert world.log.log_end_offset == COUNT
    await world.end(task)
    await cut
    assert (world.log.log_start_offset, world.log.log_end_offset, world.log.is_deleting) == (50, 50, False)


async def test_a_topic_made_anew_meanwhile_keeps_its_files() -> None:
    world = World()
    task = await world.begin()
    world.held.is_held = False
    removal = world.hosted.topic_deleted("t", bytes(16))
    world.image.replay(TopicCreated("u", bytes([8] * 16).hex(), ((1,),)))
    del world.image.topics["t"]
    world.image.replay(TopicCreated("t", bytes([9] * 16).hex(), ((1,),)))
    world.hosted.topic_created(world.image.topics["t"])
    world.partition = world.hosted.get("t", 0)
    world.append_next(0)
    await world.end(task)
    await removal
    assert logs_of(world) == ["00000000000000000000.log"]
    assert values(world.log) == [0]


async def test_what_could_not_be_renamed_is_still_there_and_goes_next_time(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    start = 3
    renamed: list[str] = []

    def rename(old: str, new: str) -> None:
        renamed.extend([old] if old.endswith(".log") else [])
        if len(renamed) > start:
            raise OSError(errno.EIO, "input/output error", old)
        SimDisk.rename(world.disk, old, new)

    world.disk.rename = rename  # type: ignore[method-assign]
    assert await world.hosted.housekeeping.apply_retention() == start
    assert "cannot delete segments" in caplog.text
    assert world.log.segment_bases == BASES[start:]
    assert (world.log.log_start_offset, world.log.is_deleting, world.log.offline) == (32, False, None)
    assert values(world.log) == list(range(32, COUNT))
    del world.disk.rename  # type: ignore[method-assign]
    assert await world.hosted.housekeeping.apply_retention() == 8 - start
    assert world.log.segment_bases == [32, 36]
    assert len(logs_of(world)) == 2


async def test_a_log_closed_meanwhile_lets_go_of_its_files() -> None:
    world = World()
    task = await world.begin()
    world.log.close(clean=False)
    assert await world.end(task) == 0
    assert len(logs_of(world)) == len(BASES)
    with suppress(LogOffline):
        world.log.end_position()


@pytest.mark.parametrize("has_gaps", [False, True])
def test_wherever_the_machine_stops_no_old_segment_is_left_behind_a_hole(has_gaps: bool) -> None:
    step, is_done = 0, False
    while not is_done:
        step += 1
        for seed in range(6):
            world = World(SimDisk(Random(seed)))
            if has_gaps:
                world.log.gaps.found()
            asyncio.run(world.hosted.housekeeping.checkpoint())
            world.disk.crash_after = world.disk.changes + step
            try:
                asyncio.run(retain_twice(world))
                is_done = True
            except SimCrash:
                pass
            world.disk.crash_after = None
            world.disk.crash()
            world.open()
            log = world.hosted.get("t", 0).log
            where = f"step {step}, seed {seed}"
            assert log.offline is None, f"{where}: {log.offline}"
            assert log.segment_bases == BASES[len(BASES) - len(log.segment_bases) :], where
            assert values(log) == list(range(log.log_start_offset, COUNT)), where
            assert knows_the_last(world, log), where
    assert step > 20, "there was something to stop in"


async def retain_twice(world: World) -> None:
    await world.hosted.housekeeping.apply_retention()
    world.partition.delete_records(37)
    await world.hosted.housekeeping.delete_below_start([world.partition])
    assert world.log.segment_bases == [36]


async def test_what_only_an_old_segment_says_of_producers_is_known_before_it_goes() -> None:
    """After a crash there may be no snapshot: then a worker replays, and the loop reads nothing."""
    world = World()
    world.disk.kill()
    for name in world.disk.list_directory(world.log.directory):
        if name.endswith(".snapshot"):
            world.disk.remove(f"{world.log.directory}/{name}")
    world.open()
    world.partition = world.hosted.get("t", 0)
    world.clock.ms += 1
    assert await world.hosted.housekeeping.apply_retention() == 8
    world.disk.crash()
    world.open()
    assert knows_the_last(world, world.hosted.get("t", 0).log)


async def test_deleted_records_take_their_segments_with_them() -> None:
    world = World()
    partition: Partition = world.partition
    assert partition.delete_records(13) == 13
    assert world.log.segment_bases == BASES, "a worker has to rename them"
    await world.hosted.housekeeping.delete_below_start([partition])
    assert world.log.segment_bases == BASES[3:]
    assert world.log.log_start_offset == 13


async def test_a_followers_log_start_is_on_the_disk_at_once() -> None:
    """All replicas have said that the records are gone: a crash must not bring them back."""
    world = World()
    partition = world.partition
    follow_nobody(partition)
    partition.append_fetched(b"", partition.leader_epoch, COUNT, 13, 0)
    assert world.log.log_start_offset == 13
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.log.segment_bases == BASES[3:]
    world.disk.crash()
    world.open()
    log = world.hosted.get("t", 0).log
    assert (log.log_start_offset, values(log)) == (13, list(range(13, COUNT)))


@pytest.mark.parametrize("seed", range(6))
def test_what_no_flush_has_covered_is_not_deleted(seed: int) -> None:
    """A flush that ends before its files are gone would leave it out, and a torn segment ends the log."""
    disk = SimDisk(Random(seed))
    disk.make_directory("/data")
    disk.sync_directory("")

    def opened() -> Log:
        config = LogConfig(segment_bytes=320)
        return Log.open(disk, "/data/t-0", config, now_ms=NOW_MS)

    log = opened()
    for number in range(40):
        data = build_batch([Record(b"k", b"v%02d" % number, (), NOW_MS)])
        log.append(read_header(data), data, 0, NOW_MS)
    log.is_flushed_by_owner = True
    count = len(log.segment_bases) - 2
    assert log.begin_deletion(count) is None
    flush_blocking(disk, log)
    assert log.begin_deletion(count) is not None
    disk.crash()
    assert opened().log_end_offset == 40


@pytest.mark.parametrize("seed", range(6))
async def test_a_snapshot_whose_sync_failed_is_written_again(seed: int) -> None:
    """To sync it again says nothing: the kernel took its pages for clean."""
    world = World(SimDisk(Random(seed)))
    await world.hosted.housekeeping.checkpoint()
    world.disk.kill()
    path = f"{world.log.directory}/{32:020d}.snapshot"
    file = world.disk.open(path)
    data = file.read(0, file.size())
    file.close()
    world.disk.remove(path)  # as a crash leaves it: in the page cache alone
    world.disk.sync_directory(world.log.directory)
    file = world.disk.open(path, create=True)
    file.write(0, (data,))
    file.close()
    world.open()
    world.partition = world.hosted.get("t", 0)
    failed: list[str] = []

    def fails_once(name: str) -> bool:
        if name != path or failed:
            return False
        failed.append(name)
        return True

    world.disk.fail_sync = fails_once
    await world.hosted.housekeeping.apply_retention()
    assert failed
    await world.hosted.housekeeping.apply_retention()
    assert world.log.segment_bases == [32, 36]
    world.disk.crash()
    file = world.disk.open(path)
    assert file.read(0, file.size()) == data


async def test_a_checkpoint_meanwhile_leaves_the_snapshots_that_the_worker_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(**{"retention.bytes": "-1"})
    await world.hosted.housekeeping.checkpoint()
    world.partition.delete_records(12)
    await world.hosted.housekeeping.delete_below_start([world.partition])
    log = world.log
    log.snapshots._drop([32])  # lost in a crash
    world.partition.delete_records(33)
    world.held.is_held = True
    task = asyncio.ensure_future(world.hosted.housekeeping.delete_below_start([world.partition]))
    await world.held.asked.wait()
    world.held.is_held = False
    for number in range(COUNT, COUNT + 12):
        world.append_next(number)
    await world.hosted.housekeeping.checkpoint()
    found: list[object] = []

    def replay(segments: Any, files: Any, start: int, offset: int) -> ProducerStates:
        found.append(files.load_newest(offset))
        return replay_producers(segments, files, start, offset)

    monkeypatch.setattr("penstock.storage.checkpoint_builder.replay_producers", replay)
    world.held.go_on.set()
    await task
    assert found
    assert None not in found
