"""Compaction on the faulty disk against a dictionary: random work, with the machine stopping at every change.

Held against the model after every step and every crash:
- of every key the last record is there; if it is a tombstone it may be gone, and then nothing older of the key is back;
- what is there is what was appended: offset, key, value, headers and timestamp, and no batch is torn;
- a tombstone goes no earlier than `delete.retention.ms` after the first cleaning that met it;
- the log still knows its producers, and a lookup by offset or timestamp finds what a walk finds.

PENSTOCK_PROPERTY_EXAMPLES sets the number of histories. A failure names its seed and the steps taken.
"""

from __future__ import annotations

import os
from itertools import pairwise
from random import Random

import pytest

from penstock.model.errors import ApiError, ForeignDirectory, StorageError
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, iterate_headers, read_header
from penstock.records.builder import Record, build_batch, iterate_records, seal
from penstock.records.compression import GZIP, NONE, compress, decompress
from penstock.sim.machine.disk import SimCrash, SimDisk
from penstock.storage import checkpoints
from penstock.storage.cleaner.plan import Cleaned
from penstock.storage.cleaner.rewrite import clean
from penstock.storage.cleaner.survey import make_plan, survey
from penstock.storage.cleaner.swap import Swap
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

EXAMPLES = int(os.environ.get("PENSTOCK_PROPERTY_EXAMPLES", "150"))
LOG_DIR = "/data"
DIRECTORY = "/data/accounts-0"
KEY = ("accounts", 0)
RETENTION_MS = 5_000
FAILURES = (AssertionError, ApiError, StorageError, OSError, LookupError, ValueError)


def decompressed(codec: int, payload: Buffer) -> Buffer:
    return decompress(codec, payload)


