"""The decoder's kernels against the decoder in plain Python: random batches, windows, cuts and flipped bytes.

For every input both give the same rows and the same next offset, or both refuse it. Bytes are handed to the kernels so
that they end where readable memory ends, and begin where it begins: a read out of bounds does not go unnoticed, it
kills the process.

PENSTOCK_PROPERTY_EXAMPLES sets the number of inputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from crc32c import crc32c
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.arrow.decode import KAFKA_SCHEMA, BatchDecoder, CorruptRecordBatch
from penstock.arrow.decode.aborted import AbortedTransactions
from penstock.arrow.decode.columns import Columns
from penstock.arrow.decode.reference import ReferenceChunk
from penstock.records.batch import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, read_header
from penstock.records.builder import seal, write_varint
from penstock.records.compression import NAMES, compress
from property.guarded_memory import Guarded

EXAMPLES = int(os.environ.get("PENSTOCK_PROPERTY_EXAMPLES", "150"))
TOPIC, PARTITION = "größen", 3
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20


nullable = st.none() | st.binary(max_size=24) | st.integers(0, 400).map(lambda size: b"\xff" * size)
names = st.sampled_from(["", "a", "trace-id", "größe ∂ 🎈"]).map(str.encode) | st.binary(max_size=3)
timestamps = st.sampled_from([-1, 0, 1_700_000_000_000]) | st.integers(-(2**61), 2**61)


@dataclass(frozen=True)
class Fields:
    """A record, whatever its offset."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    timestamp_ms: int


records = st.builds(
    Fields, nullable, nullable, st.just([]) | st.lists(st.tuples(names, nullable), max_size=3), timestamps
)


class Honest:
    """Writes the numbers of a batch as they are."""

    def number(self, value: int) -> int:
        return value

    def varint(self, value: int, out: bytearray) -> None:
        write_varint(self.number(value), out)

    def end(self, payload: bytes) -> bytes:
        return payload


