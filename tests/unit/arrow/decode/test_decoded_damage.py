"""Bytes that cannot be rows: refused, and the message says which batch and why."""

from __future__ import annotations

import pickle
import struct

import pytest

from penstock.arrow.decode import KAFKA_SCHEMA, BatchDecoder, CorruptRecordBatch
from penstock.model.errors import CorruptBatch
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.records.builder import Record, build_batch, seal, write_varint
from penstock.records.compression import ZSTD, recompress

FAR = 2**63 - 1
GOOD = build_batch([Record(b"k", b"v")] * 10)
NEXT = build_batch([Record(b"k", b"v")] * 3, base_offset=10)


def refusal(data: bytes, end: int = FAR, read_committed: bool = False) -> CorruptRecordBatch:
    with pytest.raises(CorruptRecordBatch) as caught:
        BatchDecoder(KAFKA_SCHEMA, "clicks", 4).decode(data, 0, end, (), read_committed)
    assert isinstance(caught.value, CorruptBatch)
    return caught.value


def changed(batch: bytes, **fields: int) -> bytes:
    """The batch with other words in its header and a checksum that matches."""
    return seal(read_header(batch)._replace(**fields), batch[HEADER_SIZE:])


def with_payload(payload: bytes, count: int = 1) -> bytes:
    header: BatchHeader = read_header(NEXT)
    return seal(header._replace(record_count=count), payload)


def varints(*values: int | bytes) -> bytes:
    out = bytearray()
    for value in values:
        if isinstance(value, bytes):
            out += value
        else:
            write_varint(value, out)
    return bytes(out)


def record(*body: int | bytes) -> bytes:
    content = b"\0" + varints(*body)
    return varints(len(content)) + content


def test_message_names_topic_partition_and_offset() -> None:
    error = refusal(GOOD + NEXT[:-1] + bytes([NEXT[-1] ^ 1]))
    assert str(error) == (
        "corrupt record batch in topic 'clicks' partition 4 at base offset 10: checksum does not match"
    )
    assert (error.topic, error.partition, error.base_offset, error.reason) == (
        "clicks",
        4,
        10,
        "checksum does not match",
    )
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.base_offset) == (CorruptRecordBatch, str(error), 10)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_by_name(magic: int) -> None:
    message = struct.pack(">qiIbb", 7, 20, 0, magic, 0) + bytes(14)
    error = refusal(message)
    assert error.base_offset == 7
    assert f"message format v{magic}" in error.reason


@pytest.mark.parametrize(
    ("data", "base_offset", "reason"),
    [
        (GOOD + NEXT[:16] + b"\x07" + NEXT[17:], 10, "magic 7"),
        (GOOD[:40], 0, "only 40 bytes of it are there"),
        (GOOD[:5], 0, "only 5 bytes of it are there"),
        (GOOD[:-1], 0, f"{len(GOOD) - 1} bytes are there"),
        (GOOD + NEXT[:8] + struct.pack(">i", 3) + NEXT[12:], 10, "batch length 3"),
        (GOOD + NEXT[:8] + struct.pack(">i", -1) + NEXT[12:], 10, "batch length -1"),
        (GOOD + changed(NEXT, last_offset_delta=-1), 10, "last offset delta -1"),
        (GOOD + changed(NEXT, record_count=-5), 10, "-5 records"),
        (changed(NEXT, base_offset=-3), -3, "last offset delta 2"),
        (changed(NEXT, base_offset=FAR), FAR, "last offset delta 2"),
        (GOOD + changed(NEXT, base_offset=9), 9, "base offset is before 10"),
        (GOOD + changed(NEXT, attributes=5), 10, "unknown compression codec 5"),
        (GOOD + changed(NEXT, attributes=3), 10, "lz4 payload does not decompress"),
        (changed(NEXT, record_count=4), 10, "record 3 at byte"),
    ],
)
def test_headers_that_cannot_be(data: bytes, base_offset: int, reason: str) -> None:
    error = refusal(data)
    assert reason in error.reason
    assert error.base_offset == base_offset


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "length runs past the end"),
        (varints(500) + bytes(20), "length runs past the end"),
        (varints(-1) + bytes(20), "length runs past the end"),
        (varints(2**63 - 1) + bytes(20), "length runs past the end"),
        (b"\x80" * 12 + bytes(20), "length runs past the end"),
        (varints(0), "timestamp runs past"),
        (record(0), "offset runs past"),
        (record(0, -1, -1, -1, 0), "offset is not between"),
        (record(0, 3, -1, -1, 0), "offset is not between"),
        (record(0, 0, 9, b"key", -1, 0), "key runs past"),
        (record(0, 0, 2**63 - 1, b"key", -1, 0), "key runs past"),
        (record(0, 0, -1, 9, b"value", 0), "value runs past"),
        (record(0, 0, -1, -1), "number of headers"),
        (record(0, 0, -1, -1, -1), "number of headers"),
        (record(0, 0, -1, -1, 2**62), "number of headers"),
        (record(0, 0, -1, -1, 1, -1, -1), "a header runs past its end or has no name"),
        (record(0, 0, -1, -1, 1, 1, b"n", 5, b"abc"), "a header runs past its end"),
        (record(0, 0, -1, -1, 0, b"more"), "parts do not fill"),
        (record(0, 0, -1, -1, 0) + b"\0", "bytes follow the last record"),
    ],
)
def test_records_that_cannot_be(payload: bytes, reason: str) -> None:
    plain = with_payload(payload)
    for batch in (plain, recompress(read_header(plain), plain, ZSTD)):
        error = refusal(GOOD + batch)
        assert reason in error.reason
        assert error.base_offset == 10


def test_offsets_within_a_batch_grow() -> None:
    one = record(0, 1, -1, -1, 0)
    assert "record 1 at byte 7 of the records: its offset" in refusal(with_payload(one + one, 2)).reason


def test_control_batch_without_a_type() -> None:
    batch = build_batch([Record(b"\0", b"")], attributes=0x30, producer_id=1)
    assert "control record without a type" in refusal(batch, read_committed=True).reason


def test_damage_outside_the_window_is_not_looked_at() -> None:
    decoder = BatchDecoder(KAFKA_SCHEMA, "clicks", 4)
    assert decoder.decode(GOOD + b"\xff" * 100, 0, 10).rows == 10
    hole = bytearray(changed(NEXT, base_offset=50))
    hole[-1] ^= 1
    assert decoder.decode(GOOD + hole, 0, 20).next_offset == 53
