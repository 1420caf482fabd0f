"""A checkpoint that fails half way: what it did not make stable is due at the next one."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from penstock.model.errors import LogOffline, StorageError
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.machine.disk import SimCrash, SimDisk
from penstock.storage import checkpoint_builder
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.producers import snapshots

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
        LastRun(recovery_point=recovery_point),
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
    "write leader-epoch-checkpoint",
    "sync .snapshot",
    "sync leader-epoch-checkpoint",
    "sync events-0",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_checkpoint_has_everything_that_a_failed_one_had(fault: str) -> None:
    kind, ending = fault.split()
    for seed in range(8):
        disk, log = written_by_two_leaders(seed)
        hits: list[str] = []

        def fails(path: str, ending: str = ending, hits: list[str] = hits) -> bool:
            is_hit = path.endswith(ending) or f"{ending}." in path  # or its temporary file
            hits.extend([path] * is_hit)
            return is_hit

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


@pytest.mark.parametrize("most_waiting", [0, 4])
def test_a_snapshot_whose_sync_failed_is_written_once_more(most_waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the failed sync the kernel takes its pages for clean: a mere repetition would make nothing stable."""
    monkeypatch.setattr(snapshots, "_MAX_WAITING", most_waiting)
    for seed in range(20):
        disk, log = written_by_two_leaders(seed)
        log.roll(NOW_MS)
        append(log, 2, sequence=20)
        flush_blocking(disk, log)
        disk.fail_sync = lambda path: ".snapshot" in path
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
    disk.fail_write = lambda path: path.endswith(".timeindex")
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


