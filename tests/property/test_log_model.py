"""The log on the faulty disk against a list: random work, with the machine stopping at every change to the disk.

Held against the model after every step and every crash:
- what a completed flush or clean close covered is there, byte for byte and in order; nothing torn is returned;
- what survives beyond that is a prefix of what was appended, never something else;
- the producer state is the one recomputed from the surviving batches;
- lookups by offset and by timestamp equal a walk over the list.

PENSTOCK_PROPERTY_EXAMPLES sets the number of histories. A failure names its seed and the steps taken.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random

import pytest

from penstock.model.errors import ApiError, ErrorCode, ForeignDirectory, StorageError
from penstock.ports.disk import Buffer
from penstock.records.batch import BatchHeader, iterate_headers, read_header, with_prefix
from penstock.records.builder import Record, build_batch
from penstock.sim.machine.disk import SimCrash, SimDisk
from penstock.storage import checkpoint_builder, checkpoints
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.segments.slices import LogSlice

EXAMPLES = int(os.environ.get("PENSTOCK_PROPERTY_EXAMPLES", "150"))
LOG_DIR = "/data"
DIRECTORY = "/data/events-0"
KEY = ("events", 0)


@dataclass
class Stored:
    """One batch as it must lie on disk."""

    header: BatchHeader
    data: bytes
    records: list[Record]


@dataclass
class Model:
    batches: list[Stored] = field(default_factory=list)  # in order; also those deleted from the front
    start: int = 0  # what was deleted, acknowledged or not
    acknowledged_start: int = 0
    stable: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].header.next_offset if self.batches else 0

    def from_offset(self, offset: int) -> list[Stored]:
        return [batch for batch in self.batches if batch.header.last_offset >= offset]

    def producers(self) -> dict[int, tuple[int, list[tuple[int, int, int]]]]:
        """producer id -> (epoch, its last five batches as (first sequence, first offset, last offset))."""
        result: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        for batch in self.batches:
            header = batch.header
            if header.producer_id < 0:
                continue
            epoch, known = result.get(header.producer_id, (header.producer_epoch, []))
            if epoch != header.producer_epoch:
                known = []
            known = [*known, (header.base_sequence, header.base_offset, header.last_offset)][-5:]
            result[header.producer_id] = (header.producer_epoch, known)
        return result


def no_codec(codec: int, payload: Buffer) -> Buffer:
    raise AssertionError("nothing here is compressed")


class World:
    """One history: a log, its model, the little a node does around them, and the seed they come from."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.disk = SimDisk(Random(seed + 1))
        self.disk.make_directory(LOG_DIR)
        self.disk.sync_directory("")
        self.model = Model()
        self.now_ms = 1_700_000_000_000
        self.epoch = 0
        self.sequences: dict[int, int] = {}
        self.steps: list[str] = []
        self.forgets_producers = False  # records were deleted before they were stable, their producers with them
        self.config = LogConfig(
            segment_bytes=random.choice([700, 2000, 10_000]),
            segment_ms=random.choice([50_000, 10**12]),
            segment_index_bytes=random.choice([48, 10 << 20]),
            index_interval_bytes=random.choice([0, 200, 4096]),
            retention_ms=-1,
        )
        self.log = self.open()

    # -- what a node does ------------------------------------------------------------------------------------

    def open(self) -> Log:
        clean = checkpoints.take_clean_shutdown_marker(self.disk, LOG_DIR)
        try:
            return self._open(clean, self.persisted(checkpoints.RECOVERY_POINTS))
        except ForeignDirectory:  # a crash took the id before the first flush; that nothing else is lost is checked
            self.disk.remove_directory(DIRECTORY)
            return self._open(clean, 0)

    def _open(self, clean: bool, recovery_point: int) -> Log:
        return Log.open(
            self.disk,
            DIRECTORY,
            self.config,
            LastRun(
                recovery_point=recovery_point,
                log_start_offset=self.persisted(checkpoints.LOG_START_OFFSETS),
                was_clean=clean,
            ),
            now_ms=self.now_ms,
            topic_id=b"\7" * 16,
        )

    def persisted(self, name: str) -> int:
        return checkpoints.read_offsets(self.disk, f"{LOG_DIR}/{name}").get(KEY, 0)

    def persist(self, name: str, offset: int) -> None:
        checkpoints.write_offsets(self.disk, f"{LOG_DIR}/{name}", {KEY: offset})

    # -- steps -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        name = self.random.choice(STEPS)
        self.steps.append(name)
        getattr(self, name)()

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def make_batch(self) -> tuple[bytes, list[Record]]:
        random = self.random
        producer = random.choice([-1, -1, 7, 8, 9])
        records = []
        for _ in range(random.choice([1, 1, 2, 5])):
            self.now_ms += random.choice([0, 1, 1000])
            value = random.randbytes(random.choice([0, 10, 100, 600]))
            records.append(Record(None, value, (), self.now_ms - random.choice([0, 0, 5000])))
        sequence = self.sequences.get(producer, 0)
        if producer >= 0:
            self.sequences[producer] = sequence + len(records)
        data = build_batch(
            records,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
        )
        return data, records

    def stored(self, data: bytes, records: list[Record], base_offset: int) -> Stored:
        placed = [record._replace(offset=base_offset + delta) for delta, record in enumerate(records)]
        on_disk = with_prefix(data, base_offset, self.epoch)
        return Stored(read_header(on_disk), on_disk, placed)

    def append(self) -> None:
        if self.random.random() < 0.1:
            self.epoch += 1
        data, records = self.make_batch()
        header = read_header(data)
        # In the model before the write: if the machine stops now, it may have survived.
        self.model.batches.append(self.stored(data, records, self.log.log_end_offset))
        if header.producer_id >= 0:
            assert self.log.producers.check(header) is None
        base_offset = self.log.append(header, data, self.epoch, self.now_ms)
        assert base_offset == self.model.batches[-1].header.base_offset
        if header.producer_id >= 0:
            assert self.log.producers.check(header) == base_offset, "a repeat is recognised"

    def append_replicated(self) -> None:
        end, fetched = self.log.log_end_offset, b""
        for _ in range(self.random.choice([1, 3])):
            data, records = self.make_batch()
            batch = self.stored(data, records, end)
            self.model.batches.append(batch)
            end, fetched = batch.header.next_offset, fetched + batch.data
        self.log.append_replicated(fetched, self.now_ms)

    def flush(self) -> None:
        ticket = self.log.begin_flush()
        if ticket is None:
            assert self.log.stable_offset == self.log.log_end_offset
            return
        for file in ticket.files:
            file.sync()
        if self.random.random() < 0.3:
            self.append()  # not covered by this ticket
        for directory in ticket.directories:
            self.disk.sync_directory(directory)
        self.log.end_flush(ticket, None)
        self.model.stable = max(self.model.stable, ticket.end.offset)
        assert self.log.stable_offset == ticket.end.offset

    def checkpoint(self) -> None:
        checkpoint = self.log.prepare_checkpoint()
        checkpoint.make_stable()
        self.log.end_checkpoint(checkpoint)
        self.persist(checkpoints.RECOVERY_POINTS, checkpoint.recovery_point)
        if self.random.random() < 0.5:
            self.log.persisted_recovery_point = checkpoint.recovery_point

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def truncate(self) -> None:
        model = self.model
        starts = [b.header.base_offset for b in model.batches[-6:] if b.header.base_offset > self.log.log_start_offset]
        if not starts:
            return
        target = self.random.choice(starts)
        self.persist(checkpoints.RECOVERY_POINTS, min(target, self.persisted(checkpoints.RECOVERY_POINTS)))
        model.stable = min(model.stable, target)
        self.log.truncate_to(target)
        model.batches = [batch for batch in model.batches if batch.header.base_offset < target]
        self.resume_sequences()
        assert self.log.log_end_offset == target

    def delete_records(self) -> None:
        offset = self.random.randint(self.log.log_start_offset, self.log.log_end_offset)
        self.forgets_producers |= offset > self.log.stable_offset
        self.model.start = max(self.model.start, offset)
        self.log.advance_log_start(offset)
        assert self.log.log_start_offset == self.model.start
        self.persist(checkpoints.LOG_START_OFFSETS, offset)
        self.model.acknowledged_start = self.model.start

    def retention(self) -> None:
        model, log = self.model, self.log
        size = log.size_bytes
        if self.random.random() < 0.7:
            log.config = LogConfig(**{**_fields(self.config), "retention_bytes": self.random.randint(0, size)})
        else:
            log.config = LogConfig(**{**_fields(self.config), "retention_ms": self.random.choice([0, 20_000])})
        # The model learns what may go before it goes.
        high_watermark = self.random.choice([log.log_end_offset, log.log_start_offset, log.stable_offset])
        self.forgets_producers |= high_watermark > log.stable_offset
        model.start = max(model.start, high_watermark)
        start = log.log_start_offset
        deleted = log.apply_retention(self.now_ms, high_watermark)
        model.start = log.log_start_offset
        assert start <= log.log_start_offset <= max(high_watermark, start)
        assert not set(deleted) & set(log.segment_bases)
        if self.random.random() < 0.5:
            log.remove_deleted()
        log.config = self.config

    def read(self) -> None:
        offset = self.random.randint(self.log.log_start_offset, self.log.log_end_offset)
        max_bytes = self.random.choice([1, 100, 1000, 100_000])
        up_to = self.log.reader.position_of(self.random.randint(offset, self.log.log_end_offset))
        bound = self.random.choice([None, up_to])
        piece = self.log.reader.read(offset, max_bytes, bound)
        limit = self.log.log_end_offset if bound is None else bound.offset
        expected = [b for b in self.model.from_offset(offset) if b.header.base_offset <= offset or limit > offset]
        if piece is None:
            if bound is None:
                assert offset == self.log.log_end_offset
            else:
                assert not [b for b in expected if b.header.next_offset <= limit]
            return
        data = self.served(piece)
        assert len(data) <= max_bytes or len(data) == len(expected[0].data), "whole batches, at least one"
        wanted = b"".join(batch.data for batch in expected)
        assert data == wanted[: len(data)]
        last = [header for _, header in iterate_headers(data, "served")][-1]
        assert last.next_offset == piece.next_offset <= max(limit, offset + 1)

    def look_up_time(self) -> None:
        records = [r for b in self.model.from_offset(self.log.log_start_offset) for r in b.records]
        records = [record for record in records if record.offset >= self.log.log_start_offset]
        timestamp = self.now_ms - self.random.choice([0, 1, 2000, 10_000, 10**9])
        expected = next(((r.timestamp_ms, r.offset) for r in records if r.timestamp_ms >= timestamp), None)
        assert self.log.reader.offset_for_timestamp(timestamp) == expected
        if self.log.log_start_offset in [b.header.base_offset for b in self.model.batches]:
            found = self.log.reader.max_timestamp()
            assert found is not None
            assert found[0] >= max(record.timestamp_ms for record in records)

    def close_and_reopen(self) -> None:
        self.log.close(clean=True)
        self.model.stable = self.model.end
        self.persist(checkpoints.RECOVERY_POINTS, self.log.checkpoint())
        self.persist(checkpoints.LOG_START_OFFSETS, self.log.log_start_offset)
        self.model.acknowledged_start = self.log.log_start_offset
        checkpoints.write_clean_shutdown_marker(self.disk, LOG_DIR)
        if self.random.random() < 0.3:
            self.disk.crash()
        else:
            self.disk.kill()
        self.log = self.open()
        assert self.log.recovery.scanned_bytes == self.log.recovery.truncated_bytes == 0
        self.check_recovered()

    def crash_and_reopen(self) -> None:
        self.disk.crash()
        self.reopen()

    def kill_and_reopen(self) -> None:
        self.disk.kill()
        self.reopen()

    def reopen(self) -> None:
        self.log = self.open()
        self.check_recovered()

    # -- checks ----------------------------------------------------------------------------------------------

    def served(self, piece: LogSlice) -> bytes:
        """As fetch does it: bytes of before this process are checked once."""
        if not piece.is_trusted():
            verified = self.log.reader.verify_slice(piece)
            assert verified.size == piece.size, "nothing is damaged here"
            self.log.reader.mark_trusted(verified)
            assert verified.is_trusted()
        return piece.read()

    def check_recovered(self) -> None:
        model, log = self.model, self.log
        assert log.log_end_offset >= model.stable, "an acknowledged record is lost"
        assert log.log_start_offset >= model.acknowledged_start, "a deleted record is back"
        assert log.log_start_offset <= max(model.start, model.acknowledged_start)
        assert log.stable_offset <= log.log_end_offset
        ends = {batch.header.next_offset for batch in model.batches} | {log.log_start_offset, 0}
        assert log.log_end_offset in ends
        model.batches = [batch for batch in model.batches if batch.header.next_offset <= log.log_end_offset]
        model.start = log.log_start_offset
        self.check_content()
        self.check_producers()
        self.resume_sequences()

    def check_content(self) -> None:
        log, offset, data = self.log, self.log.log_start_offset, b""
        limit = self.random.choice([1, 300, 5000])
        while (piece := log.reader.read(offset, limit)) is not None:
            data += self.served(piece)
            offset = piece.next_offset
        assert offset == log.log_end_offset
        assert data == b"".join(batch.data for batch in self.model.from_offset(log.log_start_offset))
        assert log.size_bytes >= len(data)
        epochs = [(b.header.base_offset, b.header.leader_epoch) for b in self.model.from_offset(log.log_start_offset)]
        assert all(log.epochs.epoch_of(base) == epoch for base, epoch in epochs if base >= log.log_start_offset)

    def check_producers(self) -> None:
        expected = self.model.producers()
        found = {producer.producer_id: producer for producer in self.log.producers}
        assert found.keys() <= expected.keys()
        if self.forgets_producers:
            return
        assert found.keys() == expected.keys()
        for producer_id, (epoch, batches) in expected.items():
            producer = found[producer_id]
            remembered = [(b.first_sequence, b.first_offset, b.last_offset) for b in producer.batches]
            assert producer.epoch == epoch
            assert remembered
            assert remembered == batches[-len(remembered) :]

    def resume_sequences(self) -> None:
        """Producers go on after what survived, as clients do that repeat what was not acknowledged."""
        self.sequences = {producer.producer_id: producer.last_sequence + 1 for producer in self.log.producers}