class World:
    """One history: a compacted log, everything ever appended to it, and the little a node does around them."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.disk = SimDisk(Random(seed + 1))
        self.disk.make_directory(LOG_DIR)
        self.disk.sync_directory("")
        self.now_ms = 1_700_000_000_000
        self.appended: dict[int, Record] = {}
        self.stable = 0
        self.sequences: dict[int, int] = {}
        self.met: dict[int, int] = {}  # offset of a tombstone -> when a cleaning met it first
        self.steps: list[str] = []
        self.keys = random.choice([2, 5, 40])
        self.config = LogConfig(
            segment_bytes=random.choice([400, 900, 3000]),
            index_interval_bytes=random.choice([0, 100, 4096]),
            compact=True,
            delete=False,
            delete_retention_ms=RETENTION_MS,
            min_cleanable_dirty_ratio=0.0,
        )
        self.log = self.open()

    # -- what a node does ------------------------------------------------------------------------------------

    def open(self) -> Log:
        clean_shutdown = checkpoints.take_clean_shutdown_marker(self.disk, LOG_DIR)
        try:
            return self._open(clean_shutdown, self.persisted(checkpoints.RECOVERY_POINTS))
        except ForeignDirectory:  # a crash took the id before the first flush; that nothing else is lost is checked
            self.disk.remove_directory(DIRECTORY)
            return self._open(clean_shutdown, 0)

    def _open(self, clean_shutdown: bool, recovery_point: int) -> Log:
        return Log.open(
            self.disk,
            DIRECTORY,
            self.config,
            LastRun(
                recovery_point=recovery_point,
                log_start_offset=self.persisted(checkpoints.LOG_START_OFFSETS),
                was_clean=clean_shutdown,
                cleaned_offset=self.persisted(checkpoints.CLEANED_OFFSETS),
            ),
            now_ms=self.now_ms,
            topic_id=b"\7" * 16,
        )

    def persisted(self, name: str) -> int:
        return checkpoints.read_offsets(self.disk, f"{LOG_DIR}/{name}").get(KEY, 0)

    def persist(self, name: str, offset: int) -> None:
        checkpoints.write_offsets(self.disk, f"{LOG_DIR}/{name}", {KEY: offset})

    def step(self) -> None:
        name = self.random.choice(STEPS)
        self.steps.append(name)
        getattr(self, name)()

    def append(self) -> None:
        random = self.random
        base = self.log.log_end_offset
        records = []
        for delta in range(random.choice([1, 1, 2, 6])):
            self.now_ms += random.choice([0, 1, 300])
            key = b"k%d" % random.randrange(self.keys)
            if random.random() < 0.2:
                key *= 20  # longer than what is kept as it is
            value = None if random.random() < 0.25 else random.randbytes(random.choice([0, 3, 60, 200]))
            headers = (("h", b"x"),) if random.random() < 0.2 else ()
            records.append(Record(key, value, headers, self.now_ms - random.choice([0, 0, 700]), base + delta))
        producer = random.choice([-1, 7, 8])
        sequence = self.sequences.get(producer, 0)
        data = build_batch(
            records,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
        )
        codec = random.choice([NONE, NONE, GZIP])
        if codec:
            data = seal(read_header(data)._replace(attributes=codec), compress(codec, data[HEADER_SIZE:]))
        self.appended.update({record.offset: record for record in records})
        self.log.append(read_header(data), data, 0, self.now_ms)
        if producer >= 0:
            self.sequences[producer] = sequence + len(records)

    def append_many(self) -> None:
        for _ in range(8):
            self.append()

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def wait(self) -> None:
        self.now_ms += RETENTION_MS

    def flush(self) -> None:
        flush_blocking(self.disk, self.log)
        self.stable = self.log.stable_offset

    def checkpoint(self) -> None:
        checkpoint = self.log.prepare_checkpoint()
        checkpoint.make_stable()
        self.log.end_checkpoint(checkpoint)
        self.persist(checkpoints.RECOVERY_POINTS, checkpoint.recovery_point)
        self.log.persisted_recovery_point = checkpoint.recovery_point

    def clean(self) -> None:
        self.flush()
        log = self.log
        found = survey(log, log.log_end_offset, self.now_ms)
        if not found.is_due(log.config.min_cleanable_dirty_ratio) and self.random.random() < 0.7:
            return
        if not log.sealed_segments:
            return
        self.checkpoint()
        assert log.persisted_recovery_point >= found.end_offset
        plan = make_plan(log, found, self.now_ms, self.random.choice([1, 3, 1000]))
        self.note_met(plan.end_offset)
        generation = log.generation
        for outcome in clean(self.disk, plan):
            if isinstance(outcome, Cleaned):
                assert outcome.end_offset > found.first_dirty_offset or not found.dirty_bytes
                log.cleaned_offset = outcome.end_offset
                self.persist(checkpoints.CLEANED_OFFSETS, outcome.end_offset)
            elif outcome.is_changed:
                swap = Swap(self.disk, DIRECTORY, outcome.bases, outcome.size)
                assert log.begin_swap(swap, generation)
                swap.commit()
                assert log.end_swap(swap, outcome)
                if self.random.random() < 0.5:
                    log.remove_deleted()
                self.disk.sync_directory(DIRECTORY)

    def note_met(self, end_offset: int) -> None:
        for offset, record in self.appended.items():
            if record.value is None and offset < end_offset:
                self.met.setdefault(offset, self.now_ms)

    def close_and_reopen(self) -> None:
        self.log.close(clean=True)
        self.stable = self.log.log_end_offset
        self.persist(checkpoints.RECOVERY_POINTS, self.log.checkpoint())
        checkpoints.write_clean_shutdown_marker(self.disk, LOG_DIR)
        self.random.choice([self.disk.crash, self.disk.kill])()
        self.log = self.open()
        self.check_recovered()

    def crash_and_reopen(self) -> None:
        self.disk.crash()
        self.log = self.open()
        self.check_recovered()

    def kill_and_reopen(self) -> None:
        self.disk.kill()
        self.log = self.open()
        self.check_recovered()

    # -- checks ----------------------------------------------------------------------------------------------

    def batches(self) -> list[tuple[BatchHeader, list[Record]]]:
        """As a reader from the start sees them; raises CorruptBatch where one is torn."""
        log, offset, result = self.log, self.log.log_start_offset, []
        while (piece := log.reader.read(offset, self.random.choice([1, 500, 100_000]))) is not None:
            if not piece.is_trusted():
                piece = log.reader.verify_slice(piece)
                log.reader.mark_trusted(piece)
            data = piece.read()
            for at, header in iterate_headers(data, "served"):
                payload = decompress(header.compression, data[at + HEADER_SIZE : at + header.size_bytes])
                result.append((header, list(iterate_records(header, payload))))
            assert piece.next_offset > offset
            offset = piece.next_offset
        assert offset == log.log_end_offset
        return result

    def check_recovered(self) -> None:
        end = self.log.log_end_offset
        assert end >= self.stable, "an acknowledged record is lost"
        self.appended = {offset: record for offset, record in self.appended.items() if offset < end}
        self.met = {offset: since for offset, since in self.met.items() if offset < end}
        self.sequences = {producer.producer_id: producer.last_sequence + 1 for producer in self.log.producers}
        self.check()

    def check(self) -> None:
        batches = self.batches()
        headers = [header for header, _ in batches]
        for before, after in pairwise(headers):
            assert after.base_offset >= before.next_offset
        there = {record.offset: record for _, records in batches for record in records}
        for offset, record in there.items():
            assert record == self.appended[offset]
        latest: dict[bytes, Record] = {}
        for record in self.appended.values():
            assert record.key is not None
            latest[record.key] = record
        for key, record in latest.items():
            if record.offset in there:
                continue
            assert record.value is None, f"the last value of {key!r}, at {record.offset}, is lost"
            assert self.now_ms >= self.met[record.offset] + RETENTION_MS, "a tombstone went too early"
            assert not [other for other in there.values() if other.key == key], f"{key!r} was deleted and is back"
        self.check_lookups(there)

    def check_lookups(self, there: dict[int, Record]) -> None:
        log = self.log
        for _ in range(3):
            offset = self.random.randint(log.log_start_offset, log.log_end_offset)
            piece = log.reader.read(offset, 1)
            following = [other for other in there if other >= offset]
            if piece is not None:
                first = read_header(piece.read())
                assert first.last_offset >= offset
                assert not following or first.base_offset <= following[0]
            else:
                assert not following
            timestamp = self.now_ms - self.random.choice([0, 1, 500, 5000, 10**7])
            expected = next(((r.timestamp_ms, r.offset) for r in there.values() if r.timestamp_ms >= timestamp), None)
            assert log.reader.offset_for_timestamp(timestamp) == expected


STEPS = (
    *["append"] * 4,
    *["append_many"] * 3,
    "roll",
    "wait",
    *["clean"] * 4,
    "checkpoint",
    "close_and_reopen",
    "crash_and_reopen",
    "kill_and_reopen",
)


def test_any_history() -> None:
    for seed in range(EXAMPLES):
        world = World(seed)
        try:
            for _ in range(40):
                world.step()
                world.check()
        except FAILURES as error:
            pytest.fail(f"seed {seed}, {len(world.steps)} steps {world.steps[-12:]}: {error!r}")


@pytest.mark.parametrize("is_power_failure", [True, False])
def test_the_machine_stops_at_every_change_a_cleaning_makes(is_power_failure: bool) -> None:
    crashes = 0
    for seed in range(max(EXAMPLES // 12, 4)):
        change = 0
        while True:
            change += 1
            world = World(seed)
            for step in ("append_many", "roll", "clean", "append_many", "wait", "roll"):
                getattr(world, step)()
            world.checkpoint()
            world.flush()
            sequences = dict(world.sequences)
            world.note_met(world.log.log_end_offset)  # from now on they may have been
            world.disk.random.seed(seed * 1000 + change)
            world.disk.crash_after = world.disk.changes + change
            try:
                world.clean()
            except SimCrash:
                crashes += 1
            else:
                break
            world.disk.crash_after = None
            if is_power_failure:
                world.disk.crash()
            else:
                world.disk.kill()
            try:
                world.log = world.open()
                names = world.disk.list_directory(DIRECTORY)
                assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
                world.check_recovered()
                assert world.sequences == sequences
                world.clean()
                world.wait()
                world.roll()
                world.clean()
                world.check()
                world.crash_and_reopen()
                assert world.sequences == sequences
            except FAILURES as error:
                pytest.fail(f"seed {seed}, change {change}: {error!r}")
    assert crashes > 100


def test_a_second_crash_while_recovery_settles_the_swap() -> None:
    for seed in range(EXAMPLES):
        world = World(seed)
        for step in ("append_many", "roll", "append_many", "append_many", "wait", "roll"):
            getattr(world, step)()
        world.flush()
        world.note_met(world.log.log_end_offset)
        world.disk.crash_after = world.disk.changes + world.random.randint(5, 60)
        try:
            world.clean()
        except SimCrash:
            for _ in range(3):
                world.disk.crash_after = None
                world.disk.crash()
                world.disk.crash_after = world.disk.changes + world.random.randint(1, 8)
                try:
                    world.log = world.open()
                except SimCrash:
                    continue
                break
            world.disk.crash_after = None
            world.disk.crash()
            world.log = world.open()
        world.disk.crash_after = None
        try:
            world.check_recovered()
        except FAILURES as error:
            pytest.fail(f"seed {seed}: {error!r}")
