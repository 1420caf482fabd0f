"""Segments after compaction, record by record and batch by batch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from penstock.model.errors import CorruptBatch
from penstock.records.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    iterate_headers,
    read_header,
    with_append_time,
)
from penstock.records.builder import Record, build_batch, decode_uncompressed, iterate_records, seal
from penstock.records.compression import GZIP, LZ4, NAMES, SNAPPY, ZSTD, compress, decompress
from penstock.sim.machine.disk import SimCrash, SimDisk
from penstock.storage.cleaner.plan import (
    Cleaned,
    CleanPlan,
    RewrittenSegment,
    Uncleanable,
    decode_outcome,
    encode_failure,
    encode_outcome,
    max_keys,
)
from penstock.storage.cleaner.rewrite import clean
from penstock.storage.cleaner.survey import make_plan, survey
from penstock.storage.cleaner.swap import Swap
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.producers.transactions import AbortedTransaction

DIRECTORY = "/data/accounts-0"
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
ABORT, COMMIT = 0, 1


class Scene:
    """A compacted log that is rolled and cleaned by hand."""

    def __init__(self, **config: int | float | bool) -> None:
        self.disk = SimDisk(Random(1))
        self.disk.make_directory(DIRECTORY)
        self.now_ms = NOW_MS
        settings = {"compact": True, "delete": False, "index_interval_bytes": 100, **config}
        self.config = LogConfig(**settings)  # type: ignore[arg-type]
        self.log = self.open()

    def open(self) -> Log:
        return Log.open(
            self.disk,
            DIRECTORY,
            self.config,
            LastRun(was_clean=True),
            now_ms=self.now_ms,
        )

    def append(self, *pairs: tuple[bytes | None, bytes | None], codec: int = 0, **batch: int) -> int:
        records = [Record(key, value, (), self.now_ms + number) for number, (key, value) in enumerate(pairs)]
        data = build_batch(records, **batch)
        if codec:
            header = read_header(data)
            data = seal(header._replace(attributes=header.attributes | codec), compress(codec, data[HEADER_SIZE:]))
        return self.append_raw(data)

    def append_raw(self, data: bytes) -> int:
        return self.log.append(read_header(data), data, 3, self.now_ms)

    def marker(self, kind: int, producer_id: int) -> int:
        key, value = bytes([0, 0, 0, kind]), bytes(6)
        return self.append((key, value), producer_id=producer_id, producer_epoch=0, attributes=0x30)

    def plan(self, **changes: object) -> CleanPlan:
        flush_blocking(self.disk, self.log)
        found = survey(self.log, self.log.log_end_offset, self.now_ms)
        return replace(make_plan(self.log, found, self.now_ms, 1000), **changes)  # type: ignore[arg-type]

    def clean(self, *, rolls: bool = True, **changes: object) -> Cleaned:
        if rolls:
            self.log.roll(self.now_ms)
        plan = self.plan(**changes)
        outcomes = list(clean(self.disk, CleanPlan.decode(plan.encode())))
        for outcome in map(decode_outcome, map(encode_outcome, outcomes)):
            if isinstance(outcome, RewrittenSegment) and outcome.is_changed:
                swap = Swap(self.disk, DIRECTORY, outcome.bases, outcome.size)
                assert self.log.begin_swap(swap, self.log.generation)
                swap.commit()
                assert self.log.end_swap(swap, outcome)
        done = outcomes[-1]
        assert isinstance(done, Cleaned)
        self.log.cleaned_offset = done.end_offset
        return done

    def batches(self) -> list[tuple[BatchHeader, list[Record]]]:
        result, offset = [], 0
        while (piece := self.log.reader.read(offset, 1 << 20)) is not None:
            data = piece.read()
            for at, header in iterate_headers(data, "log"):
                payload = decompress(header.compression, data[at + HEADER_SIZE : at + header.size_bytes])
                result.append((header, list(iterate_records(header, payload))))
            offset = piece.next_offset
        return result

    def content(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for _, records in self.batches() for record in records]


def test_the_last_record_of_every_key_stays_with_its_offset() -> None:
    scene = Scene()
    scene.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    scene.append((b"c", b"1"))
    scene.append((b"a", b"3"), (b"d", b"1"))
    scene.log.roll(NOW_MS)
    scene.append((b"b", b"of the active segment"))
    before = {record.offset: record for _, records in scene.batches() for record in records}
    done = scene.clean(rolls=False)
    assert scene.content() == [
        (1, b"b", b"1"),
        (3, b"c", b"1"),
        (4, b"a", b"3"),
        (5, b"d", b"1"),
        (6, b"b", b"of the active segment"),
    ]
    assert {record.offset: record for _, records in scene.batches() for record in records}.items() <= before.items()
    assert done.end_offset == 6
    assert (done.records_read, done.records_kept, done.keys) == (6, 4, 4)


def test_the_second_cleaning_finds_what_the_first_has_left() -> None:
    scene = Scene()
    scene.append((b"a", b"1"), (b"b", b"1"))
    scene.clean()
    scene.append((b"b", b"2"))
    assert scene.clean().keys == 1, "only the dirty part is learnt"
    scene.append((b"c", b"1"))
    assert [entry[0] for entry in scene.content()] == [0, 2, 3]


def test_headers_of_a_filtered_batch_stay_but_for_what_must_change() -> None:
    scene = Scene()
    scene.append(
        (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), producer_id=9, producer_epoch=2, base_sequence=5
    )
    scene.append((b"c", b"2"), (b"z", b"1"))
    original = scene.batches()[0][0]
    scene.clean()
    header, records = scene.batches()[0]
    assert [record.offset for record in records] == [1, 2]
    assert header.record_count == 2
    assert header.max_timestamp == NOW_MS + 2, "of the records that are left"
    changed = {"record_count", "max_timestamp", "batch_length", "crc"}
    assert {name for name in header._fields if getattr(header, name) != getattr(original, name)} == changed
    assert header.last_offset == 3


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=NAMES.__getitem__)
def test_compression_stays(codec: int) -> None:
    scene = Scene()
    scene.append(*[(b"k%d" % (number % 7), b"%d" % number * 9) for number in range(50)], codec=codec)
    scene.append((b"k0", b"x"))
    scene.clean()
    assert [header.compression for header, _ in scene.batches()] == [codec, 0]
    assert [entry[0] for entry in scene.content()] == [43, 44, 45, 46, 47, 48, 50]


def test_log_append_time_stays() -> None:
    scene = Scene()
    batch = build_batch([Record(b"a", b"1", (), NOW_MS - 5), Record(b"b", b"1", (), NOW_MS - 4)])
    scene.append_raw(bytes(with_append_time(batch, NOW_MS + 77)))
    scene.append((b"b", b"2"))
    scene.clean()
    header = scene.batches()[0][0]
    assert header.attributes & TIMESTAMP_TYPE_BIT
    assert header.max_timestamp == NOW_MS + 77


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    scene = Scene(delete_retention_ms=DAY_MS)
    scene.append((b"a", b"1"), (b"b", b"1"))
    scene.append((b"a", None), (b"c", b"1"))
    times = {record.offset: record.timestamp_ms for _, records in scene.batches() for record in records}
    scene.clean()
    header, records = scene.batches()[-1]
    assert scene.content() == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert {record.offset: record.timestamp_ms for record in records}.items() <= times.items()

    scene.now_ms += DAY_MS - 1
    scene.append((b"d", b"1"))
    scene.clean()
    assert scene.content()[1] == (2, b"a", None)
    assert scene.batches()[1][0].base_timestamp == NOW_MS + DAY_MS, "set once"
    scene.now_ms += 1
    scene.append((b"e", b"1"))
    scene.clean()
    assert [entry[0] for entry in scene.content()] == [1, 3, 4, 5]
    assert {record.offset: record.timestamp_ms for _, records in scene.batches() for record in records}.items() >= {
        (1, times[1]),
        (3, times[3]),
    }


def test_a_batch_left_without_records_goes_unless_it_is_the_last_of_its_producer() -> None:
    scene = Scene()
    scene.append((b"a", b"1"), producer_id=4, producer_epoch=0, base_sequence=0)
    scene.append((b"a", b"2"), (b"b", b"1"), producer_id=4, producer_epoch=0, base_sequence=1)
    scene.append((b"a", b"3"), (b"b", b"2"))
    scene.clean()
    headers = [header for header, _ in scene.batches()]
    assert [(header.base_offset, header.last_offset, header.record_count) for header in headers] == [
        (1, 2, 0),
        (3, 4, 2),
    ]
    assert (headers[0].base_sequence, headers[0].last_sequence, headers[0].base_timestamp) == (1, 2, -1)
    scene.log.close(clean=False)
    for name in scene.disk.list_directory(DIRECTORY):
        if name.endswith(".snapshot"):
            scene.disk.remove(f"{DIRECTORY}/{name}")
    scene.log = Log.open(scene.disk, DIRECTORY, scene.config, now_ms=NOW_MS)
    producer = scene.log.producers.get(4)
    assert producer is not None
    assert (producer.last_sequence, producer.last_offset) == (2, 2)


def test_the_last_batch_of_a_new_segment_stays_as_an_empty_one() -> None:
    scene = Scene()
    scene.append((b"a", b"1"))
    scene.append((b"a", b"2"), (b"b", b"1"))
    scene.log.roll(NOW_MS)
    scene.append((b"a", b"3"), (b"b", b"2"))
    plan = scene.plan()
    assert plan.segments[-1][0] == 0
    scene.log.roll(NOW_MS)
    scene.clean(segment_bytes=200)
    headers = [header for header, _ in scene.batches()]
    assert [(header.base_offset, header.last_offset, header.record_count) for header in headers] == [
        (1, 2, 0),
        (3, 4, 2),
    ]


def test_small_segments_become_one_of_at_most_segment_bytes() -> None:
    scene = Scene(segment_bytes=1000)
    for number in range(12):
        scene.append((b"%d" % number, bytes(200)))
        scene.log.roll(NOW_MS)
    assert len(scene.log.segment_bases) == 13
    scene.clean()
    sizes = [segment.size for segment in scene.log.sealed_segments]
    assert len(sizes) == 4
    assert all(size <= 1000 for size in sizes)
    assert [entry[0] for entry in scene.content()] == list(range(12))
    timestamp = scene.log.reader.offset_for_timestamp(NOW_MS)
    assert timestamp is not None
    assert timestamp.offset == 0


def test_no_more_segments_become_one_than_the_loop_can_rename_in_a_turn() -> None:
    scene = Scene()
    for number in range(40):
        scene.append((b"%d" % number, b"1"))
        scene.log.roll(NOW_MS)
    scene.clean()
    assert scene.log.segment_bases == [0, 16, 32, 40]


def test_a_segment_that_need_not_change_is_left_alone() -> None:
    scene = Scene()
    scene.append((b"a", b"1"), (b"b", b"1"))
    scene.log.roll(NOW_MS)
    outcomes = list(clean(scene.disk, scene.plan()))
    assert isinstance(outcomes[0], RewrittenSegment)
    assert not outcomes[0].is_changed
    assert not [name for name in scene.disk.list_directory(DIRECTORY) if name.endswith(".cleaned")]


def test_more_keys_than_fit_are_cleaned_in_several_passes() -> None:
    scene = Scene()
    for round_ in range(3):
        for number in range(40):
            scene.append((b"%d" % number, b"%d" % round_))
    ends = []
    while not ends or ends[-1] < 120:
        ends.append(scene.clean(max_keys=15).end_offset)
    assert len(ends) >= 3
    assert ends == sorted(set(ends))
    assert [entry[0] for entry in scene.content()] == list(range(80, 120))


def test_the_memory_for_keys_follows_the_setting() -> None:
    assert max_keys(128 << 20, 0.9) == 603979
    assert max_keys(0, 0.9) == 1


def test_a_record_without_a_key_goes() -> None:
    scene = Scene()
    scene.append((None, b"1"), (b"a", b"1"))
    scene.append((b"b", b"1"))
    scene.clean()
    assert [entry[0] for entry in scene.content()] == [1, 2]


def test_records_that_cannot_be_read_stay_as_they_are() -> None:
    scene = Scene()
    good = build_batch([Record(b"a", b"1", (), NOW_MS), Record(b"b", b"1", (), NOW_MS)])
    for payload in (good[HEADER_SIZE:-3], b"\x80" * 30, good[HEADER_SIZE:] + b"\1", b"\x10\0\0\0\x60abc\0\0"):
        scene.append_raw(seal(read_header(good), payload))
    scene.append_raw(seal(read_header(good)._replace(attributes=GZIP), b"no gzip"))
    scene.append((b"a", b"2"), (b"b", b"2"))
    before = scene.log.reader.read(0, 1 << 20)
    assert before is not None
    done = scene.clean()
    after = scene.log.reader.read(0, 1 << 20)
    assert after is not None
    assert after.read() == before.read()
    assert done.malformed_batches == 5


def test_records_that_cannot_be_read_take_nobodys_place() -> None:
    scene = Scene()
    scene.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"c", b"2"))
    good = build_batch([Record(b"a", b"2", (), NOW_MS), Record(b"b", b"2", (), NOW_MS)])
    scene.append_raw(seal(read_header(good), good[HEADER_SIZE:-3]))
    scene.append_raw(seal(read_header(good)._replace(record_count=3, last_offset_delta=2), good[HEADER_SIZE:]))
    scene.append((b"d", b"1"))
    assert scene.clean().malformed_batches == 2
    piece = scene.log.reader.read(0, 1)
    assert piece is not None
    assert [record.offset for record in decode_uncompressed(piece.read())] == [0, 1, 3]


def test_damage_stops_the_cleaning_and_touches_nothing() -> None:
    scene = Scene()
    scene.append((b"a", b"1"))
    scene.append((b"a", b"2"))
    scene.log.roll(NOW_MS)
    plan = scene.plan()
    scene.disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 90)
    with pytest.raises(CorruptBatch, match="checksum"):
        list(clean(scene.disk, plan))
    failure = encode_failure(CorruptBatch("path", 1, "why"), is_permanent=True)
    with pytest.raises(Uncleanable, match="corrupt batch in path at position 1: why"):
        decode_outcome(failure)


def test_a_leader_epoch_that_is_not_the_logs_is_damage() -> None:
    """No checksum covers it. Copied into a new segment it would never be found."""
    scene = Scene()
    scene.append((b"a", b"1"))
    scene.append((b"b", b"2"))
    scene.log.roll(NOW_MS)
    plan = scene.plan()
    assert plan.leader_epochs
    assert CleanPlan.decode(plan.encode()) == plan
    scene.disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 12)  # the leader epoch of the first batch
    with pytest.raises(CorruptBatch, match="leader epoch"):
        list(clean(scene.disk, plan))


def test_a_batch_larger_than_the_buffer() -> None:
    scene = Scene()
    scene.append((b"a", bytes(3 << 20)), (b"b", b"1"))
    scene.append((b"a", b"2"))
    scene.clean()
    assert [entry[0] for entry in scene.content()] == [1, 2]


# -- transactions --------------------------------------------------------------------------------------------


def test_without_knowledge_of_transactions_their_batches_stay_untouched() -> None:
    scene = Scene()
    scene.append((b"a", b"1"))
    scene.append((b"a", b"2"), producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT)
    scene.marker(ABORT, 5)
    scene.append((b"z", b"1"))
    scene.clean()
    assert [entry[0] for entry in scene.content()] == [0, 1, 2, 3], "or an aborted record displaces one"


def test_aborted_records_go_and_their_marker_follows_later() -> None:
    scene = Scene(delete_retention_ms=DAY_MS)
    scene.append((b"a", b"1"))
    first = scene.append((b"a", b"2"), producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT)
    last = scene.marker(ABORT, 5)
    scene.append((b"z", b"1"))
    aborted = (AbortedTransaction(5, first, last, last + 1),)
    scene.clean(aborted=aborted, last_batches={})
    assert [entry[0] for entry in scene.content()] == [0, 2, 3]
    assert not scene.batches()[1][0].attributes & DELETE_HORIZON_BIT, "a batch of it was met"

    scene.append((b"y", b"1"))
    scene.clean(aborted=aborted, last_batches={})
    marker, records = scene.batches()[1]
    assert marker.attributes & CONTROL_BIT
    assert marker.attributes & DELETE_HORIZON_BIT
    assert (marker.base_timestamp, records[0].timestamp_ms) == (NOW_MS + DAY_MS, NOW_MS)

    scene.now_ms += DAY_MS
    scene.append((b"x", b"1"))
    scene.clean(aborted=aborted, last_batches={})
    assert [entry[0] for entry in scene.content()] == [0, 3, 4, 5]


def test_a_tombstone_stays_while_a_replica_may_not_have_it() -> None:
    scene = Scene(delete_retention_ms=0)
    scene.append((b"a", b"1"))
    scene.append((b"a", None))
    for number in range(3):
        scene.append((b"%d" % number, b"1"))
        scene.clean(may_drop_tombstones=False)
        assert scene.content()[0] == (1, b"a", None)
        assert scene.batches()[0][0].base_timestamp == NOW_MS
    scene.append((b"z", b"1"))
    scene.clean()
    assert [entry[0] for entry in scene.content()] == [2, 3, 4, 5]


def test_a_commit_marker_stays_as_long_as_a_batch_of_its_transaction() -> None:
    scene = Scene(delete_retention_ms=0)
    scene.append((b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT)
    scene.marker(COMMIT, 5)
    scene.append((b"z", b"1"))
    scene.clean(aborted=(), last_batches={})
    assert [entry[0] for entry in scene.content()] == [0, 1, 2]
    scene.append((b"a", b"2"))
    scene.clean(aborted=(), last_batches={})  # takes the record, meets the batch
    scene.append((b"y", b"1"))
    scene.clean(aborted=(), last_batches={})  # meets none, sets the horizon
    scene.append((b"x", b"1"))
    scene.clean(aborted=(), last_batches={})
    assert [entry[0] for entry in scene.content()] == [2, 3, 4, 5]


def test_the_last_marker_of_a_live_producer_stays_as_an_empty_batch() -> None:
    scene = Scene(delete_retention_ms=0)
    scene.marker(COMMIT, 5)
    scene.append((b"z", b"1"))
    for number in range(3):
        scene.append((b"%d" % number, b"1"))
        scene.clean(aborted=(), last_batches={5: (-1, 0)})
    header, records = scene.batches()[0]
    assert (header.base_offset, header.is_control, records) == (0, True, [])


# -- the list of aborted transactions ------------------------------------------------------------------------


def aborted_of(scene: Scene) -> tuple[AbortedTransaction, ...]:
    lookup = scene.log.aborted_lookup(0, scene.log.log_end_offset)
    found = tuple(lookup.run())
    assert scene.log.end_aborted_lookup(lookup)
    return found


def transaction_files(scene: Scene) -> list[str]:
    return [name for name in scene.disk.list_directory(DIRECTORY) if name.endswith(".txnindex")]


def abort_in_two_segments(scene: Scene) -> tuple[AbortedTransaction, ...]:
    for producer_id in (5, 6):
        scene.append(
            (b"a", b"aborted"), producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT
        )
        scene.append((b"%d" % producer_id, b"1"))
        scene.marker(ABORT, producer_id)
        scene.log.roll(scene.now_ms)
    return AbortedTransaction(5, 0, 2, 3), AbortedTransaction(6, 3, 5, 6)


def test_aborted_transactions_are_known_as_long_as_their_markers_stay_for_them() -> None:
    scene = Scene(delete_retention_ms=DAY_MS)
    both = abort_in_two_segments(scene)
    assert aborted_of(scene) == both
    scene.append((b"z", b"1"))
    scene.clean(aborted=both, last_batches={})
    assert [entry[0] for entry in scene.content()] == [1, 2, 4, 5, 6]
    assert aborted_of(scene) == both, "of one segment now"
    assert transaction_files(scene) == [f"{0:020d}.txnindex"]
    scene.append((b"y", b"1"))
    scene.clean(aborted=both, last_batches={})
    assert aborted_of(scene) == (), "nothing is left that anybody would have to leave out"
    assert [entry[0] for entry in scene.content()] == [1, 2, 4, 5, 6, 7], "the markers still are"
    scene.log.close(clean=True)
    scene.log = scene.open()
    assert transaction_files(scene) == []


def test_aborted_transactions_that_nobody_told_the_cleaning_of_move_along() -> None:
    scene = Scene()
    both = abort_in_two_segments(scene)
    scene.append((b"z", b"1"))
    scene.clean()
    assert len(scene.log.segment_bases) == 2
    assert aborted_of(scene) == both


def test_data_after_a_marker_that_is_gone_is_not_taken_for_aborted() -> None:
    scene = Scene()
    scene.append((b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT)
    scene.marker(COMMIT, 5)
    scene.append((b"z", b"1"))
    scene.clean(aborted=(AbortedTransaction(5, -2, -1, 0),), last_batches={})
    assert [entry[0] for entry in scene.content()] == [0, 1, 2]


@pytest.mark.parametrize("step", range(1, 40))
def test_a_crash_in_a_swap_leaves_the_aborted_transactions_of_the_segment_that_is_there(step: int) -> None:
    for seed in range(4):
        scene = Scene(delete_retention_ms=DAY_MS)
        scene.disk.make_directory("/data")
        scene.disk.sync_directory("")
        scene.disk.sync_directory("/data")
        both = abort_in_two_segments(scene)
        scene.append((b"z", b"1"))
        scene.log.roll(scene.now_ms)
        end_offset = scene.log.log_end_offset
        flush_blocking(scene.disk, scene.log)
        recovery_point = scene.log.checkpoint()
        scene.disk.random.seed(seed)
        scene.disk.crash_after = scene.disk.changes + step
        with suppress(SimCrash):
            scene.clean(aborted=both, last_batches={}, rolls=False)
        scene.disk.crash_after = None
        scene.disk.crash()
        scene.log = Log.open(
            scene.disk,
            DIRECTORY,
            scene.config,
            LastRun(recovery_point=recovery_point),
            now_ms=scene.now_ms,
        )
        assert scene.log.log_end_offset == end_offset
        assert aborted_of(scene) == both
        assert set(transaction_files(scene)) <= {f"{base:020d}.txnindex" for base in scene.log.segment_bases}
