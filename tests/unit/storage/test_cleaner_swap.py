"""Which part of a log is cleaned when, and new segments taking the place of old ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.model.errors import LogOffline, StorageError
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch, decode_uncompressed
from penstock.sim.machine.disk import SimDisk
from penstock.storage.cleaner.plan import RewrittenSegment
from penstock.storage.cleaner.rewrite import clean
from penstock.storage.cleaner.survey import make_plan, survey
from penstock.storage.cleaner.swap import Swap, settle_swaps
from penstock.storage.gaps import GAPS
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

DIRECTORY = "/data/accounts-0"
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(compact=True, delete=False, index_interval_bytes=50)


def new_log(disk: SimDisk, config: LogConfig = CONFIG) -> Log:
    return Log.open(disk, DIRECTORY, config, now_ms=NOW_MS)


def reopened(disk: SimDisk, config: LogConfig = CONFIG, *, recovery_point: int, cleaned_offset: int = 0) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        config,
        LastRun(recovery_point=recovery_point, cleaned_offset=cleaned_offset),
        now_ms=NOW_MS,
    )


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(Random(1))
    disk.make_directory(DIRECTORY)
    disk.sync_directory("")
    disk.sync_directory("/data")
    return disk


def append(log: Log, *keys: bytes, timestamp: int = NOW_MS, value: bytes | None = b"v") -> None:
    data = build_batch([Record(key, value, (), timestamp) for key in keys])
    log.append(read_header(data), data, 0, NOW_MS)


def filled(disk: SimDisk, segments: int = 4, config: LogConfig = CONFIG) -> Log:
    """Segments of two batches, (a, b) and (a, n), the last one active."""
    log = new_log(disk, config)
    for number in range(segments):
        append(log, b"a", b"b")
        append(log, b"a", b"%d" % number)
        if number + 1 < segments:
            log.roll(NOW_MS)
    flush_blocking(disk, log)
    log.persisted_recovery_point = log.stable_offset
    return log


def rewritten(disk: SimDisk, log: Log, *, end_offset: int | None = None) -> tuple[Swap, RewrittenSegment]:
    found = survey(log, log.log_end_offset if end_offset is None else end_offset, NOW_MS)
    outcome = next(clean(disk, make_plan(log, found, NOW_MS, 1000)))
    assert isinstance(outcome, RewrittenSegment)
    return Swap(disk, DIRECTORY, outcome.bases, outcome.size), outcome


def offsets(log: Log) -> list[int]:
    result, offset = [], log.log_start_offset
    while (piece := log.reader.read(offset, 1)) is not None:
        result += [record.offset for record in decode_uncompressed(piece.read())]
        offset = piece.next_offset
    return result


# -- what is due ---------------------------------------------------------------------------------------------


def test_the_active_segment_and_what_is_not_stable_are_not_cleaned(disk: SimDisk) -> None:
    log = filled(disk)
    found = survey(log, log.log_end_offset, NOW_MS)
    assert (found.first_dirty_offset, found.end_offset, found.clean_bytes) == (0, 12, 0)
    assert found.dirty_ratio == 1
    assert survey(log, 9, NOW_MS).end_offset == 8, "whole segments below the last stable offset"
    log.stable_offset = 4
    assert survey(log, log.log_end_offset, NOW_MS).end_offset == 4


def test_the_ratio_is_that_of_bytes(disk: SimDisk) -> None:
    log = filled(disk, segments=5)
    log.cleaned_offset = 12
    found = survey(log, log.log_end_offset, NOW_MS)
    assert (found.first_dirty_offset, found.end_offset) == (12, 16)
    assert found.dirty_ratio == pytest.approx(0.25)
    assert found.is_due(0.24)
    assert not found.is_due(0.25)
    log.cleaned_offset = 16
    found = survey(log, log.log_end_offset, NOW_MS)
    assert found.dirty_bytes == 0
    assert not found.is_due(0.0)


def test_a_checkpoint_outside_the_log_counts_from_its_start(disk: SimDisk) -> None:
    log = filled(disk)
    log.cleaned_offset = 1000
    assert survey(log, log.log_end_offset, NOW_MS).first_dirty_offset == 0
    log.cleaned_offset = 2
    log.advance_log_start(5)
    assert survey(log, log.log_end_offset, NOW_MS).first_dirty_offset == 5


def test_young_segments_wait_for_min_compaction_lag(disk: SimDisk) -> None:
    log = new_log(disk, replace(CONFIG, min_compaction_lag_ms=1000))
    append(log, b"a", timestamp=NOW_MS - 2000)
    log.roll(NOW_MS)
    append(log, b"a", timestamp=NOW_MS - 500)
    log.roll(NOW_MS)
    append(log, b"a", timestamp=NOW_MS - 2000)
    log.roll(NOW_MS)
    flush_blocking(disk, log)
    assert survey(log, log.log_end_offset, NOW_MS).end_offset == 1
    assert survey(log, log.log_end_offset, NOW_MS + 1000).end_offset == 3


def test_old_segments_are_due_by_max_compaction_lag(disk: SimDisk) -> None:
    log = filled(disk, config=replace(CONFIG, max_compaction_lag_ms=1000))
    log.cleaned_offset = 8
    assert not survey(log, log.log_end_offset, NOW_MS + 1000).is_overdue
    found = survey(log, log.log_end_offset, NOW_MS + 1001)
    assert found.is_overdue
    assert found.is_due(1.0)
    log.cleaned_offset = 12
    assert not survey(log, log.log_end_offset, NOW_MS + 10_000).is_due(1.0), "nothing to clean"


# -- taking their place --------------------------------------------------------------------------------------


def test_a_reader_in_flight_keeps_its_bytes_and_the_next_offset_is_found(disk: SimDisk) -> None:
    log = filled(disk)
    piece = log.reader.read(0, 1 << 20)
    assert piece is not None
    before = piece.read()
    swap, outcome = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    assert log.end_swap(swap, outcome)
    log.remove_deleted()
    assert piece.read() == before
    assert offsets(log) == [3, 7, 9, 10, 11, 12, 13, 14, 15]
    assert log.segment_bases == [0, 12]
    for offset, found in ((0, 2), (4, 6), (8, 8), (9, 8), (12, 12)):
        following = log.reader.read(offset, 1)
        assert following is not None
        assert read_header(following.read()).base_offset == found
    assert log.log_start_offset == 0, "compaction does not move the start of the log"
    names = [f"{0:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]
    assert disk.list_directory(DIRECTORY) == [*names, f"{12:020d}.log", GAPS]


def test_a_swap_is_refused_when_the_log_has_changed(disk: SimDisk) -> None:
    log = filled(disk)
    generation = log.generation
    swap, _ = rewritten(disk, log)
    log.advance_log_start(5)
    assert not log.begin_swap(swap, generation), "a segment is gone"
    swap, _ = rewritten(disk, log)
    log.truncate_to(14)
    assert not log.begin_swap(swap, generation)
    assert log.begin_swap(swap, log.generation)
    assert not log.begin_swap(swap, log.generation), "one at a time"


@pytest.mark.parametrize("change", ["truncate_to", "truncate_fully_and_start_at", "advance_log_start"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_whoever_drops_segments_cancels_a_swap_for_good(disk: SimDisk, change: str, is_committed: bool) -> None:
    log = filled(disk)
    swap, outcome = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    if is_committed:
        swap.commit()
    getattr(log, change)(6)
    swap.commit()
    assert not log.end_swap(swap, outcome)
    append(log, b"new")
    end, there = log.log_end_offset, offsets(log)
    flush_blocking(disk, log)
    disk.crash()
    log = reopened(disk, recovery_point=6)
    assert log.log_end_offset == end
    assert offsets(log)[-1] == there[-1] == end - 1


def test_a_commit_that_fails_leaves_the_log_as_it_was(disk: SimDisk) -> None:
    log = filled(disk)
    swap, _ = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    disk.open(f"{DIRECTORY}/{0:020d}.log.cleaned").truncate(5)
    with pytest.raises(StorageError, match="has 5 bytes"):
        swap.commit()
    log.abandon_swap(swap)
    assert offsets(log) == list(range(16))
    assert not [name for name in disk.list_directory(DIRECTORY) if name.endswith((".cleaned", ".swap"))]
    swap, outcome = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    assert log.end_swap(swap, outcome)


def test_renames_that_fail_take_the_log_offline_and_a_restart_completes_them(disk: SimDisk) -> None:
    log = filled(disk)
    swap, outcome = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    disk.remove(f"{DIRECTORY}/{0:020d}.timeindex.swap")
    with pytest.raises(LogOffline):
        log.end_swap(swap, outcome)
    assert log.offline is not None
    disk.kill()
    log = reopened(disk, recovery_point=16)
    assert offsets(log) == [3, 7, 9, 10, 11, 12, 13, 14, 15]


def test_old_segments_that_outlived_the_swap_are_dropped(disk: SimDisk) -> None:
    log = filled(disk)
    second = disk.open(f"{DIRECTORY}/{4:020d}.log").read(0, 10_000)
    swap, outcome = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    assert log.end_swap(swap, outcome)
    disk.open(f"{DIRECTORY}/{4:020d}.log", create=True).write(0, [second])
    disk.kill()
    log = reopened(disk, recovery_point=16)
    assert log.segment_bases == [0, 12]
    assert any("compacted into" in message for message in log.recovery.messages)
    assert offsets(log) == [3, 7, 9, 10, 11, 12, 13, 14, 15]


def test_an_old_segment_of_which_nothing_was_kept_is_dropped_too(disk: SimDisk) -> None:
    log = new_log(disk, replace(CONFIG, segment_bytes=180))
    for _ in range(3):
        append(log, b"a")
        append(log, b"b")
        log.roll(NOW_MS)
    flush_blocking(disk, log)
    second = disk.open(f"{DIRECTORY}/{2:020d}.log").read(0, 10_000)
    swap, outcome = rewritten(disk, log)
    assert outcome.bases == (0,)
    log.config = replace(CONFIG, segment_bytes=300)
    swap, outcome = rewritten(disk, log)
    assert outcome.bases == (0, 2)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    assert log.end_swap(swap, outcome)
    disk.open(f"{DIRECTORY}/{2:020d}.log", create=True).write(0, [second])
    disk.kill()
    log = reopened(disk, recovery_point=6)
    assert log.segment_bases == [0, 4, 6]
    assert offsets(log) == [4, 5]


def test_an_unfinished_commit_is_undone(disk: SimDisk) -> None:
    log = filled(disk)
    rewritten(disk, log)
    path = f"{DIRECTORY}/{0:020d}"
    disk.rename(f"{path}.index.cleaned", f"{path}.index.swap")
    assert settle_swaps(disk, DIRECTORY, disk.list_directory(DIRECTORY)) == []
    assert offsets(log) == list(range(16))
    disk.kill()
    assert offsets(reopened(disk, recovery_point=16)) == list(range(16))


def test_without_its_recovery_point_a_compacted_log_is_still_whole(disk: SimDisk) -> None:
    log = filled(disk)
    swap, outcome = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    assert log.end_swap(swap, outcome)
    log.close(clean=True)
    log = reopened(disk, recovery_point=0, cleaned_offset=12)
    assert offsets(log) == [3, 7, 9, 10, 11, 12, 13, 14, 15]


def test_a_topic_that_is_no_longer_compacted_can_be_read(disk: SimDisk) -> None:
    log = filled(disk)
    swap, outcome = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    assert log.end_swap(swap, outcome)
    log.cleaned_offset = 12
    log.config = LogConfig()
    assert offsets(log) == [3, 7, 9, 10, 11, 12, 13, 14, 15]
    log.close(clean=True)
    log = reopened(disk, LogConfig(), recovery_point=16, cleaned_offset=12)
    assert log.log_start_offset == 0
    piece = log.reader.read(0, 1 << 20)
    assert piece is not None
    assert log.reader.verify_slice(piece).size == piece.size
    assert offsets(log) == [3, 7, 9, 10, 11, 12, 13, 14, 15]


def test_retention_works_on_compacted_segments(disk: SimDisk) -> None:
    log = filled(disk, config=replace(CONFIG, delete=True, retention_ms=1000))
    swap, outcome = rewritten(disk, log)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    assert log.end_swap(swap, outcome)
    assert log.apply_retention(NOW_MS + 500, 16) == []
    assert log.apply_retention(NOW_MS + 1001, 12) == [0]
    assert log.log_start_offset == 12


# -- lookups in workers ----------------------------------------------------------------------------------------


def test_a_lookup_that_runs_while_segments_are_swapped_leads_nobody_past_records(disk: SimDisk) -> None:
    """Its segment is gone by then: it finds the next one, and a reader that follows it would miss records."""
    log = filled(disk, config=replace(CONFIG, index_interval_bytes=4096))
    swap, outcome = rewritten(disk, log, end_offset=4)
    assert log.begin_swap(swap, log.generation)
    swap.commit()
    assert not any(len(segment.index) for segment in log.segments)  # known by now: nobody has to open the files
    early, late = log.reader.lookup(3, 1000), log.reader.lookup(3, 1000)
    early.run()
    assert log.end_swap(swap, outcome)
    late.run()
    assert late.places[0][1].base_offset == 4
    for lookup in (early, late):
        assert log.reader.is_stale(lookup)
        assert not log.reader.end_lookup(lookup)
    piece = log.reader.read(3, 1)
    assert piece is not None
    assert 3 in [record.offset for record in decode_uncompressed(piece.read())]
    again = log.reader.lookup(3, 1000)
    again.run()
    assert log.reader.end_lookup(again)
