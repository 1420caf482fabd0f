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


def _varint(value: int) -> bytes:
    out = bytearray()
    write_varint(value, out)
    return bytes(out)


_SHORT = tuple(map(_varint, range(1024)))
_NULL = _varint(-1)


def _length(size: int) -> bytes:
    return _SHORT[size] if size < len(_SHORT) else _varint(size)


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


def encode_records(records: Sequence[Record], base_timestamp: int) -> bytes:
    out: list[bytes] = []
    for delta, (key, value, headers, timestamp_ms, _) in enumerate(records):
        later_ms = timestamp_ms - base_timestamp
        body = [b"\0", _length(later_ms) if later_ms >= 0 else _varint(later_ms), _length(delta)]
        body += (_NULL,) if key is None else (_length(len(key)), key)
        body += (_NULL,) if value is None else (_length(len(value)), value)
        body.append(_length(len(headers)))
        for name, text in headers:
            encoded = name.encode()
            body += (_length(len(encoded)), encoded)
            body += (_NULL,) if text is None else (_length(len(text)), text)
        encoded = b"".join(body)
        out += (_length(len(encoded)), encoded)
    return b"".join(out)


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
    payload = encode_records(records, base_timestamp)
    header = HEADER.pack(
        base_offset,
        HEADER_SIZE - LENGTH_OVERHEAD + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        len(records) - 1,
        base_timestamp,
        max(record.timestamp_ms for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return _with_checksum(header, payload)


def seal(header: BatchHeader, payload: Buffer) -> bytes:
    """Header + payload with length and checksum set."""
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(payload)
    return _with_checksum(HEADER.pack(*header._replace(batch_length=length, crc=0)), payload)


def _with_checksum(header: bytes, payload: Buffer) -> bytes:
    out = bytearray(header)
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
