"""Looking into batches: the same answers as the plain way, no more work than needed, and bounds."""

from __future__ import annotations

from random import Random

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.records import compression, decoding, examine
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header, validate_produced
from penstock.records.builder import MalformedRecords, Record, build_batch, iterate_records, seal
from penstock.records.compression import NAMES, ZSTD, compress, recompress
from penstock.records.decoding import Aborted, Limits

CODECS = range(len(NAMES))
NOW_MS = 1_700_000_000_000


def packed(codec: int, records: list[Record], base_offset: int = 1000) -> bytes:
    data = build_batch(records, base_offset=base_offset)
    return recompress(read_header(data), data, codec)


def some_records(seed: int, count: int = 300, largest: int = 3000) -> list[Record]:
    random = Random(seed)
    return [
        Record(
            None if random.random() < 0.2 else random.randbytes(random.randrange(40)),
            None if random.random() < 0.1 else random.randbytes(random.randrange(largest)),
            (("name", None), ("other", b"x" * random.randrange(200))) if random.random() < 0.3 else (),
            NOW_MS + random.randrange(1000),
        )
        for _ in range(count)
    ]


def bomb(count: int, codec: int = ZSTD, key: bool = False) -> bytes:
    """A few bytes that unpack to very many records."""
    one = b"\x0e\x00\x00\x00\x02k\x01\x00" if key else b"\x0c\x00\x00\x00\x01\x01\x00"
    header = BatchHeader(0, 0, 0, 2, 0, codec, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count)
    return seal(header, compress(codec, one * count))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_answers_as_the_plain_way(codec: int, seed: int) -> None:
    records = some_records(seed)
    batch = packed(codec, records)
    header = read_header(batch)
    payload = compression.decompress(header.compression, memoryview(batch)[HEADER_SIZE:])
    plain = list(iterate_records(header, payload))
    for timestamp in (NOW_MS, NOW_MS + 500, header.max_timestamp, header.max_timestamp + 1):
        for min_offset in (0, 1150):
            expected = next(
                (
                    (one.timestamp_ms, one.offset)
                    for one in plain
                    if one.timestamp_ms >= timestamp and one.offset >= min_offset
                ),
                None,
            )
            assert examine.first_at_or_after(batch, timestamp, min_offset) == expected
    largest = next(one for one in plain if one.timestamp_ms == header.max_timestamp)
    assert examine.largest(batch) == (largest.timestamp_ms, largest.offset)
    assert examine.keyless(header, batch) == [index for index, one in enumerate(plain) if one.key is None]
    assert decoding.decode(batch, 0, ()) == (plain, 1300)
    assert decoding.decode(batch, 1234, ()).records == plain[234:]
    assert b"".join(compression.stream(codec, memoryview(batch)[HEADER_SIZE:])) == payload


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_larger_than_any_piece(codec: int) -> None:
    records = [Record(b"a", Random(1).randbytes(1_000_000), (), NOW_MS), Record(None, b"z", (), NOW_MS + 5)]
    batch = packed(codec, records)
    assert [one.value for one in decoding.decode(batch, 0, ()).records] == [one.value for one in records]
    assert examine.first_at_or_after(batch, NOW_MS + 1, 0) == (NOW_MS + 5, 1001)


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4, ZSTD])
def test_no_more_is_unpacked_than_is_needed(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = bomb(2_000_000, codec)
    assert len(batch) < 100_000
    unpacked = 0

    def counting(kind: int, payload: object) -> object:
        nonlocal unpacked
        for piece in compression.stream(kind, payload):  # type: ignore[arg-type]
            unpacked += len(piece)
            yield piece

    monkeypatch.setattr(examine, "stream", counting)
    assert examine.first_at_or_after(batch, NOW_MS, 0) == (NOW_MS, 0)
    assert examine.largest(batch) == (NOW_MS, 0)
    assert len(decoding.decode(batch, 0, (), Limits(100, 1 << 20)).records) == 100
    assert unpacked < 300_000


def test_records_beyond_the_bound_are_not_walked_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "MAX_RECORDS", 1000)
    monkeypatch.setattr(examine, "MAX_RECORDS_LOOKED_UP", 1000)
    batch = bomb(1001, key=True)
    with pytest.raises(ApiError) as refused:
        examine.keyless(read_header(batch), batch)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert examine.first_at_or_after(batch, NOW_MS + 1, 0) == (NOW_MS, 0), "the batch, not the record"
    assert examine.first_at_or_after(batch, NOW_MS + 1, 7) == (NOW_MS, 7)
    batch = bomb(1000, key=True)
    assert examine.keyless(read_header(batch), batch) == []
    assert examine.first_at_or_after(batch, NOW_MS + 1, 0) is None