class Liar(Honest):
    """Writes one number of a few wrongly, in the ways that lead a reader astray."""

    def __init__(self, chance: Random, lies_in_100: int) -> None:
        self._chance = chance
        self._lies_in_100 = lies_in_100

    def lies(self) -> bool:
        return self._chance.randrange(100) < self._lies_in_100

    def number(self, value: int) -> int:
        if not self.lies():
            return value
        wrong = (-1, -2, 0, 1, value + 1, value - 1, value + 7, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
        return self._chance.choice(wrong)

    def varint(self, value: int, out: bytearray) -> None:
        if self.lies() and self.lies():
            out += b"\xff" * self._chance.randrange(11) + self._chance.choice([b"", b"\0", b"\1", b"\x7f"])
        else:
            super().varint(value, out)

    def end(self, payload: bytes) -> bytes:
        if self.lies():
            return payload[: self._chance.randrange(len(payload) + 1)]
        return payload + b"\0" * self._chance.randrange(9) if self.lies() else payload


def encoded(fields: Fields, delta: int, base_timestamp: int, hand: Honest) -> bytes:
    body = bytearray(b"\0")
    hand.varint(fields.timestamp_ms - base_timestamp, body)
    hand.varint(delta, body)
    for part in (fields.key, fields.value):
        hand.varint(-1 if part is None else len(part), body)
        body += part or b""
    hand.varint(len(fields.headers), body)
    for name, content in fields.headers:
        hand.varint(len(name), body)
        body += name
        hand.varint(-1 if content is None else len(content), body)
        body += content or b""
    out = bytearray()
    hand.varint(len(body), out)
    return bytes(out + body)


@st.composite
def batches(draw: st.DrawFn, base_offset: int, hand: Honest) -> tuple[bytes, int]:
    """One batch and the offset after it: with holes as compaction leaves them, perhaps without any record at all."""
    kind = draw(st.sampled_from(["plain"] * 6 + ["transactional"] * 2 + ["marker"]))
    codec = draw(st.sampled_from([0, 0, 0, *range(len(NAMES))]))
    attributes = codec | draw(st.sampled_from([0, 0, 0, LOG_APPEND_TIME]))
    producer = -1
    if kind == "marker":
        found = [Fields(draw(st.sampled_from([b"\0\0\0\0", b"\0\0\0\1"])), b"\0\0\0\0\0\0", [], 5)]
    else:
        found = draw(st.lists(records, max_size=12))
    if kind != "plain":
        producer = draw(st.integers(1, 2))
        attributes |= TRANSACTIONAL | (CONTROL if kind == "marker" else 0)
    last_delta = len(found) - 1 + draw(st.integers(0, 3) if kind != "marker" else st.just(0))
    last_delta = max(last_delta, 0)
    deltas = sorted(draw(st.permutations(range(last_delta + 1)))[: len(found)])
    base_timestamp = draw(timestamps)
    payload = b"".join(
        encoded(fields, delta, base_timestamp, hand) for fields, delta in zip(found, deltas, strict=True)
    )
    header = BatchHeader(
        base_offset=hand.number(base_offset),
        batch_length=0,
        leader_epoch=0,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=_fit(hand.number(last_delta)),
        base_timestamp=base_timestamp,
        max_timestamp=draw(timestamps),
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        record_count=_fit(hand.number(len(found))),
    )
    return seal(header, compress(codec, hand.end(payload))), base_offset + last_delta + 1


def _fit(value: int) -> int:
    return min(max(value, -(2**31)), 2**31 - 1)


@dataclass(frozen=True)
class Input:
    data: bytes
    start: int
    end: int
    aborted: list[tuple[int, int]]
    read_committed: bool
    max_rows: int
    schema: pa.Schema


@st.composite
def inputs(draw: st.DrawFn, lies_in_100: int = 0) -> Input:
    hand = Liar(draw(st.randoms(use_true_random=False)), lies_in_100) if lies_in_100 else Honest()
    first = offset = draw(st.sampled_from([0, 7, 2**40]))
    data = b""
    for _ in range(draw(st.integers(1, 5))):
        batch, offset = draw(batches(offset, hand))
        data += batch
        offset += draw(st.sampled_from([0, 0, 0, 4]))
    start = draw(st.just(first) | st.integers(first, offset))
    names_asked = draw(st.permutations(KAFKA_SCHEMA.names))[: draw(st.integers(1, len(KAFKA_SCHEMA.names)))]
    if draw(st.booleans()):
        names_asked = KAFKA_SCHEMA.names
    return Input(
        data,
        start,
        draw(st.just(offset) | st.integers(start, offset + 5)),
        draw(st.lists(st.tuples(st.integers(1, 2), st.integers(first, offset)), max_size=3)),
        draw(st.booleans()),
        draw(st.sampled_from([1, 2, 5, 10_000])),
        pa.schema([KAFKA_SCHEMA.field(name) for name in names_asked]),
    )


def compare(case: Input, data: bytes) -> bool:
    """Both decoders on `data`; whether they took it."""
    columns = Columns(case.schema, TOPIC, PARTITION, case.max_rows)
    expected: list[pa.RecordBatch] | None
    try:
        chunk = ReferenceChunk(
            columns, data, case.start, case.end, AbortedTransactions(case.aborted) if case.read_committed else None
        )
        expected, next_offset = list(chunk), chunk.next_offset
    except CorruptRecordBatch:
        expected, next_offset = None, -1
    decoder = BatchDecoder(case.schema, TOPIC, PARTITION, max_rows=case.max_rows)
    for at_the_end in (True, False):
        try:
            decoded = decoder.decode(
                Guarded(data, at_the_end=at_the_end).view, case.start, case.end, case.aborted, case.read_committed
            )
        except CorruptRecordBatch:
            assert expected is None
            continue
        assert expected is not None
        assert decoded.next_offset == next_offset
        for batch in decoded.batches:
            batch.validate(full=True)
            assert batch.schema.equals(case.schema, check_metadata=True)
            assert 0 < batch.num_rows <= case.max_rows
        table = pa.Table.from_batches(decoded.batches, case.schema)
        assert decoded.rows == table.num_rows
        assert table.equals(pa.Table.from_batches(expected, case.schema))
    return expected is not None


def batch_positions(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + HEADER_SIZE <= len(data):
        size = read_header(data, at).size_bytes
        yield at, at + size
        at += size


def repaired(data: bytearray, spans: list[tuple[int, int]]) -> bytearray:
    for begin, end in spans:
        data[begin + 17 : begin + 21] = crc32c(data[begin + CRC_START : end]).to_bytes(4, "big")
    return data


# Shrinking a failure takes long and tells little: the input is small as it is.
search = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@search
@given(inputs())
def test_sound_batches_decode_as_in_plain_python(case: Input) -> None:
    assert compare(case, case.data)


@search
@given(inputs(), st.randoms(use_true_random=False))
def test_cut_off_batches(case: Input, chance: Random) -> None:
    size = len(case.data)
    for cut in (1, 2, chance.randrange(1, size + 1), chance.randrange(1, size + 1)):
        compare(case, case.data[: size - cut])


@search
@given(inputs(), st.randoms(use_true_random=False))
def test_flipped_bytes(case: Input, chance: Random) -> None:
    data = bytearray(case.data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
    compare(case, bytes(data))


@search
@given(inputs(), st.randoms(use_true_random=False))
def test_flipped_bytes_under_a_checksum_that_matches(case: Input, chance: Random) -> None:
    """Batches of faulty clients: nothing but the checks of the records stands between these and the rows."""
    spans = list(batch_positions(case.data))
    for _ in range(8):
        data = bytearray(case.data)
        for _ in range(chance.choice([1, 1, 2, 5])):
            begin, end = chance.choice(spans)
            at = chance.randrange(begin + CRC_START, end)
            data[at] = chance.choice([data[at] ^ (1 << chance.randrange(8)), chance.randrange(256), 0xFF, 0x80, 0])
        compare(case, bytes(repaired(data, spans)))


@search
@given(inputs(lies_in_100=2) | inputs(lies_in_100=10))
def test_numbers_that_lie_under_a_checksum_that_matches(case: Input) -> None:
    compare(case, case.data)
