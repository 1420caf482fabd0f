"""A log that is cut, and the machine stops at any disk operation of the cut: what is left has no hole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from penstock.model.errors import StorageError
from penstock.records.batch import iterate_headers
from penstock.records.builder import Record, build_batch
from penstock.replica.divergence import Recovering
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import SimCrash
from penstock.storage.log import Log
from support.worlds.hosted import HostedWorld, Workers, follow_nobody

T = TypeVar("T")
MIXTURES = 6
COUNT = 40
TOPIC = {"cleanup.policy": "compact", "internal.segment.bytes": "600", "flush.messages": "1"}


def offsets(log: Log) -> list[int]:
    found: list[int] = []
    at = log.log_start_offset
    while (piece := log.reader.read(at, 1 << 20)) is not None:
        found += [header.base_offset for _, header in iterate_headers(piece.read(), "")]
        at = piece.next_offset
    return found


def compacted(seed: int) -> tuple[HostedWorld, Partition]:
    """Every key once: the whole log was cleaned, and nothing was superseded."""
    world = HostedWorld({"t": TOPIC})
    world.disk.random = Random(seed)
    partition = world.hosted.get("t", 0)
    for offset in range(COUNT):
        world.append(partition, b"k%d" % offset)
    asyncio.run(world.hosted.housekeeping.checkpoint())
    partition.log.cleaned_offset = partition.log.segment_bases[-1]
    asyncio.run(world.hosted.housekeeping.persist_offsets())
    return world, partition


async def cut(world: HostedWorld, partition: Partition, offset: int) -> None:
    follow_nobody(partition)
    await world.hosted.lower_recovery_point(partition, offset)
    partition.truncate_to(offset)


async def begin_anew(world: HostedWorld, partition: Partition, offset: int) -> None:
    follow_nobody(partition)
    await world.hosted.lower_recovery_point(partition, partition.log.log_start_offset)
    partition.truncate_fully_and_start_at(offset)


async def cut_by_a_worker(world: HostedWorld, partition: Partition, offset: int) -> None:
    """And while it is at work on the files, checkpoints are written: of all partitions, this one among them."""
    await _by_a_worker(world, partition, lambda recovering: recovering.cut_at(partition, offset))


async def begin_anew_by_a_worker(world: HostedWorld, partition: Partition, offset: int) -> None:
    await _by_a_worker(world, partition, lambda recovering: recovering.start_anew(partition, offset))


async def _by_a_worker(
    world: HostedWorld, partition: Partition, change: Callable[[Recovering], Coroutine[Any, Any, None]]
) -> None:
    follow_nobody(partition)
    recovering = Recovering(asyncio.get_running_loop(), world.hosted, BusyWorkers(world))
    await change(recovering)
    await world.hosted.housekeeping.checkpoint()


class BusyWorkers(Workers):
    def __init__(self, world: HostedWorld) -> None:
        super().__init__()
        self._world = world

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        async def run() -> T:
            housekeeping = self._world.hosted.housekeeping
            await housekeeping.checkpoint()
            await housekeeping.persist_offsets()
            result = work()
            await housekeeping.checkpoint()
            await housekeeping.persist_offsets()
            return result

        return run()


@pytest.mark.parametrize("change", [cut, begin_anew, cut_by_a_worker, begin_anew_by_a_worker])
def test_a_cut_leaves_no_hole_wherever_the_machine_stops(change: object) -> None:
    offset, step, is_done = 12, 0, False
    while not is_done:
        step += 1
        for seed in range(MIXTURES):
            world, partition = compacted(seed)
            world.disk.crash_after = world.disk.changes + step
            try:
                asyncio.run(change(world, partition, offset))  # type: ignore[operator]
                is_done = True
            except SimCrash:
                pass
            world.disk.crash_after = None
            world.disk.crash()
            world.open()
            log = world.hosted.get("t", 0).log
            assert log.offline is None, f"step {step}, seed {seed}: {log.offline}"
            assert offsets(log) == list(range(log.log_start_offset, log.log_end_offset)), f"step {step}, seed {seed}"
    assert step > 10, "there was something to stop in"


# -- where compaction left gaps ----------------------------------------------------------------------------------------

KEPT = [0, 1, 5, 6, 7, 20, 21, 30, 31, 39, 45, 46, 47]
"""What a leader that was compacted has; the offsets between them belong to no batch. Two or three fill a segment."""


def with_gaps(seed: int) -> tuple[HostedWorld, Partition]:
    world = HostedWorld({"t": TOPIC | {"internal.segment.bytes": "200"}})
    world.disk.random = Random(seed)
    partition = world.hosted.get("t", 0)
    follow_nobody(partition)
    for offset in KEPT:
        data = build_batch([Record(b"k%d" % offset, b"v", (), 1)], base_offset=offset, leader_epoch=0)
        partition.append_fetched(data, partition.leader_epoch, offset + 1, 0, 0)
    asyncio.run(world.hosted.housekeeping.checkpoint())
    assert partition.log.persisted_recovery_point == partition.log.log_end_offset == 48
    return world, partition


@pytest.mark.parametrize("offset", [4, 5, 8, 13, 20, 22, 31, 40, 42, 45, 46])
def test_a_cut_in_a_gap_leaves_a_log_that_opens_wherever_the_machine_stops(offset: int) -> None:
    step, is_done = 0, False
    while not is_done:
        step += 1
        for seed in range(MIXTURES):
            world, partition = with_gaps(seed)
            world.disk.crash_after = world.disk.changes + step
            try:
                asyncio.run(cut_by_a_worker(world, partition, offset))
                is_done = True
            except SimCrash:
                pass
            world.disk.crash_after = None
            world.disk.crash()
            world.open()
            log = world.hosted.get("t", 0).log
            where = f"step {step}, seed {seed}"
            assert log.offline is None, f"{where}: {log.offline}"
            left = offsets(log)
            assert left == KEPT[: len(left)], where
            assert [one for one in KEPT if one < offset] == left[: sum(one < offset for one in KEPT)], where
            if is_done:
                assert log.log_end_offset == partition.log.log_end_offset == left[-1] + 1, where
    assert step > 4, "there was something to stop in"


@pytest.mark.parametrize("offset", [4, 13, 42, 45])
def test_a_log_cut_in_a_gap_opens_after_a_clean_stop(offset: int) -> None:
    world, partition = with_gaps(0)
    asyncio.run(cut_by_a_worker(world, partition, offset))
    assert partition.high_watermark == partition.log.log_end_offset
    world.close()
    world.open()
    log = world.hosted.get("t", 0).log
    assert log.offline is None, log.offline
    assert offsets(log) == [one for one in KEPT if one < offset]


def test_a_cut_to_records_that_were_deleted_leaves_an_empty_log() -> None:
    world, partition = with_gaps(0)
    partition.log.advance_log_start(41)
    asyncio.run(cut_by_a_worker(world, partition, 43))
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (41, 41)
    assert partition.high_watermark == 41
    world.disk.crash()
    world.open()
    log = world.hosted.get("t", 0).log
    assert (log.offline, log.log_start_offset, log.log_end_offset) == (None, 41, 41)


async def test_a_cut_lowers_the_cleaned_offset_on_disk_before_it_begins() -> None:
    world = HostedWorld({"t": TOPIC})
    partition = world.hosted.get("t", 0)
    for offset in range(COUNT):
        world.append(partition, b"k%d" % offset)
    await world.hosted.housekeeping.checkpoint()
    partition.log.cleaned_offset = 30
    await world.hosted.housekeeping.persist_offsets()
    await world.hosted.lower_recovery_point(partition, 12)
    world.disk.kill()  # before the cut
    world.open()
    log = world.hosted.get("t", 0).log
    assert log.cleaned_offset == 12
    assert log.log_end_offset == COUNT


async def test_a_cleaned_offset_that_may_be_on_disk_is_lowered_after_a_failed_write() -> None:
    world = HostedWorld({"t": TOPIC})
    partition = world.hosted.get("t", 0)
    for offset in range(COUNT):
        world.append(partition, b"k%d" % offset)
    await world.hosted.housekeeping.checkpoint()
    partition.log.cleaned_offset = 12
    await world.hosted.housekeeping.persist_offsets()
    partition.log.cleaned_offset = 30
    world.disk.fail_sync = lambda path: path == "/data" and _says_30(world)
    with pytest.raises(StorageError, match="cleaner-offset-checkpoint"):
        await world.hosted.housekeeping.persist_offsets()
    world.disk.fail_sync = None
    await world.hosted.lower_recovery_point(partition, 12)
    assert not _says_30(world), "12 is what was written before the 30 that nobody knew of"


def _says_30(world: HostedWorld) -> bool:
    return b" 30" in world.disk.peek("/data/cleaner-offset-checkpoint", 0, 100)


# -- repair: what is cut is kept --------------------------------------------------------------------------------------


def on_disk(world: HostedWorld) -> set[int]:
    """Every offset that lies in some finished directory, the partition's or one that was set aside."""
    found: set[int] = set()
    for name in world.disk.list_directory("/data"):
        path = f"/data/{name}"
        if name.startswith("t-0") and not name.endswith(".tmp") and world.disk.is_directory(path):
            for file in world.disk.list_directory(path):
                if file.endswith(".log"):
                    data = world.disk.peek(f"{path}/{file}", 0, 1 << 20)
                    found |= {header.base_offset for _, header in iterate_headers(data, file)}
    return found


