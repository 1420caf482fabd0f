"""Reads a partition of an internal topic: the last value of every key, in the order of the log.

A compacted topic may have lost older values of a key, so a replay must work with the last one alone. Then older values
need not be decoded, and a log that has not been compacted for long loads in the time it takes to read it.

Records of a transaction count from its commit marker on, but in their order in the log: the late commit does not
overwrite a later record outside of transactions. Records of transactions that are open at the end of the log are
returned separately.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.model.errors import ApiError, StorageError
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, iterate_headers
from penstock.records.builder import MalformedRecords, iterate_records
from penstock.records.compression import decompress
from penstock.records.control import COMMIT, read_marker
from penstock.storage.segments.lookups import Lookup
from penstock.storage.segments.slices import LogSlice, verify

Records = dict[bytes, bytes | None]


class Pending(NamedTuple):
    value: bytes | None
    base_offset: int
    """The base offset of its batch."""


class Latest:
    """The values read so far."""

    def __init__(self) -> None:
        self.records: Records = {}
        self._open: dict[int, dict[bytes, Pending]] = {}  # by producer id

    def __len__(self) -> int:
        return len(self.records)

    def add_batch(self, header: BatchHeader, payload: Buffer) -> None:
        if header.is_transactional:
            found: Records = {}
            _add(header, payload, found)
            pending = self._open.setdefault(header.producer_id, {})
            for key, value in found.items():
                pending[key] = Pending(value, header.base_offset)
        elif self._open:
            found = {}
            _add(header, payload, found)
            for key, value in found.items():
                self._set(key, value, header.base_offset)
        else:
            _add(header, payload, self.records)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        ended = self._open.pop(producer_id, {})
        if is_commit:
            for key, (value, base_offset) in ended.items():
                self._set(key, value, base_offset)

    def _set(self, key: bytes, value: bytes | None, base_offset: int) -> None:
        """This value counts; earlier pending values are void."""
        self.records.pop(key, None)  # ordered by the last occurrence
        self.records[key] = value
        for pending in self._open.values():
            if key in pending and pending[key].base_offset < base_offset:
                del pending[key]

    def still_open(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        """(producer id, key, value) of transactions without a marker."""
        in_order = sorted(
            (value.base_offset, producer_id, key, value.value)
            for producer_id, pending in self._open.items()
            for key, value in pending.items()
        )
        for _, producer_id, key, value in in_order:
            yield producer_id, key, value


def read_latest(lookup: Lookup, latest: Latest) -> int | None:
    """Add the records found there. Returns the next offset, or None at the end. Blocks. Raises StorageError,
    OSError.
    """
    piece = lookup.run()
    return None if piece is None else _add_slice(piece, latest)


def _add_slice(piece: LogSlice, latest: Latest) -> int:
    sound = verify(piece, may_have_gaps=True)
    data = memoryview(sound.read())
    for at, header in iterate_headers(data, sound.segment.path, sound.position):
        payload: Buffer = data[at + HEADER_SIZE : at + header.size_bytes]
        try:
            if header.is_control:
                marker = read_marker(header, payload)
                if marker is not None:
                    latest.end_transaction(header.producer_id, is_commit=marker.kind == COMMIT)
                continue
            if header.compression:
                payload = decompress(header.compression, payload)
            latest.add_batch(header, payload)
        except (MalformedRecords, ApiError) as error:
            raise StorageError(f"{sound.segment.path} at position {sound.position + at}: {error}") from error
    return sound.next_offset


def _add(header: BatchHeader, payload: Buffer, latest: Records) -> None:
    """A faster `iterate_records` for this purpose: most records have lengths of one or two bytes."""
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
                at = end  # a record without a key is ignored
                continue
            key = data[at : at + length]
            at += length
            length, at = _varint(data, at)
            if at + max(length, 0) > end or end > size:
                raise MalformedRecords("a record runs past its end")
            latest.pop(key, None)  # ordered by the last occurrence
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


def reference_latest(header: BatchHeader, payload: Buffer, latest: Records) -> None:
    """A plain version of `_add`: a test compares the two."""
    for record in iterate_records(header, payload):
        if record.key is not None:
            latest.pop(record.key, None)
            latest[record.key] = record.value
