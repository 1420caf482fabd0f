"""Lookups: bounded in memory on the loop, by blocking reads in a worker, and taken over only if the log is the same."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from penstock.model.errors import CorruptBatch, NotCached
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.machine.disk import SimDisk, SimFile
from penstock.storage.cleaner.survey import survey
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.segments.segment import Segment
from penstock.storage.segments.slices import LogSlice

DIRECTORY = "/data/events-0"
CONFIG = LogConfig(compact=True, segment_bytes=200_000, index_interval_bytes=1024)
STEP = 3  # every third offset is left


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(0))


def open_log(disk: SimDisk, *, clean: bool = False, recovery_point: int = 0, cleaned_offset: int = 0) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        CONFIG,
        LastRun(recovery_point=recovery_point, was_clean=clean, cleaned_offset=cleaned_offset),
        now_ms=0,
    )


def followed(disk: SimDisk) -> Log:
    """A copy of a compacted log: batches of one record at every third offset, one sealed segment and one more."""
    log = open_log(disk)
    offset = 0
    while len(log.segments) < 2:
        data = build_batch([Record(b"k", b"v" * 60, (), 1000 + offset)], base_offset=offset, leader_epoch=1)
        log.append_replicated(data, 0, 1)
        offset += STEP
    return log


def reopened(disk: SimDisk) -> Log:
    """Nothing in it was written or checked by this process."""
    log = followed(disk)
    log.close(clean=True)
    return open_log(disk, clean=True, recovery_point=log.log_end_offset, cleaned_offset=log.log_end_offset)


def in_the_gap(log: Log) -> int:
    return log.segments[1].base_offset // STEP * STEP - 30 * STEP + 1


def same(piece: LogSlice | None, other: LogSlice | None) -> bool:
    assert piece is not None
    assert other is not None
    return (piece.position, piece.size, piece.next_offset) == (other.position, other.size, other.next_offset)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of segments: (position, size)."""
    seen: list[tuple[int, int]] = []
    read = SimFile.read

    def noting(file: SimFile, position: int, size: int) -> bytes:
        if file.path.endswith(".log"):
            seen.append((position, size))
        return read(file, position, size)

    monkeypatch.setattr(SimFile, "read", noting)
    return seen


