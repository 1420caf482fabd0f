"""Whether offsets are missing is remembered by the log itself, whatever the policy of its topic."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.model.errors import CorruptBatch, StorageError
from penstock.records.batch import iterate_headers
from penstock.records.builder import Record, build_batch
from penstock.sim.machine.disk import SimCrash, SimDisk
from penstock.storage.gaps import CONTIGUOUS, GAPS
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

DIRECTORY = "/data/events-0"
COMPACTED = LogConfig(compact=True, delete=False, flush_messages=1, index_interval_bytes=200)
DELETED = replace(COMPACTED, compact=False, delete=True)
KEPT = [0, 3, 7, 8, 15]
"""What a leader that has compacted still holds."""


def batch(offset: int) -> bytes:
    return build_batch([Record(b"k%d" % offset, b"v" * 50, (), 1000 + offset)], base_offset=offset, leader_epoch=1)


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk(Random(1))
    made.make_directory("/data")
    made.sync_directory("")
    return made


def open_log(disk: SimDisk, config: LogConfig, recovery_point: int = 0, *, clean: bool = False) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        config,
        LastRun(recovery_point=recovery_point, was_clean=clean),
        now_ms=0,
        topic_id=bytes(16),
    )


def fetch(log: Log, offsets: list[int]) -> None:
    for offset in offsets:
        log.append_replicated(batch(offset), 0, 1)


def served(log: Log, start: int = 0) -> list[int]:
    """As a cold reader gets them, each piece verified."""
    found: list[int] = []
    while (piece := log.reader.read(start, 10_000)) is not None:
        piece = log.reader.verify_slice(piece)
        found += [header.base_offset for _, header in iterate_headers(piece.read(), DIRECTORY)]
        start = piece.next_offset
    return found


def forget_marks(disk: SimDisk) -> None:
    """As a log of an earlier version is."""
    for name in (CONTIGUOUS, GAPS):
        if disk.exists(f"{DIRECTORY}/{name}"):
            disk.remove(f"{DIRECTORY}/{name}")


def test_a_log_that_was_fetched_with_gaps_is_whole_under_any_policy(disk: SimDisk) -> None:
    log = open_log(disk, COMPACTED)
    fetch(log, KEPT)
    log.config = DELETED
    for start in range(16):
        log.reader._hints.clear()
        assert served(log, start) == [offset for offset in KEPT if offset >= start]


@pytest.mark.parametrize("clean", [True, False])
def test_gaps_are_remembered_through_a_restart(disk: SimDisk, clean: bool) -> None:
    log = open_log(disk, COMPACTED)
    fetch(log, KEPT)
    flush_blocking(disk, log)
    recovery_point = log.checkpoint()
    if clean:
        log.close(clean=True)
    disk.crash()
    log = open_log(disk, DELETED, recovery_point, clean=clean)
    assert log.gaps.are_known
    assert served(log) == KEPT


def test_gaps_that_survive_a_crash_are_known_wherever_it_came(disk: SimDisk) -> None:
    """The batch and the name of the mark reach the disk in any order, until a flush covers both."""
    seen = 0
    for seed in range(60):
        disk = SimDisk(Random(seed))
        disk.make_directory("/data")
        disk.sync_directory("")
        log = open_log(disk, COMPACTED)
        fetch(log, [0, 1, 2])
        flush_blocking(disk, log)
        recovery_point = log.checkpoint()
        fetch(log, [5, 6, 9])
        disk.crash()
        log = open_log(disk, DELETED, recovery_point)
        offsets = served(log)
        assert offsets == [0, 1, 2, 5, 6, 9][: len(offsets)]
        if len(offsets) > 3:
            seen += 1
            assert log.gaps.are_known, f"seed {seed}"
    assert seen


def test_a_log_without_a_mark_is_not_called_damaged(disk: SimDisk) -> None:
    log = open_log(disk, COMPACTED)
    fetch(log, KEPT)
    flush_blocking(disk, log)
    recovery_point = log.checkpoint()
    log.close(clean=True)
    forget_marks(disk)
    for clean in (True, False):
        log = open_log(disk, DELETED, recovery_point, clean=clean)
        assert not log.gaps.is_contiguous
        assert served(log) == KEPT
        assert log.recovery.messages == []
        log.close(clean=True)


@pytest.mark.parametrize("offset", [2, 5])
def test_in_a_log_that_never_had_a_gap_one_is_damage(disk: SimDisk, offset: int) -> None:
    """Also where the topic is to be compacted: that has not happened yet."""
    log = open_log(disk, COMPACTED)
    fetch(log, list(range(6)))
    log.close(clean=True)
    disk.flip_bit(f"{DIRECTORY}/00000000000000000000.log", len(batch(0)) * offset + 7, 3)  # it is 8 more
    with pytest.raises(CorruptBatch):
        served(open_log(disk, COMPACTED, 6))


def test_a_log_begun_anew_has_no_gaps(disk: SimDisk) -> None:
    log = open_log(disk, COMPACTED)
    fetch(log, KEPT)
    flush_blocking(disk, log)
    log.truncate_fully_and_start_at(20)
    assert log.gaps.is_contiguous
    fetch(log, [20, 21])
    flush_blocking(disk, log)
    disk.crash()
    log = open_log(disk, COMPACTED, 20)
    assert log.gaps.is_contiguous
    assert served(log, 20) == [20, 21]


def test_a_gap_that_cannot_be_noted_is_not_appended(disk: SimDisk) -> None:
    log = open_log(disk, COMPACTED)
    fetch(log, [0])
    disk.rename = lambda old, new: (_ for _ in ()).throw(OSError(28, "no space left on device"))  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="cannot mark that offsets are missing"):
        fetch(log, [4])
    assert (log.log_end_offset, log.gaps.is_contiguous) == (1, True)
    del disk.rename  # type: ignore[method-assign]
    fetch(log, [4])
    assert served(log) == [0, 4]


def test_deleting_the_oldest_segments_leaves_none_of_them_behind_a_hole() -> None:
    """In a log with gaps a hole is not seen, and with an old segment a key would come back whose deletion is gone."""
    config = replace(COMPACTED, delete=True, segment_bytes=2 * len(batch(0)))
    kept = [0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17]
    step, is_done = 0, False
    while not is_done:
        step += 1
        for seed in range(10):
            disk = SimDisk(Random(seed))
            disk.make_directory("/data")
            disk.sync_directory("")
            log = open_log(disk, config)
            fetch(log, kept)
            flush_blocking(disk, log)
            recovery_point = log.persisted_recovery_point = log.checkpoint()
            bases = log.segment_bases
            disk.crash_after = disk.changes + step
            try:
                log.advance_log_start(bases[2])
                log.advance_log_start(bases[4])
                is_done = True
            except SimCrash:
                pass
            disk.crash_after = None
            disk.crash()
            left = open_log(disk, config, recovery_point).segment_bases
            assert left == bases[len(bases) - len(left) :], f"step {step}, seed {seed}"
