"""A checkpoint that fails half way: what it did not make stable is due at the next one."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from penstock.model.errors import StorageError
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.disk import SimCrash, SimDisk
from penstock.storage import checkpoint_builder
from penstock.storage.group_commit import flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

DIRECTORY = "/data/events-0"
CONFIG = LogConfig(flush_messages=1, index_interval_bytes=100)
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _snapshots_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_builder, "_SNAPSHOT_EVERY_BYTES", 100)


def open_log(disk: SimDisk, recovery_point: int = 0) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        CONFIG,
        recovery_point=recovery_point,
        log_start_offset=0,
        clean_shutdown=False,
        now_ms=NOW_MS,
        topic_id=bytes(16),
    )


def append(log: Log, epoch: int, producer_id: int = 7, sequence: int = 0) -> None:
    data = build_batch(
        [Record(b"key", b"v" * 50, (), NOW_MS + sequence)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    log.append(read_header(data), data, epoch, NOW_MS)


def written_by_two_leaders(seed: int = 0) -> tuple[SimDisk, Log]:
    """Epoch 1 is checkpointed, epoch 2 from offset 10 on is not."""
    disk = SimDisk(Random(seed))
    disk.make_directory("/data")
    disk.sync_directory("")
    log = open_log(disk)
    for number in range(10):
        append(log, 1, sequence=number)
    flush_blocking(disk, log)
    log.checkpoint()
    for number in range(10, 20):
        append(log, 2, sequence=number)
    flush_blocking(disk, log)
    return disk, log


FAULTS = [
    "write .snapshot",
    "write .index",
    "write .timeindex",
    "write .tmp",
    "sync .snapshot",
    "sync .tmp",
    "sync events-0",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_checkpoint_has_everything_that_a_failed_one_had(fault: str) -> None:
    kind, ending = fault.split()
    for seed in range(8):
        disk, log = written_by_two_leaders(seed)
        hits: list[str] = []

        def fails(path: str, ending: str = ending, hits: list[str] = hits) -> bool:
            hits.extend([path] * path.endswith(ending))
            return path.endswith(ending)

        setattr(disk, f"fail_{kind}", fails)
        with pytest.raises(StorageError, match="cannot write a checkpoint"):
            log.checkpoint()
        assert hits, "the fault was met"
        assert log.epochs.is_dirty
        setattr(disk, f"fail_{kind}", None)
        recovery_point = log.checkpoint()
        assert recovery_point == 20
        assert not log.epochs.is_dirty
        assert not [name for name in disk.list_directory(DIRECTORY) if name.endswith(".tmp")], "no litter"
        disk.crash()
        log = open_log(disk, recovery_point)
        assert log.epochs.entries() == [(1, 0), (2, 10)], f"seed {seed}"
        assert log.epochs.end_offset_for(1, 20) == (1, 10)
        producer = log.producers.get(7)
        assert producer is not None
        assert producer.last_sequence == 19
        assert log.recovery.rebuilt_indexes == 0, f"seed {seed}: {log.recovery.messages}"


def test_epochs_that_change_while_a_checkpoint_is_made_stable_stay_dirty() -> None:
    _, log = written_by_two_leaders()
    checkpoint = log.prepare_checkpoint()
    append(log, 3, sequence=20)
    checkpoint.make_stable()
    assert log.epochs.is_dirty
    log.checkpoint()
    assert not log.epochs.is_dirty


def test_a_snapshot_whose_sync_failed_is_written_once_more() -> None:
    """After the failed sync the kernel takes its pages for clean: a mere repetition would make nothing stable."""
    for seed in range(20):
        disk, log = written_by_two_leaders(seed)
        log.roll(NOW_MS)
        append(log, 2, sequence=20)
        flush_blocking(disk, log)
        disk.fail_sync = lambda path: path.endswith(".snapshot")
        with pytest.raises(StorageError):
            log.checkpoint()
        disk.fail_sync = None
        recovery_point = log.checkpoint()
        log.advance_log_start(20)  # nothing but the snapshot remembers the batches
        flush_blocking(disk, log)
        disk.crash()
        log = open_log(disk, recovery_point)
        producer = log.producers.get(7)
        assert producer is not None, f"seed {seed}"
        assert [batch.last_sequence for batch in producer.batches][-3:] == [18, 19, 20], f"seed {seed}"


def test_a_snapshot_is_replaced_whole_or_not_at_all() -> None:
    for step in range(1, 6):
        for seed in range(6):
            disk, log = written_by_two_leaders(seed)
            log.take_snapshot()
            log.checkpoint()
            disk.crash_after = disk.changes + step
            with suppress(SimCrash):
                log.take_snapshot()  # at the same offset
            disk.crash_after = None
            disk.crash()
            log = open_log(disk, 20)
            newest = log.snapshots.load_newest(20)
            assert newest is not None
            assert newest[0] == 20, f"step {step}, seed {seed}"


def test_an_append_after_a_roll_that_failed_is_served() -> None:
    disk, log = written_by_two_leaders()
    disk.fail_write = lambda path: path.endswith(".snapshot")
    with pytest.raises(StorageError, match="cannot roll"):
        log.roll(NOW_MS)
    disk.fail_write = None
    append(log, 2, sequence=20)
    assert log.log_end_offset == 21
    assert log.roll(NOW_MS)
    flush_blocking(disk, log)
    recovery_point = log.checkpoint()
    disk.crash()
    log = open_log(disk, recovery_point)
    assert log.log_end_offset == 21
    assert len(log.segment_bases) == 2
