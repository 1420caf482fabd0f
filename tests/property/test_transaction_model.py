"""Transactions in a log on the faulty disk against a plain list: random work, with the machine stopping at any change.

Held against the list after every step and every crash:
- the last stable offset, for any high watermark that may come now;
- epochs and open transactions of all producers;
- the aborted transactions of any range, and the bytes of every `.txnindex` file; none without an entry;
- in a compacted log: a reader of committed records, built as Kafka's consumer is, sees the last committed value of
  every key and nothing that was aborted.

PENSTOCK_PROPERTY_EXAMPLES sets the number of histories. A failure names its seed and the steps taken.
"""

from __future__ import annotations

import os
from random import Random
from typing import NamedTuple

import pytest

from penstock.model.errors import ApiError, ForeignDirectory, NotCached, StorageError
from penstock.records.batch import (
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    iterate_headers,
    read_header,
    with_prefix,
)
from penstock.records.builder import Record, build_batch, iterate_records
from penstock.records.control import ABORT, COMMIT, build_marker, marker_of
from penstock.sim.machine.disk import SimCrash, SimDisk
from penstock.storage import checkpoint_builder, checkpoints
from penstock.storage.cleaner.plan import Cleaned, CleanPlan
from penstock.storage.cleaner.rewrite import clean
from penstock.storage.cleaner.survey import make_plan, survey
from penstock.storage.cleaner.swap import Swap
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.producers.transaction_index import encode
from penstock.storage.producers.transactions import AbortedTransaction, MarkerCheck

EXAMPLES = int(os.environ.get("PENSTOCK_PROPERTY_EXAMPLES", "150"))
LOG_DIR = "/data"
DIRECTORY = "/data/orders-0"
KEY = ("orders", 0)
PRODUCERS = (7, 8, 9)
IDEMPOTENT = 6
RETENTION_MS = 5_000
FAILURES = (AssertionError, ApiError, StorageError, OSError, LookupError, ValueError)


class Truth(NamedTuple):
    """The transactions in a list of batches, walked from the start."""

    opened: dict[int, int]  # producer id -> first offset
    epochs: dict[int, int]
    decided: list[tuple[int, int, bool]]  # marker, first offset, is aborted
    aborted: list[AbortedTransaction]
    committed: dict[int, Record]  # by offset; also records outside of transactions


def truth(batches: list[bytes]) -> Truth:
    found = Truth({}, {}, [], [], {})
    pending: dict[int, list[Record]] = {}
    for data in batches:
        header = read_header(data)
        producer = header.producer_id
        if producer >= 0:
            found.epochs[producer] = header.producer_epoch
        if header.is_control:
            marker = marker_of(header, data)
            assert marker is not None
            first = found.opened.pop(producer, None)
            records = pending.pop(producer, [])
            if first is None:
                continue
            found.decided.append((header.base_offset, first, marker.kind == ABORT))
            if marker.kind == ABORT:
                stable = min(found.opened.values(), default=header.base_offset + 1)
                found.aborted.append(AbortedTransaction(producer, first, header.base_offset, stable))
            else:
                found.committed.update((record.offset, record) for record in records)
        else:
            records = list(iterate_records(header, memoryview(data)[HEADER_SIZE:]))
            if header.is_transactional:
                found.opened.setdefault(producer, header.base_offset)
                pending.setdefault(producer, []).extend(records)
            else:
                found.committed.update((record.offset, record) for record in records)
    return found


