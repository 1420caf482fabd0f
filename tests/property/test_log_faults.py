"""Faults that are not crashes: flipped bits, a failing sync, a full disk. Seeded, on the simulated disk."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from penstock.model.errors import ApiError, CorruptBatch, LogOffline, StorageError
from penstock.records.batch import iterate_headers, read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.machine.disk import SimDisk
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

EXAMPLES = int(os.environ.get("PENSTOCK_PROPERTY_EXAMPLES", "150"))
DIRECTORY = "/data/events-0"
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=300)


def open_log(disk: SimDisk, *, clean: bool = True, recovery_point: int = 0) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        CONFIG,
        LastRun(recovery_point=recovery_point, was_clean=clean),
        now_ms=NOW_MS,
    )


def append(log: Log, random: Random, *, size: int | None = None) -> None:
    records = [Record(None, random.randbytes(size or random.choice([5, 90, 400])), (), NOW_MS) for _ in range(2)]
    data = build_batch(records)
    log.append(read_header(data), data, 0, NOW_MS)


def filled(random: Random, batches: int = 40) -> tuple[SimDisk, Log]:
    disk = SimDisk(random)
    disk.make_directory("/data")
    disk.sync_directory("")
    log = open_log(disk, clean=False)
    for _ in range(batches):
        append(log, random)
    return disk, log


def everything(log: Log, max_bytes: int = 800) -> bytes:
    """The batches that fetch would serve from start to end; CorruptBatch where it would stop."""
    data, offset = b"", log.log_start_offset
    while (piece := log.reader.read(offset, max_bytes)) is not None:
        if not piece.is_trusted():
            piece = log.reader.verify_slice(piece)
            log.reader.mark_trusted(piece)
        data += piece.read()
        offset = piece.next_offset
    return data


def test_a_flipped_bit_in_a_sealed_segment_is_reported_and_never_served() -> None:
    for seed in range(EXAMPLES * 4):
        random = Random(seed)
        disk, log = filled(random)
        sound = everything(log)
        end = log.log_end_offset
        log.close(clean=True)
        base = random.choice(log.segment_bases[:-1])
        path = f"{DIRECTORY}/{base:020d}.log"
        file = disk.open(path)
        position = random.randrange(file.size())
        batches = [at for at, _ in iterate_headers(file.read(0, file.size()), path)]
        damaged = max(at for at in batches if at <= position)
        disk.flip_bit(path, position, random.randrange(8))
        if damaged + 12 <= position < damaged + 16:
            continue  # the leader epoch: in no checksum, and nothing else in the file tells it

        log = open_log(disk, clean=random.random() < 0.5, recovery_point=end)
        served, offset, report = b"", 0, None
        while offset < end:
            try:
                piece = log.reader.read(offset, random.choice([1, 800, 100_000]))
                assert piece is not None
                if not piece.is_trusted():
                    piece = log.reader.verify_slice(piece)
                    log.reader.mark_trusted(piece)
            except CorruptBatch as error:
                report = error
                break
            served += piece.read()
            offset = piece.next_offset
        assert served == sound[: len(served)], f"seed {seed}: damaged bytes served"
        assert report is not None, f"seed {seed}: bit {position} of {path} went unnoticed"
        assert report.path == path
        # A length that lies moves the place where it shows to the batch after.
        following = [at for at in batches if at > damaged][:1]
        assert report.position in (damaged, *following), f"seed {seed}"
        assert len(served) == sum(size_of(disk, b) for b in log.segment_bases if b < base) + damaged


def test_a_flipped_bit_is_not_served_to_a_reader_that_starts_anywhere() -> None:
    for seed in range(EXAMPLES * 4):
        random = Random(seed)
        disk, log = filled(random, batches=16)
        log.roll(NOW_MS)
        sound = everything(log)
        end = log.log_end_offset
        log.close(clean=True)
        base = random.choice(log.segment_bases[:-1])
        path = f"{DIRECTORY}/{base:020d}.log"
        file = disk.open(path)
        batches = [at for at, _ in iterate_headers(file.read(0, file.size()), path)]
        at = random.choice(batches) + random.choice([*range(12), *range(16, 61)])
        disk.flip_bit(path, at, random.randrange(8))
        reported = set()
        try:
            log = open_log(disk, clean=random.random() < 0.5, recovery_point=end)
        except CorruptBatch as error:  # the headers that tell of producers are needed to open
            assert error.path == path, f"seed {seed}"  # noqa: PT017
            continue
        for offset in range(end):
            try:
                piece = log.reader.read(offset, random.choice([1, 800]))
                assert piece is not None
                data = log.reader.verify_slice(piece).read()
            except CorruptBatch as error:
                reported.add(error.path)
            else:
                assert data in sound, f"seed {seed}: damaged bytes served"
        assert reported == {path}, f"seed {seed}"


def size_of(disk: SimDisk, base: int) -> int:
    return disk.open(f"{DIRECTORY}/{base:020d}.log").size()


def test_a_flipped_bit_in_an_index_costs_a_rebuild_and_nothing_else() -> None:
    for seed in range(EXAMPLES * 2):
        random = Random(seed)
        disk, log = filled(random)
        sound = everything(log)
        end, bases = log.log_end_offset, log.segment_bases
        log.close(clean=True)
        suffix = random.choice(["index", "timeindex"])
        paths = [path for base in bases if disk.exists(path := f"{DIRECTORY}/{base:020d}.{suffix}")]
        path = random.choice(paths)
        size = disk.open(path).size()
        if not size:
            continue
        disk.flip_bit(path, random.randrange(size), random.randrange(8))
        log = open_log(disk, clean=random.random() < 0.5, recovery_point=end)
        assert log.log_end_offset == end
        for _ in range(20):
            offset = random.randrange(end)
            piece = log.reader.read(offset, random.choice([1, 2000]))
            assert piece is not None
            data = log.reader.verify_slice(piece).read()
            assert data in sound
            assert read_header(data).base_offset <= offset <= read_header(data).last_offset
        assert everything(log) == sound, f"seed {seed}"


def test_damage_below_the_recovery_point_is_not_cut() -> None:
    disk, log = filled(Random(1), batches=6)
    log.close(clean=True)
    end, base = log.log_end_offset, log.segment_bases[-1]
    path = f"{DIRECTORY}/{base:020d}.log"
    size = disk.open(path).size()
    disk.flip_bit(path, 8)  # the length of the first batch
    with pytest.raises(CorruptBatch, match=path):
        open_log(disk, clean=False, recovery_point=end)
    assert disk.open(path).size() == size, "nothing was cut"


def test_a_torn_tail_beyond_the_recovery_point_is_cut() -> None:
    disk, log = filled(Random(1), batches=5)
    base, stable = log.segment_bases[-1], log.log_end_offset
    append(log, Random(2))
    path = f"{DIRECTORY}/{base:020d}.log"
    file = disk.open(path)
    file.truncate(file.size() - 3)
    disk.kill()
    log = open_log(disk, clean=False)
    assert log.log_end_offset == stable
    assert log.recovery.truncated_bytes > 0
    assert path in log.recovery.messages[0]


def test_after_a_failed_sync_the_log_is_offline_for_good() -> None:
    random = Random(3)
    disk, log = filled(random)
    disk.fail_sync = lambda path: path.endswith(".log")
    flush = log.begin_flush()
    assert flush is not None
    with pytest.raises(OSError, match="input/output") as caught:
        flush.files[0].sync()
    log.end_flush(flush, caught.value)
    assert log.offline is caught.value
    assert log.stable_offset == 0
    disk.fail_sync = None
    with pytest.raises(LogOffline):
        append(log, random)
    with pytest.raises(LogOffline):
        log.roll(NOW_MS)
    with pytest.raises(LogOffline):
        log.truncate_to(1)
    with pytest.raises(LogOffline):
        log.prepare_checkpoint()
    with pytest.raises(LogOffline):
        log.reader.position_of(0)
    assert log.begin_flush() is None, "nothing is retried"
    log.close(clean=True)
    assert log.stable_offset == 0


def test_a_failed_sync_at_close_is_not_a_clean_close() -> None:
    disk, log = filled(Random(4))
    disk.fail_sync = lambda path: True
    with pytest.raises(LogOffline):
        log.close(clean=True)
    assert log.stable_offset == 0


def test_a_full_disk_refuses_and_recovers() -> None:
    for seed in range(EXAMPLES):
        random = Random(seed)
        disk, log = filled(random, batches=random.randrange(1, 20))
        disk.capacity = used(disk) + random.randrange(2500)
        sound, refused = everything(log), []
        for _ in range(12):
            try:
                append(log, random)
            except StorageError as error:
                refused.append(error.__cause__)
            else:
                sound = everything(log)
            assert everything(log) == sound, f"seed {seed}: earlier data intact"
        assert refused, f"seed {seed}"
        assert all(isinstance(cause, OSError) and cause.errno == errno.ENOSPC for cause in refused)
        disk.capacity = None
        for _ in range(12):
            append(log, random)
        assert everything(log)[: len(sound)] == sound
        end = log.log_end_offset
        log.close(clean=True)
        disk.crash()
        log = open_log(disk, recovery_point=end)
        assert log.log_end_offset == end
        assert everything(log)[: len(sound)] == sound, f"seed {seed}"


def used(disk: SimDisk) -> int:
    disk.capacity = 1 << 40
    total, free = disk.space("/")
    disk.capacity = None
    return total - free


def test_a_log_that_cannot_undo_a_failed_write_goes_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(5)
    disk, log = filled(random, batches=2)
    disk.capacity = used(disk) + 10

    def refuse(self: object, size: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr("penstock.sim.machine.disk.SimFile.truncate", refuse)
    with pytest.raises(StorageError):
        append(log, random, size=500)
    assert log.offline is not None
    monkeypatch.undo()
    with pytest.raises(LogOffline):
        append(log, random)


def test_reads_outside_the_log_are_refused() -> None:
    _, log = filled(Random(6), batches=3)
    assert log.reader.read(log.log_end_offset, 100) is None
    for offset in (-1, log.log_end_offset + 1):
        with pytest.raises(ApiError):
            log.reader.read(offset, 100)