async def mend(world: HostedWorld, partition: Partition, offset: int) -> None:
    await world.hosted.set_aside.keep_tail(partition, offset)
    await cut(world, partition, offset)


@pytest.mark.parametrize("offset", [12, 0])
def test_what_repair_cuts_is_kept_wherever_the_machine_stops(offset: int) -> None:
    step, is_done = 0, False
    while not is_done:
        step += 1
        for seed in range(MIXTURES):
            world, partition = compacted(seed)
            world.disk.crash_after = world.disk.changes + step
            try:
                asyncio.run(mend(world, partition, offset))
                is_done = True
            except SimCrash:
                pass
            world.disk.crash_after = None
            world.disk.crash()
            assert on_disk(world) >= set(range(COUNT)), f"step {step}, seed {seed}"
            world.open()
            assert on_disk(world) >= set(range(COUNT)), f"step {step}, seed {seed}"
            log = world.hosted.get("t", 0).log
            assert log.offline is None, f"step {step}, seed {seed}: {log.offline}"
            assert offsets(log) == list(range(log.log_start_offset, log.log_end_offset)), f"step {step}, seed {seed}"
            if is_done:
                assert world.hosted.set_aside.holds(world.hosted.get("t", 0)), "also after a restart"
    assert step > 20, "there was something to stop in"


