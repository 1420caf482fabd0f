"""Decodes fetched bytes with the kernels: plans the work, passes groups of batches, and wraps the results.

A group has as many whole batches as fit into one RecordBatch, so the kernels are called once per ten thousand rows and
not once per batch. A larger batch is cut into equal parts. Compressed batches are decompressed with their group and
dropped with it: a chunk that grows a hundredfold by decompression is never completely in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.arrow.decode import kernels
from penstock.arrow.decode.aborted import AbortedTransactions, is_abort_marker
from penstock.arrow.decode.columns import MAX_BYTES, Array, Columns, RecordBatch
from penstock.arrow.decode.errors import wrong_magic
from penstock.model.errors import ApiError
from penstock.ports.disk import Buffer
from penstock.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    read_header,
)
from penstock.records.builder import MalformedRecords
from penstock.records.compression import decompress

_SENTENCES = {
    kernels.BAD_SIZE: "its length runs past the end of the batch",
    kernels.BAD_TIMESTAMP: "its timestamp runs past its end",
    kernels.BAD_OFFSET: "its offset runs past its end",
    kernels.UNORDERED: "its offset is not between the previous record's and the last of the batch",
    kernels.BAD_KEY: "its key runs past its end",
    kernels.BAD_VALUE: "its value runs past its end",
    kernels.BAD_HEADER_COUNT: "its number of headers is invalid",
    kernels.BAD_HEADER: "a header runs past its end or has no name",
    kernels.BAD_END: "its parts do not fill its length",
    kernels.TRAILING: "bytes follow the last record",
}

_SPECIAL = COMPRESSION_MASK | CONTROL_BIT | TRANSACTIONAL_BIT


class _Group(NamedTuple):
    """Records of neighbouring batches in one block of memory."""

    data: Any
    segments: Any
    rows: int  # at most
    batches: list[int]  # base offsets, for messages


class Scratch:
    """Arrays that live as long as the decoder: intermediate results of kernels, and columns outside the schema."""

    def __init__(self, max_rows: int) -> None:
        self.key_places, self.value_places, self.header_places, self.unasked = (
            np.empty(max_rows, np.int64) for _ in range(4)
        )
        self.unasked_types = np.empty(max_rows, np.int32)
        self.state = np.empty(kernels.STATE_FIELDS, np.int64)


class NativeChunk:
    """One fetch answer. Iterating decodes it. RecordBatches do not refer to the answer's memory."""

    def __init__(
        self,
        columns: Columns,
        scratch: Scratch,
        records: Buffer,
        start: int,
        end: int,
        aborted: AbortedTransactions | None,
    ) -> None:
        self._columns = columns
        self._scratch = scratch
        self._view = memoryview(records).cast("B")
        self._start = start
        self._end = end
        self._aborted = aborted
        self._batches: list[list[int]] = []
        self.next_offset = start
        if len(self._view):
            self._data = np.frombuffer(self._view, np.uint8)
            self._walk()

    def _walk(self) -> None:
        size = len(self._view)
        table = np.empty((size // HEADER_SIZE, kernels.WALK_FIELDS), np.int64)
        outcome = np.empty(3, np.int64)
        batches = kernels.walk(self._data, self._end, table, outcome)
        code, at, next_offset = outcome.tolist()
        if code not in (kernels.WALKED, kernels.TORN) or (code == kernels.TORN and not batches):
            raise self._implausible(code, at, next_offset)
        self._batches = table[:batches].tolist()
        if batches:
            self.next_offset = next_offset

    def _implausible(self, code: int, at: int, next_offset: int) -> Exception:
        left = len(self._view) - at
        if left < HEADER_SIZE:
            reason = (
                wrong_magic(self._view[at + 16]) if code == kernels.BAD_MAGIC else f"only {left} bytes of it are there"
            )
            return self._columns.corrupt(int.from_bytes(self._view[at : at + 8], "big", signed=True), reason)
        header = read_header(self._view, at)
        if code == kernels.BAD_MAGIC:
            reason = wrong_magic(header.magic)
        elif code == kernels.BAD_ORDER:
            reason = f"its base offset is before {next_offset}, where the batch before it ends"
        elif code == kernels.BAD_COUNTS:
            reason = f"last offset delta {header.last_offset_delta}, {header.record_count} records"
        else:
            reason = f"batch length {header.batch_length}, {left} bytes are there"
        return self._columns.corrupt(header.base_offset, reason)

    def __iter__(self) -> Iterator[RecordBatch]:
        for group in self._groups():
            yield from self._decode(group)

    def _groups(self) -> Iterator[_Group]:
        max_rows = self._columns.max_rows
        view, data = self._view, self._data if self._batches else None
        segments: list[tuple[int, ...]] = []
        bases: list[int] = []
        unpacked: list[Buffer] = []  # one per segment if any was compressed, else empty
        rows = size_bytes = 0
        for at, size, base, last, attributes, base_timestamp, max_timestamp, producer, count, crc in self._batches:
            if base >= self._end:
                break
            if crc32c(view[at + CRC_START : at + size]) != crc:
                raise self._columns.corrupt(base, "checksum does not match")
            is_special = attributes & _SPECIAL
            if is_special and self._is_left_out(at, size, base + last, attributes, producer):
                continue
            if not count or base + last < self._start:
                continue
            payload: Buffer | None = None
            payload_bytes = size - HEADER_SIZE
            if attributes & COMPRESSION_MASK:
                payload = self._decompress(attributes, at, size, base)
                payload_bytes = len(payload)
            if segments and (rows + count > max_rows or size_bytes + payload_bytes > MAX_BYTES):
                yield _group(data, segments, unpacked, rows, bases)
                segments, bases, unpacked, rows, size_bytes = [], [], [], 0, 0
            if payload is not None and not unpacked:
                unpacked = [view[begin:stop] for begin, stop, *_ in segments]
            elif payload is None and unpacked:
                payload = view[at + HEADER_SIZE : at + size]
            if payload is not None:
                unpacked.append(payload)
            is_append_time = 1 if attributes & TIMESTAMP_TYPE_BIT else 0
            segments.append(
                (at + HEADER_SIZE, at + size, count, base, last, base_timestamp, max_timestamp, is_append_time)
            )
            bases.append(base)
            rows += count
            size_bytes += payload_bytes
        if segments:
            yield _group(data, segments, unpacked, rows, bases)

    def _is_left_out(self, at: int, size: int, last_offset: int, attributes: int, producer: int) -> bool:
        """Whether a batch is a control batch or of an aborted transaction. Called in offset order."""
        is_control = bool(attributes & CONTROL_BIT)
        aborted = self._aborted
        if aborted is None:
            return is_control
        aborted.reach(last_offset)
        if is_control:
            header = read_header(self._view, at)
            try:
                if is_abort_marker(header, self._view[at + HEADER_SIZE : at + size]):
                    aborted.end(producer)
            except (MalformedRecords, ApiError) as error:
                raise self._columns.corrupt(header.base_offset, f"control batch: {error}") from error
            return True
        return bool(attributes & TRANSACTIONAL_BIT) and aborted.has_open(producer)

    def _decompress(self, attributes: int, at: int, size: int, base: int) -> bytes:
        try:
            return decompress(attributes & COMPRESSION_MASK, self._view[at + HEADER_SIZE : at + size])
        except ApiError as error:
            raise self._columns.corrupt(base, str(error)) from error

    def _decode(self, group: _Group) -> Iterator[RecordBatch]:
        asked, scratch, state = self._columns.names, self._scratch, self._scratch.state
        pieces = -(-group.rows // self._columns.max_rows)
        limit = -(-group.rows // pieces)
        state[:] = 0
        state[kernels.AT] = group.segments[0, kernels.FROM]
        state[kernels.PREVIOUS_DELTA] = -1
        while state[kernels.SEGMENT] < len(group.segments):
            fixed = {
                "offset": np.empty(limit, np.int64) if "offset" in asked else scratch.unasked,
                "timestamp": np.empty(limit, np.int64) if "timestamp" in asked else scratch.unasked,
                "timestampType": np.empty(limit, np.int32) if "timestampType" in asked else scratch.unasked_types,
            }
            key_ends, value_ends, header_ends = (np.empty(limit + 1, np.int32) for _ in range(3))
            rows = kernels.survey(
                group.data,
                group.segments,
                state,
                self._start,
                self._end,
                limit,
                MAX_BYTES,
                fixed["offset"],
                fixed["timestamp"],
                fixed["timestampType"],
                scratch.key_places,
                key_ends,
                scratch.value_places,
                value_ends,
                scratch.header_places,
                header_ends,
            )
            found = state.tolist()
            if found[kernels.CODE] != kernels.FINE:
                raise self._damaged(group, found)
            if not rows:
                continue
            ends = {"key": key_ends, "value": value_ends, "headers": header_ends}
            yield self._record_batch(group.data, rows, found, fixed, ends)

    def _damaged(self, group: _Group, found: list[int]) -> Exception:
        segment, at = found[kernels.SEGMENT], found[kernels.AT]
        position = at - int(group.segments[segment, kernels.FROM])
        reason = f"record {found[kernels.RECORD]} at byte {position} of the records: {_SENTENCES[found[kernels.CODE]]}"
        return self._columns.corrupt(group.batches[segment], reason)

    def _record_batch(
        self, data: Any, rows: int, found: list[int], fixed: dict[str, Any], ends: dict[str, Any]
    ) -> RecordBatch:
        scratch = self._scratch

        def make(name: str, kind: Any) -> Array:
            if name == "key":
                size, nulls = found[kernels.KEY_BYTES], found[kernels.KEY_NULLS]
                return _binary(kind, data, scratch.key_places, ends[name], rows, size, nulls)
            if name == "value":
                size, nulls = found[kernels.VALUE_BYTES], found[kernels.VALUE_NULLS]
                return _binary(kind, data, scratch.value_places, ends[name], rows, size, nulls)
            if name == "headers":
                return _headers(kind, data, scratch.header_places, ends[name], rows, found)
            return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(fixed[name][:rows])], null_count=0)

        return self._columns.record_batch(rows, make)


def _group(data: Any, segments: list[tuple[int, ...]], unpacked: list[Buffer], rows: int, bases: list[int]) -> _Group:
    table = np.array(segments, np.int64)
    if unpacked:
        sizes = [len(payload) for payload in unpacked]
        data = np.frombuffer(unpacked[0] if len(unpacked) == 1 else b"".join(unpacked), np.uint8)
        table[:, kernels.TO] = np.cumsum(sizes)
        table[:, kernels.FROM] = table[:, kernels.TO] - sizes
    return _Group(data, table, rows, bases)


def _binary(kind: Any, data: Any, places: Any, ends: Any, rows: int, size: int, nulls: int) -> Array:
    out = pa.allocate_buffer(size)
    kernels.gather(data, places, ends, rows, np.frombuffer(out, np.uint8))
    buffers = [_validity(places, rows) if nulls else None, pa.py_buffer(ends[: rows + 1]), out]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)


def _headers(kind: Any, data: Any, places: Any, ends: Any, rows: int, found: list[int]) -> Array:
    count = found[kernels.HEADERS]
    name_ends, content_ends = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
    names, contents = np.empty(found[kernels.NAME_BYTES], np.uint8), np.empty(found[kernels.CONTENT_BYTES], np.uint8)
    content_places = np.empty(count, np.int64)
    null_contents = kernels.headers(data, places, ends, rows, name_ends, names, content_places, content_ends, contents)
    validity = _validity(content_places, count) if null_contents else None
    parts = [
        _strings(count, name_ends, names),
        pa.Array.from_buffers(
            pa.binary(), count, [validity, pa.py_buffer(content_ends), pa.py_buffer(contents)], null_count=null_contents
        ),
    ]
    pairs = pa.Array.from_buffers(kind.value_type, count, [None], null_count=0, children=parts)
    nulls = rows - found[kernels.WITH_HEADERS]
    buffers = [_validity(places, rows) if nulls else None, pa.py_buffer(ends[: rows + 1])]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls, children=[pairs])


def _strings(count: int, ends: Any, data: Any) -> Array:
    """Header names. Invalid UTF-8 in them is replaced, as by Kafka's own clients."""
    strings = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)], null_count=0)
    if not len(data) or data.max() < 0x80:
        return strings
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        names = strings.view(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in names], pa.string())
    return strings


def _validity(places: Any, count: int) -> Any:
    bits = np.zeros((count + 7) // 8, np.uint8)
    kernels.mark(places, count, bits)
    return pa.py_buffer(bits)
