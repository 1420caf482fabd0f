"""The inner loops of the sink, compiled by numba: the partition of a row, and its encoding as a record.

    record  varint   size of the rest
            int8     attributes, 0
            varint   timestamp - base timestamp of the batch
            varint   offset - base offset of the batch
            varint   key size, -1 for null;    key
            varint   value size, -1 for null;  value
            varint   number of headers; each: varint name size, name, varint value size or -1, value

All varints are zigzag. `plain` and `reference` do the same in plain Python, and a property test compares them.
Must not know: Arrow, batch headers, compression. Invariant: nothing is written beyond `limit` bytes of a slot.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.arrow.decode import jit
from penstock.arrow.decode.jit import BYTES, INT, INT32S, INT64S, SOURCE, copy_bytes, kernel, part
from penstock.arrow.encode.columns import Blobs, Bytes, HeaderBlobs, Int32s, RecordColumns
from penstock.arrow.encode.layout import NO_PARTITION, ROW_OVERHEAD_BYTES, OpenBatches, TopicSlots

_jit: Any = jit
_tuple = _jit.types.NamedTuple

_BLOBS = _tuple((SOURCE, INT64S, INT64S), Blobs)
_HEADERS = _tuple((INT64S, INT64S, _BLOBS, _BLOBS), HeaderBlobs)
_COLUMNS = _tuple((_BLOBS, _BLOBS, _HEADERS, INT64S), RecordColumns)
_BATCHES = _tuple((BYTES, INT, INT64S, INT64S, INT64S, INT64S), OpenBatches)
_TOPICS = _tuple((INT32S, INT32S, INT32S, INT64S), TopicSlots)


@part
def _zigzag(value: int) -> Any:
    return np.uint64((value << 1) ^ (value >> 63))


@part
def _varint_size(value: int) -> int:
    left = _zigzag(value)
    size = 1
    while left > np.uint64(0x7F):
        left >>= np.uint64(7)
        size += 1
    return size


@part
def _put_varint(out: Bytes, at: int, value: int) -> int:
    left = _zigzag(value)
    while left > np.uint64(0x7F):
        out[at] = np.uint8(left & np.uint64(0x7F)) | np.uint8(0x80)
        left >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(left)
    return at + 1


@part
def _put_blob(out: Bytes, at: int, blobs: Blobs, index: int) -> int:
    size: int = blobs.sizes[index]
    at = _put_varint(out, at, size)
    if size <= 0:
        return at
    copy_bytes(out, at, blobs.data, blobs.starts[index], size)
    return at + size


@part
def _blob_size(size: int) -> int:
    return _varint_size(size) + max(size, 0)


@part
def _body_size(columns: RecordColumns, row: int, timestamp_delta: int, offset_delta: int) -> int:
    size = 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta)
    size += _blob_size(columns.keys.sizes[row]) + _blob_size(columns.values.sizes[row])
    count = columns.headers.counts[row]
    size += _varint_size(count)
    first = columns.headers.firsts[row]
    for header in range(first, first + count):
        size += _blob_size(columns.headers.names.sizes[header]) + _blob_size(columns.headers.values.sizes[header])
    return size


@kernel(INT, _COLUMNS, INT)
def record_size(columns: RecordColumns, row: int) -> int:
    """The size of a record that is the first of its batch."""
    size = _body_size(columns, row, 0, 0)
    return _varint_size(size) + size


@kernel(INT, _COLUMNS, INT32S, INT, INT, _BATCHES, INT)
def encode_rows(columns: RecordColumns, slots: Int32s, row: int, stop: int, batches: OpenBatches, limit: int) -> int:
    """Appends rows from `row` to `stop` to the batches of their slots. Returns the first that did not fit, or `stop`.

    It is one function on purpose: passing these tuples of arrays costs more than the work on a small row.
    """
    out = batches.arena
    for at_row in range(row, stop):
        slot = INT(slots[at_row])
        timestamp = columns.timestamps_ms[at_row]
        count = batches.counts[slot]
        timestamp_delta = timestamp - batches.base_timestamps[slot] if count else 0
        body = _body_size(columns, at_row, timestamp_delta, count)
        end = batches.ends[slot]
        if end + _varint_size(body) + body > limit:
            return at_row
        start = slot * batches.stride
        at = _put_varint(out, start + end, body)
        out[at] = 0
        at = _put_varint(out, at + 1, timestamp_delta)
        at = _put_varint(out, at, count)
        at = _put_blob(out, at, columns.keys, at_row)
        at = _put_blob(out, at, columns.values, at_row)
        header_count = columns.headers.counts[at_row]
        at = _put_varint(out, at, header_count)
        first = columns.headers.firsts[at_row]
        for header in range(first, first + header_count):
            at = _put_blob(out, at, columns.headers.names, header)
            at = _put_blob(out, at, columns.headers.values, header)
        if count == 0:
            batches.base_timestamps[slot] = timestamp
            batches.max_timestamps[slot] = timestamp
        elif timestamp > batches.max_timestamps[slot]:
            batches.max_timestamps[slot] = timestamp
        batches.counts[slot] = count + 1
        batches.ends[slot] = at - start
    return stop


@part
def _murmur2(data: Bytes, start: int, size: int) -> Any:
    """Kafka's hash of a key. Products of 32-bit numbers are computed in 64 bits and truncated."""
    mask, m = np.uint64(0xFFFFFFFF), np.uint64(0x5BD1E995)
    h = np.uint64(0x9747B28C) ^ np.uint64(size)
    whole = size - (size & 3)
    for at in range(start, start + whole, 4):
        k = (
            np.uint64(data[at])
            | np.uint64(data[at + 1]) << np.uint64(8)
            | np.uint64(data[at + 2]) << np.uint64(16)
            | np.uint64(data[at + 3]) << np.uint64(24)
        )
        k = (k * m) & mask
        k = ((k ^ (k >> np.uint64(24))) * m) & mask
        h = ((h * m) & mask) ^ k
    if size & 3:
        for i in range(size & 3):
            h ^= np.uint64(data[start + whole + i]) << np.uint64(8 * i)
        h = (h * m) & mask
    h = ((h ^ (h >> np.uint64(13))) * m) & mask
    return h ^ (h >> np.uint64(15))