class World:
    """One history: a log, the list of its batches, and the little a node does around them."""

    def __init__(self, seed: int, *, compact: bool = False) -> None:
        self.random = random = Random(seed)
        self.disk = SimDisk(Random(seed + 1))
        self.disk.make_directory(LOG_DIR)
        self.disk.sync_directory("")
        self.now_ms = 1_700_000_000_000
        self.batches: list[bytes] = []
        self.stable = 0
        self.watermark = 0  # the highest that was asked about
        self.cleaned_at = 0  # the high watermark of the last cleaning: a log is not cut below
        self.start = 0  # what was deleted, for good or not yet
        self.steps: list[str] = []
        self.compact = compact
        self.config = LogConfig(
            segment_bytes=random.choice([300, 700, 2000]),
            index_interval_bytes=random.choice([0, 200, 4096]),
            retention_ms=-1,
            compact=compact,
            delete=not compact,
            delete_retention_ms=RETENTION_MS,
            min_cleanable_dirty_ratio=0.0,
        )
        self.log = self.open()

    # -- what a node does ------------------------------------------------------------------------------------

    def open(self) -> Log:
        clean_shutdown = checkpoints.take_clean_shutdown_marker(self.disk, LOG_DIR)
        try:
            return self._open(clean_shutdown, self.persisted(checkpoints.RECOVERY_POINTS))
        except ForeignDirectory:  # a crash took the id before the first flush
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
        name = self.random.choice(COMPACTED_STEPS if self.compact else STEPS)
        self.steps.append(name)
        getattr(self, name)()

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    # -- appends ---------------------------------------------------------------------------------------------

    def next_batch(self, end: int, epochs: dict[int, tuple[int, int]], opened: set[int]) -> bytes:
        """The batch for offset `end`. `epochs`: (epoch, next sequence) by producer."""
        random = self.random
        self.now_ms += random.choice([0, 1, 300])
        producer = random.choice([-1, IDEMPOTENT, *PRODUCERS, *PRODUCERS])
        epoch, sequence = epochs.get(producer, (0, 0))
        if producer in PRODUCERS and random.random() < (0.4 if producer in opened else 0.1):
            raised = epoch + random.choice([0, 1])
            epochs[producer] = (raised, sequence if raised == epoch and producer in epochs else 0)
            opened.discard(producer)
            kind = random.choice([ABORT, ABORT, COMMIT])
            return with_prefix(build_marker(producer, raised, kind, 1, self.now_ms), end, 0)
        records = [
            Record(b"k%d" % random.randrange(5), random.randbytes(random.choice([0, 20, 90])), (), self.now_ms)
            for _ in range(random.choice([1, 1, 2, 4]))
        ]
        if producer in PRODUCERS:
            opened.add(producer)
        epochs[producer] = (epoch, sequence + len(records))
        data = build_batch(
            records,
            producer_id=producer,
            producer_epoch=epoch if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            attributes=TRANSACTIONAL_BIT if producer in PRODUCERS else 0,
        )
        return with_prefix(data, end, 0)

    def known(self) -> tuple[dict[int, tuple[int, int]], set[int]]:
        producers = self.log.producers
        epochs = {one.producer_id: (one.epoch, one.last_sequence + 1) for one in producers}
        return epochs, {one.producer_id for one in producers if one.transaction_first_offset >= 0}

    def append(self) -> None:
        data = self.next_batch(self.log.log_end_offset, *self.known())
        header = read_header(data)
        self.batches.append(data)  # before the write: if the machine stops now, it may have survived
        if header.is_control:
            version = self.random.choice([1, 2])
            producer = self.log.producers.get(header.producer_id)
            raises = producer is None or header.producer_epoch > producer.epoch
            checked = self.log.producers.check_marker(header.producer_id, header.producer_epoch, 1, version)
            if checked is not (MarkerCheck.APPEND if raises or version < 2 else MarkerCheck.ALREADY_THERE):
                raise AssertionError(f"{checked} for {header}")
        elif header.producer_id >= 0:
            assert self.log.producers.check(header) is None
        assert self.log.append(header, data, 0, self.now_ms) == header.base_offset

    def append_many(self) -> None:
        for _ in range(8):
            self.append()

    def append_replicated(self) -> None:
        end, fetched = self.log.log_end_offset, b""
        known = self.known()
        for _ in range(self.random.choice([1, 5])):
            data = self.next_batch(end, *known)
            self.batches.append(data)
            end, fetched = read_header(data).next_offset, fetched + data
        self.log.append_replicated(fetched, self.now_ms)

    # -- the rest of its life --------------------------------------------------------------------------------

    def flush(self) -> None:
        flush_blocking(self.disk, self.log)
        self.stable = self.log.stable_offset

    def checkpoint(self) -> None:
        checkpoint = self.log.prepare_checkpoint()
        if self.random.random() < 0.3:
            self.append()
        checkpoint.make_stable()
        self.log.end_checkpoint(checkpoint)
        self.persist(checkpoints.RECOVERY_POINTS, checkpoint.recovery_point)
        self.log.persisted_recovery_point = checkpoint.recovery_point

    def half_checkpoint(self) -> None:
        """Written, and never made stable."""
        self.log.put_back(self.log.prepare_checkpoint())

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def wait(self) -> None:
        self.now_ms += RETENTION_MS

    def truncate(self) -> None:
        log = self.log
        starts = [read_header(data).base_offset for data in self.batches[-8:]]
        starts = [start for start in starts if max(log.log_start_offset, self.cleaned_at) < start]
        if not starts:
            return
        target = self.random.choice(starts)
        self.persist(checkpoints.RECOVERY_POINTS, min(target, self.persisted(checkpoints.RECOVERY_POINTS)))
        self.stable = min(self.stable, target)
        log.truncate_to(target)
        assert log.log_end_offset == target
        self.cut_to(target)

    def cut_to(self, end: int) -> None:
        self.batches = [data for data in self.batches if read_header(data).next_offset <= end]
        self.watermark = min(self.watermark, end)

    def delete_records(self) -> None:
        log = self.log
        self.flush()
        self.start = max(self.start, self.random.randint(log.log_start_offset, log.log_end_offset))
        log.advance_log_start(self.start)
        self.persist(checkpoints.LOG_START_OFFSETS, log.log_start_offset)

    def retention(self) -> None:
        log = self.log
        self.flush()
        settings = {name: getattr(self.config, name) for name in self.config.__slots__}
        log.config = LogConfig(**{**settings, "retention_bytes": self.random.randint(0, log.size_bytes)})
        self.start = log.log_end_offset
        log.apply_retention(self.now_ms, self.ask_at(log.log_end_offset))
        self.start = log.log_start_offset
        log.config = self.config
        self.persist(checkpoints.LOG_START_OFFSETS, log.log_start_offset)
        if self.random.random() < 0.5:
            log.remove_deleted()

    def clean(self) -> None:
        log = self.log
        self.flush()
        self.cleaned_at = log.log_end_offset
        stable = log.last_stable_offset(self.ask_at(log.log_end_offset))
        found = survey(log, stable, self.now_ms)
        if not log.sealed_segments or found.end_offset <= log.log_start_offset:
            return
        self.checkpoint()
        lookup = log.aborted_lookup(log.segment_bases[0], found.end_offset)
        aborted = tuple(lookup.run())
        assert log.end_aborted_lookup(lookup)
        assert log.has_aborted or not aborted
        plan = make_plan(log, found, self.now_ms, self.random.choice([1, 3, 1000]), aborted)
        generation = log.generation
        for outcome in clean(self.disk, CleanPlan.decode(plan.encode())):
            if isinstance(outcome, Cleaned):
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

    def close_and_reopen(self) -> None:
        self.log.close(clean=True)
        self.stable = self.log.log_end_offset
        self.persist(checkpoints.RECOVERY_POINTS, self.log.checkpoint())
        checkpoints.write_clean_shutdown_marker(self.disk, LOG_DIR)
        self.random.choice([self.disk.crash, self.disk.kill])()
        self.reopen()

    def crash_and_reopen(self) -> None:
        self.disk.crash()
        self.reopen()

    def kill_and_reopen(self) -> None:
        self.disk.kill()
        self.reopen()

    def reopen(self) -> None:
        self.log = self.open()
        assert self.log.log_end_offset >= self.stable, "an acknowledged record is lost"
        self.cut_to(self.log.log_end_offset)

    # -- checks ----------------------------------------------------------------------------------------------

    def ask_at(self, high_watermark: int) -> int:
        self.watermark = max(self.watermark, high_watermark)
        return high_watermark

    def check(self) -> None:
        expected = truth(self.batches)
        log = self.log
        if self.compact:
            self.check_compacted(expected)
        else:
            self.check_indexes(expected.aborted)
            for _ in range(3):
                self.check_range(expected.aborted)
            opened = {
                p.producer_id: p.transaction_first_offset for p in log.producers if p.transaction_first_offset >= 0
            }
            assert opened == expected.opened
        assert {producer.producer_id: producer.epoch for producer in log.producers} == expected.epochs
        if self.random.random() < 0.5:
            self.check_stable_offset(expected)

    def check_stable_offset(self, expected: Truth) -> None:
        log = self.log
        asked = sorted(self.random.randint(max(self.watermark, log.log_start_offset), log.log_end_offset) for _ in "ab")
        for high_watermark in asked:
            unstable = [*expected.opened.values()]
            unstable += [first for marker, first, _ in expected.decided if marker >= high_watermark]
            found = log.last_stable_offset(self.ask_at(high_watermark))
            assert found == max(min([*unstable, high_watermark]), log.log_start_offset)

    def check_indexes(self, aborted: list[AbortedTransaction]) -> None:
        segments = self.log.segments
        ends = [segment.base_offset for segment in segments[1:]] + [self.log.log_end_offset]
        names = set(self.disk.list_directory(DIRECTORY)) if self.batches else set()
        wanted = set()
        for segment, end in zip(segments, ends, strict=True):
            inside = [entry for entry in aborted if segment.base_offset <= entry.last_offset < end]
            index = segment.transaction_index
            if end <= self.start:  # a crash has interrupted its deletion
                names.discard(segment.transaction_index_path.rpartition("/")[2])
                continue
            assert (index.entries() if index is not None else []) == inside
            name = segment.transaction_index_path.rpartition("/")[2]
            if inside and segment is not segments[-1]:
                wanted.add(name)
                path = f"{DIRECTORY}/{name}"
                assert self.disk.peek(path, 0, 1 << 20) == encode(inside)
        found = {name for name in names if name.endswith(".txnindex")}
        active = segments[-1].transaction_index_path.rpartition("/")[2]
        assert found - {active} == wanted
        assert active not in found or segments[-1].transaction_index is not None

    def check_range(self, aborted: list[AbortedTransaction]) -> None:
        log = self.log
        first = self.random.randint(log.log_start_offset, log.log_end_offset)
        bound = self.random.randint(first, log.log_end_offset)
        wanted = [entry for entry in aborted if entry.last_offset >= first and entry.first_offset < bound]
        self.disk.is_cold = self.random.random() < 0.3
        found = self.aborted_between(first, bound)
        if log.segment_bases[0] >= self.start:
            assert found == wanted
        else:  # a crash has interrupted a deletion
            assert [one for one in found if one.last_offset >= self.start] == [
                one for one in wanted if one.last_offset >= self.start
            ]
        self.disk.is_cold = False

    def aborted_between(self, first: int, bound: int) -> list[AbortedTransaction]:
        try:
            return self.log.aborted_between(first, bound)
        except NotCached:
            lookup = self.log.aborted_lookup(first, bound)
            found = lookup.run()
            assert self.log.end_aborted_lookup(lookup)
            return found

    def check_compacted(self, expected: Truth) -> None:
        log = self.log
        bound = log.last_stable_offset(self.ask_at(log.log_end_offset))
        first = self.random.choice([log.log_start_offset, self.random.randint(log.log_start_offset, bound)])
        seen = self.read_committed(first, bound)
        for offset, record in seen.items():
            assert expected.committed.get(offset) == record, "aborted, or not what was appended"
        latest: dict[bytes | None, Record] = {}
        for offset in sorted(expected.committed):
            if first <= offset < bound:
                latest[expected.committed[offset].key] = expected.committed[offset]
        for record in latest.values():
            later = [one for one in expected.committed.values() if one.key == record.key and one.offset > record.offset]
            assert record.offset in seen or later, f"the last value of {record.key!r}, at {record.offset}, is lost"

    def read_committed(self, first: int, bound: int) -> dict[int, Record]:
        """As Kafka's consumer, with one fetch for the whole range."""
        log, offset, seen = self.log, first, {}
        coming = sorted(self.aborted_between(first, bound), key=lambda entry: entry.first_offset)
        hidden: set[int] = set()
        while (piece := log.reader.read_below(offset, self.random.choice([1, 10_000]), bound)) is not None:
            data = log.reader.verify_slice(piece).read()
            for at, header in iterate_headers(data, "served"):
                while coming and coming[0].first_offset <= header.last_offset:
                    hidden.add(coming.pop(0).producer_id)
                if header.is_control:
                    marker = marker_of(header, data[at : at + header.size_bytes])
                    if marker is not None and marker.kind == ABORT:
                        hidden.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in hidden):
                    for record in self.records(header, data[at + HEADER_SIZE : at + header.size_bytes]):
                        seen[record.offset] = record
            offset = piece.next_offset
        return {offset: record for offset, record in seen.items() if first <= offset < bound}

    @staticmethod
    def records(header: BatchHeader, payload: bytes) -> list[Record]:
        return list(iterate_records(header, payload))