def loud(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened, made or renamed from now on."""
    touched: list[str] = []
    for name in ("open", "rename", "remove"):
        original = getattr(disk, name)

        def touch(path: str, *rest: object, original: object = original, **options: object) -> object:
            touched.append(path)
            return original(path, *rest, **options)  # type: ignore[operator]

        monkeypatch.setattr(disk, name, touch)
    return touched


def test_epochs_and_snapshots_are_written_by_whoever_makes_the_checkpoint_stable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, log = written_by_two_leaders()
    log.roll(NOW_MS)
    append(log, 3, sequence=20)
    touched = loud(disk, monkeypatch)
    checkpoint = log.prepare_checkpoint()
    assert not [path for path in touched if "snapshot" in path or "epoch" in path]
    checkpoint.make_stable()
    assert [path for path in touched if "snapshot" in path]
    assert [path for path in touched if "epoch" in path]


def test_a_snapshot_holds_the_moment_at_which_it_was_due() -> None:
    """Batches that come while a worker writes it are not in it, and the state counts as changed."""
    _, log = written_by_two_leaders()
    checkpoint = log.prepare_checkpoint()
    append(log, 2, sequence=20)
    append(log, 2, producer_id=8)
    checkpoint.make_stable()
    log.end_checkpoint(checkpoint)
    assert log.producers.is_dirty
    newest = log.snapshots.load_newest(20)
    assert newest is not None
    offset, states = newest
    assert offset == 20
    assert states.get(8) is None
    producer = states.get(7)
    assert producer is not None
    assert producer.last_sequence == 19
    now = log.producers.get(7)
    assert now is not None
    assert now.last_sequence == 20


def test_producers_are_dirty_until_their_snapshot_is_stable() -> None:
    disk, log = written_by_two_leaders()
    checkpoint = log.prepare_checkpoint()
    assert log.producers.is_dirty
    disk.fail_sync = lambda path: ".snapshot" in path
    with pytest.raises(OSError, match="snapshot"):
        checkpoint.make_stable()
    log.put_back(checkpoint)
    assert log.producers.is_dirty
    disk.fail_sync = None
    log.checkpoint()
    assert not log.producers.is_dirty


def test_a_checkpoint_of_a_deleted_log_leaves_the_next_one_of_its_name_alone() -> None:
    disk, log = written_by_two_leaders()
    checkpoint = log.prepare_checkpoint()
    log.close(clean=False)
    disk.rename(DIRECTORY, f"{DIRECTORY}.deleted")
    fresh = open_log(disk)
    append(fresh, 9)
    before = disk.list_directory(DIRECTORY)
    with pytest.raises(FileNotFoundError):
        checkpoint.make_stable()
    assert disk.list_directory(DIRECTORY) == before


def test_a_cut_while_a_snapshot_waits_forgets_it() -> None:
    for seed in range(8):
        disk, log = written_by_two_leaders(seed)
        log.roll(NOW_MS)
        log.truncate_to(15)
        for number in range(15, 30):
            append(log, 3, producer_id=9, sequence=number - 15)
        flush_blocking(disk, log)
        recovery_point = log.checkpoint()
        disk.crash()
        log = open_log(disk, recovery_point)
        ends = {producer.producer_id: producer.last_sequence for producer in log.producers}
        assert ends == {7: 14, 9: 14}, f"seed {seed}"


def test_a_cut_while_a_checkpoint_is_written_leaves_no_snapshot_beyond_it() -> None:
    disk, log = written_by_two_leaders()
    checkpoint = log.prepare_checkpoint()
    log.truncate_to(15)
    with pytest.raises(FileNotFoundError):
        checkpoint.make_stable()
    log.put_back(checkpoint)
    assert f"{20:020d}.snapshot" not in disk.list_directory(DIRECTORY)


def test_no_more_than_a_few_snapshots_wait_in_memory() -> None:
    """Every segment has one at its base all the same, and each is of its moment."""
    _, log = written_by_two_leaders()
    for number in range(20, 30):
        log.roll(NOW_MS)
        append(log, 2, sequence=number)
        assert len(log.snapshots.waiting) <= 4
    log.checkpoint()
    assert not log.snapshots.waiting
    for base in log.segment_bases[1:]:
        newest = log.snapshots.load_newest(base)
        assert newest is not None
        assert newest[0] == base
        producer = newest[1].get(7)
        assert producer is not None
        assert producer.last_sequence == base - 1


def test_retention_makes_the_snapshot_that_waits_stable_before_it_deletes() -> None:
    for seed in range(8):
        disk, log = written_by_two_leaders(seed)
        log.roll(NOW_MS)
        append(log, 2, producer_id=8)
        flush_blocking(disk, log)
        log.advance_log_start(20)
        flush_blocking(disk, log)
        disk.crash()
        log = open_log(disk, 10)
        producer = log.producers.get(7)
        assert producer is not None, f"seed {seed}"
        assert producer.last_sequence == 19


@pytest.mark.parametrize("seed", range(8))
def test_what_a_failed_sync_left_in_memory_is_written_again_by_the_next_process(seed: int) -> None:
    """Also where flushing is left to the system: the next sync says that all is well, and recovery points go by it."""
    disk = SimDisk(Random(seed))
    disk.make_directory("/data")
    disk.sync_directory("")

    def opened(recovery_point: int) -> Log:
        return Log.open(
            disk,
            "/data/t-0",
            LogConfig(flush_messages=2**63 - 1),
            LastRun(recovery_point=recovery_point),
            now_ms=NOW_MS,
        )

    log = opened(0)
    for number in range(10):
        data = build_batch([Record(b"k", b"v%d" % number * 200, (), NOW_MS)])
        log.append(read_header(data), data, 0, NOW_MS)
    disk.fail_sync = lambda path: path.endswith(".log")
    with pytest.raises(LogOffline):
        flush_blocking(disk, log)
    disk.fail_sync = None
    disk.kill()
    log = opened(0)
    flush_blocking(disk, log)
    assert log.stable_offset == 10
    disk.crash()
    log = opened(10)
    piece = log.reader.read(0, 1 << 20)
    assert piece is not None
    assert log.reader.verify_slice(piece).next_offset == 10
