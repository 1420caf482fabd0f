"""Build and parse record batches record by record.

For the few places that handle single records (metadata log, recompression, tests, tools).
The data path does not use this: its unit is the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from penstock.ports.disk import Buffer
from penstock.records.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader, read_header


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    offset: int = 0


class MalformedRecords(ValueError):
    """The bytes inside a batch are not valid records. The checksum may still match: then it is a client bug."""


def write_varint(value: int, out: bytearray) -> None:
    """Zigzag varint, as inside records."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise MalformedRecords("varint runs past the end")
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at
        shift += 7


def _write_bytes(value: bytes | None, out: bytearray) -> None:
    if value is None:
        write_varint(-1, out)
    else:
        write_varint(len(value), out)
        out += value


def encode_records(records: Sequence[Record], base_timestamp: int) -> bytearray:
    out = bytearray()
    for delta, record in enumerate(records):
        body = bytearray(b"\0")
        write_varint(record.timestamp_ms - base_timestamp, body)
        write_varint(delta, body)
        _write_bytes(record.key, body)
        _write_bytes(record.value, body)
        write_varint(len(record.headers), body)
        for name, value in record.headers:
            _write_bytes(name.encode(), body)
            _write_bytes(value, body)
        write_varint(len(body), out)
        out += body
    return out


def build_batch(
    records: Sequence[Record],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """An uncompressed batch. `attributes` may carry the transactional and control bits."""
    base_timestamp = records[0].timestamp_ms
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp_ms for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return seal(header, encode_records(records, base_timestamp))


def seal(header: BatchHeader, payload: Buffer) -> bytes:
    """Header + payload with length and checksum set."""
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(payload)
    out = bytearray(HEADER.pack(*header._replace(batch_length=length, crc=0)))
    out += payload
    out[17:21] = crc32c(memoryview(out)[CRC_START:]).to_bytes(4, "big")
    return bytes(out)


def iterate_records(header: BatchHeader, payload: Buffer) -> Iterator[Record]:
    """The records of a decompressed payload. Every length is checked: MalformedRecords."""
    at = 0
    for _ in range(header.record_count):
        size, at = read_varint(payload, at)
        end = at + size
        if size < 0 or end > len(payload):
            raise MalformedRecords(f"record of {size} bytes at {at} runs past the end")
        yield read_record(header, payload, at, end)
        at = end
    if at != len(payload):
        raise MalformedRecords(f"{len(payload) - at} bytes after the last record")


def read_record(header: BatchHeader, payload: Buffer, at: int, end: int) -> Record:
    """The record from `at`, after its length, to `end`. Raises MalformedRecords."""
    at += 1  # attributes, unused
    timestamp_delta, at = read_varint(payload, at)
    offset_delta, at = read_varint(payload, at)
    key, at = _read_bytes(payload, at, end)
    value, at = _read_bytes(payload, at, end)
    count, at = read_varint(payload, at)
    if not 0 <= count <= end - at:
        raise MalformedRecords(f"{count} headers")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(payload, at, end)
        header_value, at = _read_bytes(payload, at, end)
        if name is None:
            raise MalformedRecords("header without a name")
        headers.append((name.decode("utf-8", "replace"), header_value))
    if at != end:
        raise MalformedRecords(f"record ends at {at}, not at {end}")
    return Record(
        key, value, tuple(headers), header.base_timestamp + timestamp_delta, header.base_offset + offset_delta
    )


def _read_bytes(data: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise MalformedRecords(f"{size} bytes at {at} run past the end of the record")
    return bytes(data[at : at + size]), at + size


def decode_uncompressed(data: Buffer) -> list[Record]:
    """All records of one uncompressed batch."""
    return list(iterate_records(read_header(data), memoryview(data)[HEADER_SIZE:]))