def test_a_lookup_walks_over_fewer_records_than_a_producers_batch_may_have() -> None:
    batch = bomb(examine.MAX_RECORDS_LOOKED_UP + 1, key=True)
    assert examine.first_at_or_after(batch, NOW_MS + 1, 0) == (NOW_MS, 0), "the batch, not the record"
    assert examine.keyless(read_header(batch), batch) == []


def test_bytes_beyond_the_bound_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", 100_000)
    batch = bomb(100_000)
    for codec in (compression.GZIP, compression.LZ4, ZSTD, compression.SNAPPY):
        with pytest.raises(ApiError):
            for _ in compression.stream(codec, compress(codec, bytes(200_000))):
                pass
    with pytest.raises(ApiError):
        examine.keyless(read_header(batch), batch)
    assert examine.first_at_or_after(batch, NOW_MS + 1, 0) is None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("claimed", [2, 4, 4000])
def test_a_count_that_lies_is_found_out(codec: int, claimed: int) -> None:
    batch = packed(codec, [Record(b"k", b"v", (), NOW_MS)] * 3)
    header = read_header(batch)._replace(record_count=claimed)
    with pytest.raises(ApiError) as refused:
        examine.keyless(header, batch)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(MalformedRecords):
        list(examine.whole_records(header, memoryview(batch)[HEADER_SIZE:]))


@pytest.mark.parametrize(("codec", "claimed"), [(0, 100), (1, 1_000_000), (2, 1_000_000), (3, 1_000_000)])
def test_more_records_than_can_be_in_so_few_bytes_are_refused_when_they_are_produced(codec: int, claimed: int) -> None:
    payload = compress(codec, b"\x0c\x00\x00\x00\x01\x01\x00" * 3)
    header = BatchHeader(0, 0, 0, 2, 0, codec, claimed - 1, NOW_MS, NOW_MS, -1, -1, -1, claimed)
    with pytest.raises(ApiError) as refused:
        validate_produced(seal(header, payload))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    validate_produced(seal(header._replace(record_count=3, last_offset_delta=2), payload))


@pytest.mark.parametrize("codec", [compression.GZIP, compression.SNAPPY, compression.LZ4, ZSTD])
def test_what_really_packs_that_well_is_taken(codec: int) -> None:
    validate_produced(bomb(1_000_000, codec))


def test_a_portion_ends_in_the_middle_of_a_batch_and_goes_on_there() -> None:
    records = some_records(3, 100)
    batch = packed(ZSTD, records) + packed(ZSTD, records, base_offset=1100)
    everything = decoding.decode(batch, 0, ()).records
    offset, read = 1000, []
    while True:
        portion = decoding.decode(batch, offset, (), Limits(7, 1 << 30))
        if not portion.records:
            break
        assert len(portion.records) <= 7
        read += portion.records
        offset = portion.next_offset
    assert read == everything
    assert offset == 1200
    portion = decoding.decode(batch, 1000, (), Limits(1 << 30, 1))
    assert len(portion.records) == 1, "one, whatever its size"


def test_aborted_transactions_and_markers_are_left_out() -> None:
    def of(producer: int, base_offset: int, attributes: int) -> bytes:
        record = Record(b"k", b"%d" % base_offset, (), NOW_MS)
        return build_batch(
            [record],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            attributes=attributes,
            base_offset=base_offset,
        )

    data = of(1, 0, 0x10) + of(2, 1, 0x10) + of(1, 2, 0x30) + of(1, 3, 0x10) + of(2, 4, 0x30)
    decoded = decoding.decode(data, 0, [Aborted(0, 1)])
    assert [one.offset for one in decoded.records] == [1, 3]
    assert decoded.next_offset == 5

    # A fetch that begins with the marker of an aborted transaction does not hide what its producer commits later.
    behind = of(1, 2, 0x30) + of(1, 3, 0x10) + of(1, 4, 0x30)
    decoded = decoding.decode(behind, 2, [Aborted(0, 1)])
    assert [one.offset for one in decoded.records] == [3]


def test_what_is_little_is_decoded_in_place() -> None:
    few = packed(0, [Record(b"k", b"v", (), NOW_MS)] * 10)
    assert decoding.is_little(few)
    assert decoding.is_little(few[:100])
    assert decoding.is_little(b"")
    assert not decoding.is_little(packed(ZSTD, [Record(b"k", b"v", (), NOW_MS)]))
    assert not decoding.is_little(packed(0, [Record(b"k", b"", (), NOW_MS)] * 501))
    assert not decoding.is_little(packed(0, [Record(b"k", bytes(70_000), (), NOW_MS)]))
