"""The decoder in plain Python: the reference for the kernels, and the fallback without numba.

It decodes record by record with `records.builder.iterate_records`, and shares with the kernels only the columns and
the tracking of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from penstock.arrow.decode.aborted import AbortedTransactions, is_abort_marker
from penstock.arrow.decode.columns import MAX_BYTES, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Array, Columns, RecordBatch
from penstock.arrow.decode.errors import wrong_magic
from penstock.model.errors import ApiError
from penstock.ports.disk import Buffer
from penstock.records.batch import CRC_START, HEADER_SIZE, MAGIC, TIMESTAMP_TYPE_BIT, BatchHeader, read_header
from penstock.records.builder import MalformedRecords, iterate_records
from penstock.records.compression import decompress


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_us: int
    timestamp_type: int
    headers: list[tuple[str, bytes | None]] | None

    @property
    def size_bytes(self) -> int:
        headers = sum(len(name) * 3 + len(content or b"") for name, content in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers


_COLUMNS: dict[str, Callable[[Row], object]] = {
    "key": lambda row: row.key,
    "value": lambda row: row.value,
    "offset": lambda row: row.offset,
    "timestamp": lambda row: row.timestamp_us,
    "timestampType": lambda row: row.timestamp_type,
    "headers": lambda row: row.headers and [{"key": name, "value": content} for name, content in row.headers],
}


class ReferenceChunk:
    """One fetch answer. Iterating decodes it."""

    def __init__(
        self, columns: Columns, records: Buffer, start: int, end: int, aborted: AbortedTransactions | None
    ) -> None:
        self._columns = columns
        self._view = memoryview(records).cast("B")
        self._start = start
        self._end = end
        self._aborted = aborted
        self.next_offset = start
        self._batches: list[tuple[BatchHeader, memoryview]] = []
        self._walk()

    def _walk(self) -> None:
        at = next_offset = 0
        while at < len(self._view) and next_offset < self._end:
            left = len(self._view) - at
            base_offset = int.from_bytes(self._view[at : at + 8], "big", signed=True)
            if left > 16 and self._view[at + 16] != MAGIC:
                raise self._columns.corrupt(base_offset, wrong_magic(self._view[at + 16]))
            header = read_header(self._view, at) if left >= HEADER_SIZE else None
            if header is not None and header.size_bytes < HEADER_SIZE:
                raise self._columns.corrupt(base_offset, f"batch length {header.batch_length}, {left} bytes are there")
            if header is None or header.size_bytes > left:
                if not self._batches:  # a broker sends at least one whole batch
                    raise self._columns.corrupt(base_offset, f"only {left} bytes of it are there")
                return
            if (
                base_offset < 0
                or header.last_offset_delta < 0
                or header.record_count < 0
                or header.next_offset >= 2**63
            ):
                reason = f"last offset delta {header.last_offset_delta}, {header.record_count} records"
                raise self._columns.corrupt(base_offset, reason)
            if base_offset < next_offset:
                reason = f"its base offset is before {next_offset}, where the batch before it ends"
                raise self._columns.corrupt(base_offset, reason)
            self._batches.append((header, self._view[at : at + header.size_bytes]))
            self.next_offset = next_offset = header.next_offset
            at += header.size_bytes

    def __iter__(self) -> Iterator[RecordBatch]:
        rows: list[Row] = []
        size_bytes = 0
        for row in self._rows():
            if rows and (len(rows) == self._columns.max_rows or size_bytes + row.size_bytes > MAX_BYTES):
                yield self._record_batch(rows)
                rows, size_bytes = [], 0
            rows.append(row)
            size_bytes += row.size_bytes
        if rows:
            yield self._record_batch(rows)

    def _rows(self) -> Iterator[Row]:
        for header, data in self._batches:
            if header.base_offset >= self._end:
                return
            if crc32c(data[CRC_START:]) != header.crc:
                raise self._columns.corrupt(header.base_offset, "checksum does not match")
            try:
                if self._is_left_out(header, data[HEADER_SIZE:]):
                    continue
                if header.record_count and header.last_offset >= self._start:
                    yield from self._rows_of(header, data[HEADER_SIZE:])
            except (MalformedRecords, ApiError) as error:
                raise self._columns.corrupt(header.base_offset, str(error)) from error

    def _is_left_out(self, header: BatchHeader, payload: memoryview) -> bool:
        if self._aborted is None:
            return header.is_control
        self._aborted.reach(header.last_offset)
        if header.is_control:
            if is_abort_marker(header, payload):
                self._aborted.end(header.producer_id)
            return True
        return header.is_transactional and self._aborted.has_open(header.producer_id)

    def _rows_of(self, header: BatchHeader, payload: memoryview) -> Iterator[Row]:
        is_append_time = bool(header.attributes & TIMESTAMP_TYPE_BIT)
        previous = header.base_offset - 1
        for record in iterate_records(header, decompress(header.compression, payload)):
            if not previous < record.offset <= header.last_offset:
                raise MalformedRecords(f"offset {record.offset} after {previous} in a batch up to {header.last_offset}")
            previous = record.offset
            if self._start <= record.offset < self._end:
                timestamp_ms = header.max_timestamp if is_append_time else record.timestamp_ms
                yield Row(
                    record.key,
                    record.value,
                    record.offset,
                    min(max(timestamp_ms, MIN_TIMESTAMP_MS), MAX_TIMESTAMP_MS) * 1000,
                    int(is_append_time),
                    list(record.headers) or None,
                )

    def _record_batch(self, rows: list[Row]) -> RecordBatch:
        def make(name: str, kind: Any) -> Array:
            pick = _COLUMNS[name]
            return pa.array([pick(row) for row in rows], kind)

        return self._columns.record_batch(len(rows), make)
