"""Reading a partition in which transactions have written: what counts, what never did, and what is still open."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.loading import Latest, read_latest
from penstock.model.errors import StorageError
from penstock.records.batch import CONTROL_BIT, HEADER_SIZE, NO_SEQUENCE, TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch, seal
from penstock.records.compression import GZIP, recompress
from penstock.records.control import ABORT, COMMIT, CONTROL_KEY, build_marker
from penstock.sim.machine.disk import SimDisk
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000
A, B = 1, 2


def batch(values: dict[bytes, bytes | None], producer_id: int | None = None) -> bytes:
    records = [Record(key, value, (), NOW_MS) for key, value in values.items()]
    if producer_id is None:
        return build_batch(records)
    return build_batch(records, producer_id=producer_id, producer_epoch=0, attributes=TRANSACTIONAL_BIT)


class Written:
    """A partition of an internal topic."""

    def __init__(self) -> None:
        disk = SimDisk(Random(1))
        disk.make_directory("/data")
        self.log = Log.open(disk, "/data/o-0", LogConfig(compact=True, delete=False), now_ms=NOW_MS)

    def append(self, data: bytes) -> None:
        self.log.append(read_header(data), data, 0, NOW_MS)

    def plain(self, **values: bytes | None) -> Written:
        self.append(batch({key.encode(): value for key, value in values.items()}))
        return self

    def pending(self, producer_id: int, **values: bytes | None) -> Written:
        self.append(batch({key.encode(): value for key, value in values.items()}, producer_id))
        return self

    def end(self, producer_id: int, kind: int) -> Written:
        self.append(build_marker(producer_id, 0, kind, 0, NOW_MS))
        return self

    def read(self, max_bytes: int = 1 << 20) -> Latest:
        latest = Latest()
        offset, end = self.log.log_start_offset, self.log.log_end_offset
        while offset < end:
            lookup = self.log.reader.lookup(offset, max_bytes, end)
            found = read_latest(lookup, latest)
            assert self.log.reader.end_lookup(lookup)
            assert found is not None
            offset = found
        return latest


def test_records_of_a_transaction_count_from_its_commit_on() -> None:
    written = Written().plain(k=b"before").pending(A, k=b"within", j=b"new")
    latest = written.read()
    assert latest.records == {b"k": b"before"}
    assert set(latest.still_open()) == {(A, b"k", b"within"), (A, b"j", b"new")}
    latest = written.end(A, COMMIT).read()
    assert latest.records == {b"k": b"within", b"j": b"new"}
    assert list(latest.still_open()) == []


def test_records_of_an_aborted_transaction_never_count() -> None:
    latest = Written().plain(k=b"before").pending(A, k=b"within", j=b"new").end(A, ABORT).read()
    assert latest.records == {b"k": b"before"}
    assert list(latest.still_open()) == []


def test_each_transaction_of_a_producer_has_its_own_end() -> None:
    written = Written().pending(A, k=b"1").end(A, COMMIT).pending(A, k=b"2").end(A, ABORT).pending(A, k=b"3")
    latest = written.read()
    assert latest.records == {b"k": b"1"}
    assert list(latest.still_open()) == [(A, b"k", b"3")]


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_a_plain_record_after_them_is_not_overwritten_by_a_late_commit(kind: int) -> None:
    written = Written().pending(A, k=b"within").plain(k=b"after")
    assert list(written.read().still_open()) == []
    assert written.end(A, kind).read().records == {b"k": b"after"}
    assert Written().pending(A, k=b"within").plain(k=None).end(A, COMMIT).read().records == {b"k": None}


def test_a_producer_that_writes_again_after_the_plain_record_comes_last() -> None:
    written = Written().pending(A, k=b"1").plain(k=b"2").pending(A, k=b"3")
    assert list(written.read().still_open()) == [(A, b"k", b"3")]
    assert written.end(A, COMMIT).read().records == {b"k": b"3"}


def test_of_two_transactions_the_later_record_counts_and_not_the_later_commit() -> None:
    written = Written().pending(A, k=b"a").pending(B, k=b"b").end(B, COMMIT)
    assert written.read().records == {b"k": b"b"}
    assert list(written.read().still_open()) == []
    assert written.end(A, COMMIT).read().records == {b"k": b"b"}
    written = Written().pending(A, k=b"a").pending(B, k=b"b").end(A, COMMIT)
    assert written.read().records == {b"k": b"a"}
    assert list(written.read().still_open()) == [(B, b"k", b"b")]
    assert written.end(B, COMMIT).read().records == {b"k": b"b"}


def test_compressed_batches_of_a_transaction_are_read_too() -> None:
    written = Written()
    data = batch({b"k": b"v" * 500}, A)
    written.append(recompress(read_header(data), data, GZIP))
    assert written.end(A, COMMIT).read().records == {b"k": b"v" * 500}


def test_a_control_batch_that_is_no_marker_is_passed_over() -> None:
    """Compaction leaves an empty one; later versions of Kafka write types that nobody knows yet."""
    written = Written().pending(A, k=b"v")
    unknown = Record(CONTROL_KEY.pack(0, 5), b"\0\0\0\0\0\0", (), NOW_MS)
    written.append(build_batch([unknown], base_sequence=NO_SEQUENCE, attributes=CONTROL_BIT))
    assert list(written.read().still_open()) == [(A, b"k", b"v")]
    assert written.end(A, COMMIT).read().records == {b"k": b"v"}


def test_records_that_are_none_are_named() -> None:
    written = Written()
    data = bytearray(batch({b"k": b"v"}, A))
    data[HEADER_SIZE] = 0x7E  # the length of the record
    written.append(seal(read_header(data), bytes(data[HEADER_SIZE:])))  # the checksum fits
    with pytest.raises(StorageError, match="at position 0"):
        written.read()


# -- against a list ---------------------------------------------------------------------


class Put(NamedTuple):
    producer_id: int | None
    values: dict[bytes, bytes | None]


class End(NamedTuple):
    producer_id: int
    is_commit: bool


keys = st.sampled_from([b"a", b"b", b"c"])
values = st.none() | st.integers(0, 99).map(lambda number: b"%d" % number)
puts = st.builds(Put, st.sampled_from([None, A, B, 3]), st.dictionaries(keys, values, min_size=1))
ends = st.builds(End, st.sampled_from([A, B, 3]), st.booleans())


class Mention(NamedTuple):
    key: bytes
    value: bytes | None
    producer_id: int | None


def expected(history: list[Put | End]) -> tuple[dict[bytes, bytes | None], set[tuple[int, bytes, bytes | None]]]:
    """Of each key the last decided value counts; open transactions count only behind it."""
    mentions: list[Mention] = []
    decided: list[bool] = []
    for one in history:
        if isinstance(one, Put):
            mentions += (Mention(key, value, one.producer_id) for key, value in one.values.items())
            decided += [one.producer_id is None] * len(one.values)
        else:
            kept = [
                (mention, is_decided or mention.producer_id == one.producer_id)
                for mention, is_decided in zip(mentions, decided, strict=True)
                if is_decided or mention.producer_id != one.producer_id or one.is_commit
            ]
            mentions, decided = [mention for mention, _ in kept], [is_decided for _, is_decided in kept]
    counts: dict[bytes, bytes | None] = {}
    still_open: dict[tuple[int, bytes], bytes | None] = {}
    for mention, is_decided in zip(mentions, decided, strict=True):
        if is_decided:
            counts[mention.key] = mention.value
            for place in [place for place in still_open if place[1] == mention.key]:
                del still_open[place]
        elif mention.producer_id is not None:
            still_open[mention.producer_id, mention.key] = mention.value
    return counts, {(producer_id, key, value) for (producer_id, key), value in still_open.items()}


@given(st.lists(puts | ends, max_size=25))
def test_what_counts_is_what_a_list_says(history: list[Put | End]) -> None:
    latest = Latest()
    offset = 0
    for one in history:
        if isinstance(one, End):
            latest.end_transaction(one.producer_id, is_commit=one.is_commit)
            offset += 1
            continue
        data = batch(one.values, one.producer_id)
        header = read_header(data)._replace(base_offset=offset)
        latest.add_batch(header, data[HEADER_SIZE:])
        offset += header.record_count
    counts, still_open = expected(history)
    assert latest.records == counts
    assert set(latest.still_open()) == still_open


@given(st.lists(puts | ends, max_size=12), st.integers(1, 400))
def test_it_does_not_matter_in_how_many_pieces_the_log_is_read(history: list[Put | End], max_bytes: int) -> None:
    written = Written()
    for one in history:
        if isinstance(one, End):
            written.end(one.producer_id, COMMIT if one.is_commit else ABORT)
        else:
            written.append(batch(one.values, one.producer_id))
    latest = written.read(max_bytes)
    counts, still_open = expected(history)
    assert latest.records == counts
    assert set(latest.still_open()) == still_open