async def begin_over(world: HostedWorld, partition: Partition) -> None:
    await world.hosted.set_aside.move(partition)
    await world.hosted.lower_recovery_point(partition, 0)
    begun = world.hosted.start_over(partition)
    begun.run()
    partition.end_cut(begun)


def test_a_log_that_cannot_be_opened_is_kept_wherever_the_machine_stops() -> None:
    step, is_done = 0, False
    while not is_done:
        step += 1
        for seed in range(MIXTURES):
            world, partition = compacted(seed)
            world.disk.kill()
            path = partition.log.segments[-1].path
            world.disk.flip_bit(path, 8)  # the length of its first batch
            world.open()
            partition = world.hosted.get("t", 0)
            assert partition.log.offline is not None
            follow_nobody(partition)
            sizes = sum(world.disk.stable_size(path) for path in logs_on(world))
            world.disk.crash_after = world.disk.changes + step
            try:
                asyncio.run(begin_over(world, partition))
                is_done = True
            except SimCrash:
                pass
            world.disk.crash_after = None
            world.disk.crash()
            world.open()
            assert sum(len(world.disk.peek(path, 0, 1 << 20)) for path in logs_on(world)) == sizes, f"{step}, {seed}"
            log = world.hosted.get("t", 0).log
            assert log.offline is not None or log.log_end_offset == 0, f"step {step}, seed {seed}"
    assert step > 5, "there was something to stop in"


def logs_on(world: HostedWorld) -> list[str]:
    return [
        f"/data/{name}/{file}"
        for name in world.disk.list_directory("/data")
        if name.startswith("t-0")
        for file in world.disk.list_directory(f"/data/{name}")
        if file.endswith(".log")
    ]
