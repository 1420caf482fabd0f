"""Arrow columns as flat arrays for the kernels.

A column of bytes becomes `Blobs`: one data buffer, and the start and size of every row, -1 for null. This shape serves
strings, binaries, their large variants, slices and missing columns. Data is never copied; starts and sizes are. Must
not know: topics, partitions, batches.
Invariant: `data` is always read-only, so that each kernel is compiled for one set of types.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.errors import PenstockError

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

# pyarrow comes without types.
ArrowArray = Any
RecordBatch = Any

VALUE, KEY, HEADERS, TOPIC, PARTITION, TIMESTAMP = "value", "key", "headers", "topic", "partition", "timestamp"


class UnsuitableRows(PenstockError, ValueError):
    """Rows that cannot become records. The message names the column and the reason."""


class Blobs(NamedTuple):
    """Row i is data[starts[i] : starts[i] + sizes[i]], or null if sizes[i] is -1."""

    data: Bytes
    starts: Int64s
    sizes: Int64s


class HeaderBlobs(NamedTuple):
    """Row i has the headers firsts[i] to firsts[i] + counts[i]."""

    firsts: Int64s
    counts: Int64s
    names: Blobs
    values: Blobs


class RecordColumns(NamedTuple):
    """The columns of a RecordBatch that become records."""

    keys: Blobs
    values: Blobs
    headers: HeaderBlobs
    timestamps_ms: Int64s


def record_columns(batch: RecordBatch, now_ms: int) -> RecordColumns:
    """Missing columns are null in every row. A timestamp that is null or of another type is `now_ms`."""
    rows = batch.num_rows
    return RecordColumns(
        keys=blobs(column(batch, KEY), rows, KEY),
        values=blobs(column(batch, VALUE), rows, VALUE),
        headers=_headers(column(batch, HEADERS), rows),
        timestamps_ms=_timestamps_ms(column(batch, TIMESTAMP), rows, now_ms),
    )


def column(batch: RecordBatch, name: str) -> ArrowArray | None:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def blobs(array: ArrowArray | None, rows: int, name: str) -> Blobs:
    if array is None or pa.types.is_null(array.type):
        return Blobs(_frozen(np.empty(0, np.uint8)), np.zeros(rows, np.int64), np.full(rows, -1, np.int64))
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        offset_type: Any = np.int32
    elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        offset_type = np.int64
    else:
        raise UnsuitableRows(f"column {name} is {kind}: cast it to binary or string")
    _, offsets_buffer, data_buffer = array.buffers()
    if rows == 0 or offsets_buffer is None:
        offsets = np.zeros(rows + 1, np.int64)
    else:
        offsets = np.frombuffer(offsets_buffer, offset_type)[array.offset : array.offset + rows + 1].astype(np.int64)
    sizes = np.diff(offsets)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = -1
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return Blobs(_frozen(data), offsets[:-1].copy(), sizes)


def _frozen(data: Bytes) -> Bytes:
    data.setflags(write=False)
    return data


def _headers(array: ArrowArray | None, rows: int) -> HeaderBlobs:
    if array is None or pa.types.is_null(array.type):
        nothing = blobs(None, 0, HEADERS)
        return HeaderBlobs(np.zeros(rows, np.int64), np.zeros(rows, np.int64), nothing, nothing)
    firsts = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.diff(firsts)
    if array.null_count:
        counts[array.is_null().to_numpy(zero_copy_only=False)] = 0
    entries = array.values
    names, values = entries.field(0), entries.field(1)
    header_blobs = HeaderBlobs(
        firsts[:-1].copy(),
        counts,
        blobs(names, len(entries), "headers.key"),
        blobs(values, len(entries), "headers.value"),
    )
    if entries.null_count or names.null_count:
        _check_names(header_blobs, entries)
    return header_blobs


def _check_names(headers: HeaderBlobs, entries: ArrowArray) -> None:
    """Checks only the entries of non-null lists: behind a null list there may be anything."""
    missing = entries.is_null().to_numpy(zero_copy_only=False) | (headers.names.sizes < 0)
    for row, (first, count) in enumerate(zip(headers.firsts, headers.counts, strict=True)):
        if missing[first : first + count].any():
            raise UnsuitableRows(f"row {row} has a header without a key: a header's key may not be null")


def _timestamps_ms(array: ArrowArray | None, rows: int, now_ms: int) -> Int64s:
    if array is None or not pa.types.is_timestamp(array.type):
        return np.full(rows, now_ms, np.int64)
    # Floor, the reverse of Spark's Kafka source, so that -1 (no timestamp) is kept.
    micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    times: Int64s = micros.fill_null(0).to_numpy(zero_copy_only=False) // 1000
    if array.null_count:
        times[array.is_null().to_numpy(zero_copy_only=False)] = now_ms
    # Kafka allows no others before 1970. Such records exist anyway, and copying them must not fail.
    return np.maximum(times, -1)
