"""Read a partition of an internal topic: the last value of every key, in the order of the log.

A compacted topic may have lost every older value of a key, so whoever replays it must do with
the last one; then older ones need not even be decoded, and a log that has not been compacted
for long loads in the time it takes to walk it.
"""

from __future__ import annotations

from penstock.model.errors import ApiError, StorageError
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, iterate_headers
from penstock.records.builder import MalformedRecords, iterate_records
from penstock.records.compression import decompress
from penstock.storage.lookups import Lookup
from penstock.storage.slices import LogSlice, verify

Latest = dict[bytes, bytes | None]


def read_latest(lookup: Lookup, latest: Latest) -> int | None:
    """Add what is found there; the offset to go on from, or None at the end. Blocks. Raises StorageError, OSError."""
    piece = lookup.run()
    return None if piece is None else _add_slice(piece, latest)


def _add_slice(piece: LogSlice, latest: Latest) -> int:
    sound = verify(piece, may_have_gaps=True)
    data = memoryview(sound.read())
    for at, header in iterate_headers(data, sound.segment.path, sound.position):
        if header.is_control:
            continue
        payload: Buffer = data[at + HEADER_SIZE : at + header.size_bytes]
        try:
            if header.compression:
                payload = decompress(header.compression, payload)
            _add(header, payload, latest)
        except (MalformedRecords, ApiError) as error:
            raise StorageError(f"{sound.segment.path} at position {sound.position + at}: {error}") from error
    return sound.next_offset


def _add(header: BatchHeader, payload: Buffer, latest: Latest) -> None:
    """`iterate_records` without what is not needed: most records have lengths of one or two bytes."""
    data = bytes(payload)
    at, size = 0, len(data)
    try:
        for _ in range(header.record_count):
            length, at = _varint(data, at)
            end = at + length
            at += 1  # attributes
            while data[at] > 0x7F:  # timestamp delta
                at += 1
            at += 1
            while data[at] > 0x7F:  # offset delta
                at += 1
            at += 1
            length, at = _varint(data, at)
            if length < 0:
                at = end  # a record without a key says nothing here
                continue
            key = data[at : at + length]
            at += length
            length, at = _varint(data, at)
            if at + max(length, 0) > end or end > size:
                raise MalformedRecords("a record runs past its end")
            latest.pop(key, None)  # the order is that of the last mention
            latest[key] = data[at : at + length] if length >= 0 else None
            at = end
    except IndexError:
        raise MalformedRecords("the records run past the end of their batch") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7


def reference_latest(header: BatchHeader, payload: Buffer, latest: Latest) -> None:
    """What `_add` does, in plain words: a test compares the two."""
    for record in iterate_records(header, payload):
        if record.key is not None:
            latest.pop(record.key, None)
            latest[record.key] = record.value