STEPS = (
    *["append"] * 6,
    *["append_many"] * 3,
    *["append_replicated"] * 2,
    *["flush"] * 2,
    *["checkpoint"] * 2,
    "half_checkpoint",
    "roll",
    "truncate",
    "retention",
    "delete_records",
    "close_and_reopen",
    "crash_and_reopen",
    "kill_and_reopen",
)
COMPACTED_STEPS = (
    *["append_many"] * 5,
    "append_replicated",
    *["roll"] * 2,
    *["wait"] * 2,
    *["clean"] * 4,
    "checkpoint",
    "truncate",
    "close_and_reopen",
    "crash_and_reopen",
    "kill_and_reopen",
)


def describe(world: World, seed: int) -> str:
    return f"seed {seed}, {len(world.steps)} steps: {' '.join(world.steps)}"


@pytest.fixture(autouse=True)
def _frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_builder, "_SNAPSHOT_EVERY_BYTES", 500)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("part", range(2))
def test_random_histories_match_the_model(part: int, compact: bool) -> None:
    for seed in range(part, EXAMPLES, 2):
        world = World(seed, compact=compact)
        try:
            for _ in range(40):
                world.step()
                world.check()
            world.crash_and_reopen()
            world.check()
        except FAILURES as error:
            raise AssertionError(describe(world, seed)) from error


@pytest.mark.parametrize("compact", [False, True])
def test_a_crash_at_every_change_to_the_disk(compact: bool) -> None:
    for seed in range(1000, 1000 + max(2, EXAMPLES // 30)):
        whole = World(seed, compact=compact)
        whole.work(20)
        for boundary in range(World(seed, compact=compact).disk.changes + 1, whole.disk.changes + 1):
            run_with_crash(seed, boundary, compact=compact)


def run_with_crash(seed: int, boundary: int, *, compact: bool) -> None:
    world = World(seed, compact=compact)
    world.disk.crash_after = boundary
    with pytest.raises(SimCrash):
        world.work(20)
    world.disk.crash_after = None
    try:
        if boundary % 3 == 0:
            world.kill_and_reopen()
            if world.steps[-1] == "truncate":
                world.flush()  # the process died between cut and sync: only a flush makes the cut final
        world.crash_and_reopen()
        world.check()
        world.append_many()
        world.check()
        world.checkpoint()
        world.flush()
        world.crash_and_reopen()
        world.check()
    except FAILURES as error:
        raise AssertionError(f"boundary {boundary}, {describe(world, seed)}") from error
