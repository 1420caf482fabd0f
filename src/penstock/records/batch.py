"""The header of a v2 record batch, read in place.

    byte  size  field                  written by
    0     8     base offset            broker, on append
    8     4     batch length           producer (bytes after this field)
    12    4     partition leader epoch broker, on append
    16    1     magic (2)              producer
    17    4     CRC-32C                producer; covers byte 21 to the end
    21    2     attributes             producer (bit 3 by the broker for LogAppendTime)
    23    4     last offset delta      producer
    27    8     base timestamp         producer
    35    8     max timestamp          producer (broker for LogAppendTime)
    43    8     producer id            producer, -1 without idempotence
    51    2     producer epoch         producer
    53    4     base sequence          producer
    57    4     record count           producer
    61          records, compressed as one block

The broker's fields are outside the checksum, so a batch is stored with one vectored
write of a new 16-byte prefix and the producer's own bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.model.errors import ApiError, CorruptBatch, ErrorCode
from penstock.ports.disk import Buffer

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
PREFIX = Struct(">qii")  # base offset, batch length, leader epoch
PREFIX_SIZE = 16
LENGTH_OVERHEAD = 12  # bytes before and in the length field
CRC_START = 21
MAGIC = 2

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

MIN_RECORD_BYTES = 7  # one byte each: length, attributes, two deltas, two null lengths, header count
# Maximum expansion of one byte, by codec.
MAX_RATIOS = (1, 1040, 64, 260, 1 << 16, 1 << 16, 1 << 16, 1 << 16)

NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1
NO_SEQUENCE = -1


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        return add_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)


_header: Callable[[Iterable[int]], BatchHeader] = partial(tuple.__new__, BatchHeader)
"""Like `BatchHeader._make`, without a Python frame: `HEADER` has the same number of fields."""


def add_sequence(sequence: int, delta: int) -> int:
    """Sequence numbers wrap from 2^31-1 to 0."""
    if sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (sequence + delta) & 0x7FFFFFFF


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    return _header(HEADER.unpack_from(data, position))


def validate_produced(data: Buffer) -> BatchHeader:
    """Check a producer's data: exactly one whole, valid v2 batch. Raises ApiError."""
    size = len(data)
    if size < HEADER_SIZE:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are too few for a record batch")
    header = _header(HEADER.unpack_from(data, 0))
    if header.magic != MAGIC:
        code = ErrorCode.INVALID_RECORD if header.magic in (0, 1) else ErrorCode.CORRUPT_MESSAGE
        raise ApiError(code, f"record batch magic {header.magic}: only magic 2 is accepted")
    if header.batch_length != size - LENGTH_OVERHEAD:
        if HEADER_SIZE <= header.batch_length + LENGTH_OVERHEAD < size:
            raise ApiError(
                ErrorCode.INVALID_RECORD, "a produce request must contain exactly one record batch per partition"
            )
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length} does not fit {size} bytes")
    if crc32c(memoryview(data)[CRC_START:]) != header.crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "record batch checksum does not match")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"record count {header.record_count} does not fit last offset delta {header.last_offset_delta}",
        )
    codec = header.attributes & COMPRESSION_MASK
    if header.record_count * MIN_RECORD_BYTES > (size - HEADER_SIZE) * (MAX_RATIOS[codec] if codec else 1):
        raise ApiError(ErrorCode.INVALID_RECORD, f"{header.record_count} records do not fit into {size} bytes")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} with sequence {header.base_sequence}, epoch {header.producer_epoch}",
        )
    return header


def iterate_headers(data: Buffer, path: str, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Walk the whole batches of `data`, checking every checksum.

    Yields (position in `data`, header). Raises CorruptBatch, with `position` + the position in `data`, at the first
    batch that is torn or damaged.
    """
    view = memoryview(data)
    at, end = 0, len(view)
    while at < end:
        if end - at < HEADER_SIZE:
            raise CorruptBatch(path, position + at, f"{end - at} bytes are too few for a header")
        header = _header(HEADER.unpack_from(view, at))
        size = header.batch_length + LENGTH_OVERHEAD
        if header.magic != MAGIC or size < HEADER_SIZE:
            raise CorruptBatch(path, position + at, f"magic {header.magic}, batch length {header.batch_length}")
        if at + size > end:
            raise CorruptBatch(path, position + at, f"a batch of {size} bytes, only {end - at} remain")
        if crc32c(view[at + CRC_START : at + size]) != header.crc:
            raise CorruptBatch(path, position + at, "checksum does not match")
        yield at, header
        at += size


def with_prefix(data: Buffer, base_offset: int, leader_epoch: int) -> bytes:
    """A batch as it is on disk (reference for the vectored write in `storage.log`)."""
    view = memoryview(data)
    return PREFIX.pack(base_offset, len(view) - LENGTH_OVERHEAD, leader_epoch) + view[PREFIX_SIZE:]


def with_append_time(data: Buffer, now_ms: int) -> bytearray:
    """The batch with `message.timestamp.type=LogAppendTime`: new bit, max timestamp and checksum."""
    out = bytearray(data)
    attributes = int.from_bytes(out[21:23], "big") | TIMESTAMP_TYPE_BIT
    out[21:23] = attributes.to_bytes(2, "big")
    out[35:43] = now_ms.to_bytes(8, "big", signed=True)
    out[17:21] = crc32c(memoryview(out)[CRC_START:]).to_bytes(4, "big")
    return out