def _fields(config: LogConfig) -> dict[str, int]:
    return {name: getattr(config, name) for name in config.__slots__}


STEPS = [
    *["append"] * 12,
    *["append_replicated"] * 2,
    *["flush"] * 4,
    *["read"] * 4,
    *["look_up_time"] * 2,
    *["checkpoint"] * 2,
    "roll",
    "truncate",
    "retention",
    "delete_records",
    "close_and_reopen",
    "crash_and_reopen",
    "kill_and_reopen",
]


def describe(world: World, seed: int) -> str:
    return f"seed {seed}, {len(world.steps)} steps: {' '.join(world.steps)}"


@pytest.fixture(autouse=True)
def _frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_builder, "_SNAPSHOT_EVERY_BYTES", 2000)


@pytest.mark.parametrize("part", range(4))
def test_random_histories_match_the_model(part: int) -> None:
    for seed in range(part, EXAMPLES, 4):
        world = World(seed)
        try:
            world.work(60)
            world.crash_and_reopen()
        except (AssertionError, ApiError, StorageError, OSError, LookupError, ValueError) as error:
            raise AssertionError(describe(world, seed)) from error


@pytest.mark.parametrize("part", range(4))
def test_a_crash_at_every_change_to_the_disk(part: int) -> None:
    for seed in range(1000 + part, 1000 + max(4, EXAMPLES // 12), 4):
        whole = World(seed)
        whole.work(25)
        for boundary in range(World(seed).disk.changes + 1, whole.disk.changes + 1):
            run_with_crash(seed, boundary)


def run_with_crash(seed: int, boundary: int) -> None:
    world = World(seed)
    world.disk.crash_after = boundary
    with pytest.raises(SimCrash):
        world.work(25)
    world.disk.crash_after = None
    try:
        if boundary % 3 == 0:
            world.kill_and_reopen()
            if world.steps[-1] == "truncate":
                world.flush()  # the process died between cut and sync: only a flush makes the cut final
        world.crash_and_reopen()
        for _ in range(8):
            world.append()
        world.flush()
        world.crash_and_reopen()
    except (AssertionError, ApiError, StorageError, OSError, LookupError, ValueError) as error:
        raise AssertionError(f"boundary {boundary}, {describe(world, seed)}") from error


def test_error_codes_are_named() -> None:
    """The harness treats ApiError as a failure; reading outside the log is one."""
    world = World(1)
    with pytest.raises(ApiError) as caught:
        world.log.reader.read(5, 100)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