@kernel(INT, _BLOBS, INT)
def murmur2_of(keys: Blobs, row: int) -> int:
    hashed: int = INT(_murmur2(keys.data, keys.starts[row], keys.sizes[row]))
    return hashed


@kernel(INT, _COLUMNS, INT32S, INT32S, _TOPICS, INT, INT32S)
def assign_slots(
    columns: RecordColumns,
    topic_numbers: Int32s,
    partitions: Int32s,
    topics: TopicSlots,
    sticky_limit: int,
    slots: Int32s,
) -> int:
    """Fills `slots`: by the row's partition, else by its key, else with the topic's sticky partition.

    The sticky partition changes after `sticky_limit` bytes. Returns the number of the first row whose partition does
    not exist, or -1.
    """
    for row in range(len(slots)):
        topic = topic_numbers[row]
        partition_count = topics.partition_counts[topic]
        partition = partitions[row]
        key_size = columns.keys.sizes[row]
        if partition != NO_PARTITION:
            if partition < 0 or partition >= partition_count:
                return row
        elif key_size >= 0:
            hashed = _murmur2(columns.keys.data, columns.keys.starts[row], key_size)
            partition = np.int32((hashed & np.uint64(0x7FFFFFFF)) % np.uint64(partition_count))
        else:
            if topics.sticky_bytes[topic] >= sticky_limit:
                topics.sticky_bytes[topic] = 0
                topics.sticky_partitions[topic] = (topics.sticky_partitions[topic] + 1) % partition_count
            topics.sticky_bytes[topic] += max(columns.values.sizes[row], 0) + ROW_OVERHEAD_BYTES
            partition = topics.sticky_partitions[topic]
        slots[row] = topics.first_slots[topic] + partition
    return -1
