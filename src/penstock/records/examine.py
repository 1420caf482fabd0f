"""Examines a batch record by record: streamed, bounded, and stopped as soon as the answer is known.

A few KB from a client may unpack to millions of records. So nothing here runs on the event loop or in the broker's
threads, which would hold the interpreter: the record process runs these functions (`ports.workers.RecordWorkers`).
They take and return plain values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, TIMESTAMP_TYPE_BIT, BatchHeader, read_header
from penstock.records.builder import MalformedRecords, read_varint
from penstock.records.compression import stream

MAX_RECORDS = 1_000_000  # limit for a produced batch: takes seconds
MAX_RECORDS_LOOKED_UP = 100_000  # limit for a lookup: a client looks up many batches at once
MAX_MISSING = 1000  # limit of keyless records reported to the producer


class TooManyRecords(ApiError):
    def __init__(self, most: int) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, f"more than {most} records in one batch")
        self._most = most

    def __reduce__(self) -> tuple[type[TooManyRecords], tuple[int]]:
        return TooManyRecords, (self._most,)


class TookTooLong(ApiError):
    """The batch is within its bounds but takes too long. A retry does not help."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, "the records of the batch take too long to examine")

    def __reduce__(self) -> tuple[type[TookTooLong], tuple[()]]:
        return TookTooLong, ()


class Head(NamedTuple):
    """The first fields of a record."""

    timestamp_delta: int
    offset_delta: int
    has_key: bool


def whole_records(header: BatchHeader, payload: Buffer) -> Iterator[tuple[bytes, int, int]]:
    """Yield (data, start, end) of each record after its length, decompressed only as far as needed.

    Raises MalformedRecords if the bytes are not records, ApiError if they do not decompress.
    """
    pieces: list[bytes] = []  # joined once they contain a whole record, whatever its size
    have, need, count = 0, 1, 0
    for piece in stream(header.compression, payload):
        pieces.append(piece)
        have += len(piece)
        if have < need:
            continue
        data, at = pieces[0] if len(pieces) == 1 else b"".join(pieces), 0
        while True:
            start, end = _next_record(data, at)
            if end > len(data):
                break
            if count == header.record_count:
                raise MalformedRecords(f"more than the {count} records of the header")
            yield data, start, end
            count += 1
            at = end
        pieces, have, need = [data[at:]], len(data) - at, end - at
    if have or count != header.record_count:
        raise MalformedRecords(f"{count} records and {have} bytes, expected {header.record_count} records")


def heads(header: BatchHeader, payload: Buffer, most: int, *, is_strict: bool = False) -> Iterator[Head]:
    """Yield the heads of up to `most` records; then TooManyRecords. Strict: the rest of each record is checked too."""
    if header.record_count > most and is_strict:
        raise TooManyRecords(most)
    for count, (data, start, end) in enumerate(whole_records(header, payload)):
        if count == most:
            raise TooManyRecords(most)
        yield _head(data, start, end, is_strict=is_strict)


def _next_record(data: bytes, at: int) -> tuple[int, int]:
    """(start, end) of the record at `at` after its length; an end beyond the data means it is incomplete."""
    byte = data[at] if at < len(data) else 0x80
    if byte < 0x80:
        size, at = (byte >> 1) ^ -(byte & 1), at + 1
    else:
        try:
            size, at = read_varint(data, at)
        except MalformedRecords:
            if len(data) - at > 10:
                raise
            return at, len(data) + 1
    if size < 0:
        raise MalformedRecords(f"record of {size} bytes")
    return at, at + size


def _head(data: bytes, at: int, end: int, *, is_strict: bool) -> Head:
    timestamp_delta, at = read_varint(data, at + 1)
    offset_delta, at = read_varint(data, at)
    key_size, at = read_varint(data, at)
    if is_strict:
        at += max(key_size, 0)
        at = _skip(data, at, end)
        count, at = read_varint(data, at)
        if not 0 <= count <= end - at:
            raise MalformedRecords(f"{count} headers")
        for _ in range(count):
            at = _skip(data, _skip(data, at, end, is_nullable=False), end)
        if at != end:
            raise MalformedRecords(f"record ends at {at}, not at {end}")
    elif at > end:
        raise MalformedRecords(f"record ends at {at}, not at {end}")
    return Head(timestamp_delta, offset_delta, key_size >= 0)


def _skip(data: bytes, at: int, end: int, *, is_nullable: bool = True) -> int:
    size, at = read_varint(data, at)
    if at + size > end or (size < 0 and not is_nullable):
        raise MalformedRecords(f"{size} bytes at {at} run past the end of the record")
    return at + max(size, 0)


# -- queries ----------------------------------------------------------------------------


def first_at_or_after(batch: bytes, timestamp: int, min_offset: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record with at least this timestamp, from `min_offset` on.

    None if there is none, or if a client framed its records wrongly: such a batch has no timestamps. If a batch has too
    many records to examine, the result is its first record, so that a reader misses nothing.
    """
    header = read_header(batch)
    has_one_time = header.attributes & TIMESTAMP_TYPE_BIT
    try:
        for head in heads(header, memoryview(batch)[HEADER_SIZE:], MAX_RECORDS_LOOKED_UP):
            time_ms = header.max_timestamp if has_one_time else header.base_timestamp + head.timestamp_delta
            offset = header.base_offset + head.offset_delta
            if time_ms >= timestamp and offset >= min_offset:
                return time_ms, offset
    except (TooManyRecords, TookTooLong):
        return header.max_timestamp, max(header.base_offset, min_offset)
    except (MalformedRecords, ApiError):
        return None
    return None


def largest(batch: bytes) -> tuple[int, int]:
    """(timestamp, offset) of the first record with the batch's largest timestamp, else of the batch's end."""
    header = read_header(batch)
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return header.max_timestamp, header.base_offset
    try:
        for head in heads(header, memoryview(batch)[HEADER_SIZE:], MAX_RECORDS_LOOKED_UP):
            if header.base_timestamp + head.timestamp_delta == header.max_timestamp:
                return header.max_timestamp, header.base_offset + head.offset_delta
    except (MalformedRecords, ApiError):
        pass
    return header.max_timestamp, header.last_offset


def keyless(header: BatchHeader, records: Buffer) -> list[int]:
    """Indexes of the first `MAX_MISSING` records without a key. Raises ApiError if the bytes are not records."""
    missing: list[int] = []
    try:
        for index, head in enumerate(heads(header, memoryview(records)[HEADER_SIZE:], MAX_RECORDS, is_strict=True)):
            if not head.has_key and len(missing) < MAX_MISSING:
                missing.append(index)
    except MalformedRecords as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
    return missing