def test_an_offset_that_compaction_removed_costs_a_short_walk(
    disk: SimDisk, reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = followed(disk)
    offset = in_the_gap(log)
    monkeypatch.setattr(Segment, "check_checksums", None)  # not even looked for
    reads.clear()
    piece = log.reader.read(offset, 1, may_wait=False)
    assert piece is not None
    assert same(piece, log.reader.read(offset + STEP - 1, 1))
    assert sum(size for _, size in reads) < 20_000
    assert min(position for position, _ in reads) > piece.position - 2 * CONFIG.index_interval_bytes


def test_one_removed_from_the_end_of_a_segment_is_not_searched_from_its_start(
    disk: SimDisk, reads: list[tuple[int, int]]
) -> None:
    sealed = followed(disk).segments[0]
    reads.clear()
    assert sealed.find(10**6, may_wait=False) is None
    assert min(position for position, _ in reads) > sealed.size - 2 * CONFIG.index_interval_bytes


def test_batches_nobody_has_checked_are_looked_at_in_a_worker(disk: SimDisk) -> None:
    log = reopened(disk)
    offset = in_the_gap(log)
    with pytest.raises(NotCached):
        log.reader.read(offset, 500, may_wait=False)
    lookup = log.reader.lookup(offset, 500)
    found = lookup.run()
    log.reader.end_lookup(lookup)
    assert same(log.reader.read(offset, 500, may_wait=False), found)


def test_a_length_that_lies_is_not_taken_for_a_gap(disk: SimDisk) -> None:
    log = followed(disk)
    size = log.segments[0].size // len(list(log.segments[0].walk(0, log.segments[0].size)))
    log.close(clean=True)
    log = open_log(disk, clean=True, recovery_point=log.log_end_offset, cleaned_offset=log.log_end_offset)
    segment = log.segments[0]
    position, header = next(
        (at, header) for at, header in segment.walk(0, segment.size) if header.base_offset > in_the_gap(log)
    )
    length = header.batch_length.to_bytes(4, "big")
    twice = (header.batch_length + size).to_bytes(4, "big")
    for number, (right, wrong) in enumerate(zip(length, twice, strict=True)):
        for bit in range(8):
            if (right ^ wrong) >> bit & 1:
                disk.flip_bit(segment.path, position + 8 + number, bit)
    skipped = header.base_offset + STEP
    with pytest.raises(NotCached):
        log.reader.read(skipped, 1, may_wait=False)
    with pytest.raises(CorruptBatch):
        log.reader.lookup(skipped, 1).run()


def test_what_is_not_in_memory_is_not_waited_for(disk: SimDisk) -> None:
    log = followed(disk)
    disk.is_cold = True
    for offset in (0, STEP * 20, log.log_end_offset - 1):
        with pytest.raises(NotCached):
            log.reader.read(offset, 500, may_wait=False)
        with pytest.raises(NotCached):
            log.reader.position_of(offset, may_wait=False)
        with pytest.raises(NotCached):
            log.reader.timestamp_at(offset)
        lookup = log.reader.lookup(offset, 500)
        found = lookup.run()
        disk.is_cold = False  # it is now: a worker has read it
        log.reader.end_lookup(lookup)
        assert same(log.reader.read(offset, 500, may_wait=False), found)
        disk.is_cold = True


@pytest.mark.parametrize("damage", ["zeros", "short"])
def test_a_damaged_index_is_made_anew_in_a_worker(disk: SimDisk, damage: str, reads: list[tuple[int, int]]) -> None:
    log = followed(disk)
    offset = in_the_gap(log) - 1
    before = log.segments[0].index.entries()
    path = log.segments[0].index.path
    file = disk.open(path)
    if damage == "zeros":
        file.write(8, (bytes(8 * (len(before) - 2)) + b"\0\0\xff\xff\0\0\0\x4d",))
    else:
        file.truncate(8)
    file.close()
    with pytest.raises(NotCached):
        log.reader.read(offset, 500, may_wait=False)
    lookup = log.reader.lookup(offset, 500)
    found = lookup.run()
    log.reader.end_lookup(lookup)
    assert log.segments[0].index.entries() == before
    log.reader._hints.clear()
    reads.clear()
    assert same(log.reader.read(offset, 500, may_wait=False), found)
    assert sum(size for _, size in reads) < 20_000
    assert not [name for name in disk.list_directory(DIRECTORY) if name.endswith(".tmp")]


def leftovers(disk: SimDisk) -> list[str]:
    return [name for name in disk.list_directory(DIRECTORY) if name.endswith(".tmp")]


def test_two_lookups_may_find_the_same_damaged_index(disk: SimDisk) -> None:
    log = followed(disk)
    offset = in_the_gap(log) - 1
    before = log.segments[0].index.entries()
    disk.open(log.segments[0].index.path).truncate(8)
    one, other = log.reader.lookup(offset, 500), log.reader.lookup(offset - STEP, 500)
    found = one.run(), other.run()
    assert one.rebuilt
    assert other.rebuilt
    assert log.reader.end_lookup(one)
    assert log.reader.end_lookup(other)
    assert same(log.reader.read(offset, 500), found[0])
    assert same(log.reader.read(offset - STEP, 500), found[1])
    assert log.segments[0].index.entries() == before
    assert leftovers(disk) == []


def test_an_index_that_cannot_be_replaced_fails_no_lookup(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = followed(disk)
    offset = in_the_gap(log) - 1
    disk.open(log.segments[0].index.path).truncate(8)
    lookup = log.reader.lookup(offset, 500)
    found = lookup.run()

    def fail(old: str, new: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(disk, "rename", fail)
        assert log.reader.end_lookup(lookup)
    assert same(log.reader.read(offset, 500), found)
    assert leftovers(disk) == []


def test_a_survey_leaves_no_index_behind(disk: SimDisk) -> None:
    closed = followed(disk)
    closed.close(clean=True)
    log = open_log(disk, clean=True, recovery_point=closed.log_end_offset)
    log.config = replace(CONFIG, min_compaction_lag_ms=10)
    disk.open(log.segments[0].time_index.path).truncate(5)
    learned: list[Segment] = []
    rebuild = Segment.rebuild_indexes

    def note(segment: Segment, interval_bytes: int) -> None:
        learned.append(segment)
        rebuild(segment, interval_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "rebuild_indexes", note)
        survey(log, log.log_end_offset, 10**15)
    assert learned
    assert leftovers(disk) == []


def test_what_was_looked_up_before_a_cut_counts_for_nothing(disk: SimDisk) -> None:
    log = followed(disk)
    offset = in_the_gap(log) - 1
    disk.open(log.segments[0].index.path).truncate(8)
    lookup = log.reader.lookup(offset, 500)
    lookup.run()
    log.truncate_to(offset - STEP * 10)
    entries = log.segments[0].index.entries()
    log.reader.end_lookup(lookup)
    assert log.reader._hints == {}
    assert log.segments[0].index.entries() == entries
    assert leftovers(disk) == []


def test_a_long_walk_is_left_to_a_worker(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where everything is in memory: an index that is far apart, say."""
    log = followed(disk)
    monkeypatch.setattr("penstock.storage.segments.segment._MOST_HEADERS", 4)
    offset = STEP * 7
    with pytest.raises(NotCached):
        log.reader.read(offset, 1, may_wait=False)
    lookup = log.reader.lookup(offset, 10_000)
    lookup.run()
    log.reader.end_lookup(lookup)
    piece = log.reader.read(offset, 10_000, may_wait=False)
    assert piece is not None
    assert piece.size >= 4 * 100
    assert log.reader.verify_slice(piece) is piece


def test_a_cut_begins_without_a_read_and_its_producers_are_replayed_by_the_worker(
    disk: SimDisk, reads: list[tuple[int, int]]
) -> None:
    log = open_log(disk)
    for sequence in range(1000):
        data = build_batch([Record(b"k", b"v" * 60, (), 1)], producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.append(read_header(data), data, 1, 0)
    end = log.log_end_offset
    lookup = log.reader.lookup(end // 2, 0)
    lookup.run()
    log.reader.end_lookup(lookup)
    reads.clear()
    cut = log.begin_cut(end // 2, may_wait=False)
    assert cut is not None
    assert sum(size for _, size in reads) <= 4096, "one header, which is in memory"
    reads.clear()
    cut.run()
    assert sum(size for _, size in reads) > end // 2 * 100
    reads.clear()
    log.end_cut(cut)
    assert not reads
    assert log.producers.check(read_header(data)._replace(base_sequence=end // 2)) is None
