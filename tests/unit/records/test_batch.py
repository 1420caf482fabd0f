"""Batch headers, builder and compression against each other."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ApiError, CorruptBatch, ErrorCode
from penstock.records import compression
from penstock.records.batch import (
    HEADER_SIZE,
    add_sequence,
    iterate_headers,
    read_header,
    validate_produced,
    with_append_time,
    with_prefix,
)
from penstock.records.builder import (
    MalformedRecords,
    Record,
    build_batch,
    decode_uncompressed,
    iterate_records,
    read_varint,
    write_varint,
)

optional_bytes = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), optional_bytes), max_size=3).map(tuple)
some_records = st.lists(
    st.builds(Record, optional_bytes, optional_bytes, headers, st.integers(0, 2**42), st.just(0)),
    min_size=1,
    max_size=8,
)


@given(some_records)
def test_records_survive_a_batch(records: list[Record]) -> None:
    decoded = decode_uncompressed(build_batch(records, base_offset=100))
    assert [record._replace(offset=0) for record in decoded] == records
    assert [record.offset for record in decoded] == list(range(100, 100 + len(records)))


@given(some_records, st.sampled_from(range(5)), st.sampled_from(range(5)))
def test_recompression_changes_nothing_but_the_codec(records: list[Record], first: int, second: int) -> None:
    plain = build_batch(records, producer_id=4, producer_epoch=1, base_sequence=9)
    once = compression.recompress(read_header(plain), plain, first)
    twice = compression.recompress(read_header(once), once, second)
    header = validate_produced(twice)
    assert header.compression == second
    assert header._replace(batch_length=0, crc=0, attributes=0) == read_header(plain)._replace(
        batch_length=0, crc=0, attributes=0
    )
    payload = compression.decompress(second, twice[HEADER_SIZE:])
    assert [record._replace(offset=0) for record in iterate_records(header, payload)] == records


@pytest.mark.parametrize("size", [0, 63, 64, 1000, 1023, 1024, 8191, 8192, 100_000])
def test_lengths_of_every_size(size: int) -> None:
    data = b"v" * size
    records = [Record(data, data, (("h" * size, data),), timestamp_ms) for timestamp_ms in (size, 0, 2 * size)]
    made = build_batch(records)
    found = iterate_records(validate_produced(made), made[HEADER_SIZE:])
    assert [record._replace(offset=0) for record in found] == records


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(value: int) -> None:
    out = bytearray()
    write_varint(value, out)
    assert read_varint(out, 0) == (value, len(out))


def corrupt(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


BATCH = build_batch([Record(b"k", b"value", timestamp_ms=5), Record(None, None, timestamp_ms=7)])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (BATCH[:-1], ErrorCode.CORRUPT_MESSAGE),
        (BATCH + BATCH, ErrorCode.INVALID_RECORD),
        (corrupt(BATCH, 70), ErrorCode.CORRUPT_MESSAGE),
        (corrupt(BATCH, 25), ErrorCode.CORRUPT_MESSAGE),
        (BATCH[:16] + b"\1" + BATCH[17:], ErrorCode.INVALID_RECORD),
        (BATCH[:16] + b"\7" + BATCH[17:], ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_unsound_batches_are_refused(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        validate_produced(data)
    assert refused.value.code is code


def test_count_must_fit_the_offsets() -> None:
    header = read_header(BATCH)
    from penstock.records.builder import seal

    wrong = seal(header._replace(record_count=7), BATCH[HEADER_SIZE:])
    with pytest.raises(ApiError) as refused:
        validate_produced(wrong)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_iterate_names_the_place_of_damage() -> None:
    data = BATCH + corrupt(BATCH, 70)
    walked = iterate_headers(data, "some.log", position=1000)
    assert next(walked)[0] == 0
    with pytest.raises(CorruptBatch) as damage:
        next(walked)
    assert damage.value.path == "some.log"
    assert damage.value.position == 1000 + len(BATCH)


def test_prefix_leaves_the_checksum_valid() -> None:
    stored = with_prefix(BATCH, 42, 7)
    header = read_header(stored)
    assert (header.base_offset, header.leader_epoch) == (42, 7)
    assert validate_produced(stored).next_offset == 44


def test_append_time_rewrites_what_it_must() -> None:
    stamped = with_append_time(BATCH, 1234567)
    header = validate_produced(stamped)
    assert header.max_timestamp == 1234567
    assert header.attributes & 8
    assert header.base_timestamp == read_header(BATCH).base_timestamp


def test_sequences_wrap() -> None:
    assert add_sequence(2**31 - 1, 1) == 0
    assert add_sequence(2**31 - 3, 5) == 2
    assert add_sequence(-1, 5) == -1


@given(st.binary(max_size=200), st.integers(1, 4))
def test_garbage_is_refused_or_decompressed(data: bytes, codec: int) -> None:
    code = ErrorCode.CORRUPT_MESSAGE
    try:
        compression.decompress(codec, data)
    except ApiError as error:
        code = error.code
    assert code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_does_not_go_off(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = compression.compress(codec, bytes(5_000_000))
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", 1_000_000)
    with pytest.raises(ApiError, match="more than 1000000 bytes"):
        compression.decompress(codec, bomb)


def test_garbage_records_are_refused() -> None:
    chance = random.Random(1)
    header = read_header(BATCH)
    payload = BATCH[HEADER_SIZE:]
    refused = 0
    for _ in range(2000):
        damaged = bytearray(payload)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            list(iterate_records(header, damaged))
        except MalformedRecords:
            refused += 1
    assert refused > 500
