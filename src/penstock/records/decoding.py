"""Decodes the records of fetched batches, as many as a reader can take at once. Runs in the record process or in place.

Returns committed data: records of aborted transactions and control records are left out. Must not know: connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.records.builder import MalformedRecords, Record, read_record, read_varint
from penstock.records.examine import whole_records

FEW_RECORDS = 500
FEW_BYTES = 64 << 10


class Aborted(NamedTuple):
    """An aborted transaction."""

    first_offset: int
    producer_id: int


class Limits(NamedTuple):
    """Limits of one result; at least one record is returned, whatever its size."""

    records: int
    bytes: int


UNLIMITED = Limits(1 << 62, 1 << 62)


class Decoded(NamedTuple):
    records: list[Record]
    next_offset: int
    """The offset after everything examined; inside a batch if a limit was reached."""


def is_little(data: Buffer) -> bool:
    """Whether decoding is quick: few records, uncompressed."""
    view = memoryview(data)
    if len(view) > FEW_BYTES:
        return False
    count = at = 0
    while len(view) - at >= HEADER_SIZE:
        header = read_header(view, at)
        count += header.record_count
        if header.compression or count > FEW_RECORDS or header.size_bytes < HEADER_SIZE:
            return False
        at += header.size_bytes
    return True


def decode(data: Buffer, offset: int, aborted: Iterable[Aborted], limits: Limits = UNLIMITED) -> Decoded:
    """Decode records from `offset` on. A batch cut off by a byte limit is left for the next fetch."""
    view = memoryview(data)
    records: list[Record] = []
    next_offset, left = offset, limits.bytes
    hidden = _Hidden(aborted)
    at = 0
    while len(view) - at >= HEADER_SIZE:
        header = read_header(view, at)
        if len(view) - at < header.size_bytes:
            break  # cut off by max_bytes
        if header.is_control:
            hidden.marker(header.base_offset, header.producer_id)
        elif not hidden.hides(header.base_offset, header.producer_id, header.is_transactional):
            try:
                for size, record in _records(header, view[at + HEADER_SIZE : at + header.size_bytes], offset):
                    if records and (len(records) >= limits.records or left < size):
                        return Decoded(records, record.offset)
                    records.append(record)
                    left -= size
            except MalformedRecords as error:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset}: {error}") from error
        next_offset = max(next_offset, header.next_offset)
        at += header.size_bytes
    return Decoded(records, next_offset)


def _records(header: BatchHeader, payload: Buffer, offset: int) -> Iterator[tuple[int, Record]]:
    """Yield (size, record) from `offset` on; earlier records are skipped."""
    for data, start, end in whole_records(header, payload):
        _, at = read_varint(data, start + 1)
        offset_delta, _ = read_varint(data, at)
        if header.base_offset + offset_delta >= offset:
            yield end - start, read_record(header, data, start, end)


class _Hidden:
    """Tracks which producers' records belong to an aborted transaction, in offset order."""

    def __init__(self, transactions: Iterable[Aborted]) -> None:
        self._waiting = sorted(transactions, reverse=True)
        self._open: dict[int, None] = {}

    def hides(self, base_offset: int, producer_id: int, is_transactional: bool) -> bool:
        self._reach(base_offset)
        return is_transactional and producer_id in self._open

    def marker(self, base_offset: int, producer_id: int) -> None:
        # A fetch may begin behind the records of an aborted transaction, with its marker.
        self._reach(base_offset)
        self._open.pop(producer_id, None)

    def _reach(self, base_offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= base_offset:
            self._open[self._waiting.pop().producer_id] = None
