"""The loops of the sink in plain Python, for workers without numba: the same bytes and partitions as `kernels`, slowly.

The functions have the parameters of those in `kernels`, and a property test compares the two. Rows are taken out of the
arrays one by one: most of the time goes into Python's own work, not into numpy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.arrow.encode.columns import Blobs, Int32s, RecordColumns
from penstock.arrow.encode.layout import NO_PARTITION, ROW_OVERHEAD_BYTES, OpenBatches, TopicSlots
from penstock.records.builder import write_varint
from penstock.wire_client.requests.partitioner import partition_for_key

_ATTRIBUTES = 0


def record_size(columns: RecordColumns, row: int) -> int:
    """The size of a record that is the first of its batch."""
    return len(_record(columns, row, 0, 0))


def encode_rows(columns: RecordColumns, slots: Int32s, row: int, stop: int, batches: OpenBatches, limit: int) -> int:
    """Appends rows from `row` to `stop` to the batches of their slots. Returns the first that
    does not fit, or `stop`."""
    for at_row, slot in enumerate(slots[row:stop].tolist(), row):
        timestamp, count, end = int(columns.timestamps_ms[at_row]), int(batches.counts[slot]), int(batches.ends[slot])
        record = _record(columns, at_row, timestamp - int(batches.base_timestamps[slot]) if count else 0, count)
        if end + len(record) > limit:
            return at_row
        start = slot * batches.stride + end
        batches.arena[start : start + len(record)] = np.frombuffer(record, np.uint8)
        if count == 0:
            batches.base_timestamps[slot] = batches.max_timestamps[slot] = timestamp
        elif timestamp > batches.max_timestamps[slot]:
            batches.max_timestamps[slot] = timestamp
        batches.counts[slot] = count + 1
        batches.ends[slot] = end + len(record)
    return stop


def assign_slots(
    columns: RecordColumns,
    topic_numbers: Int32s,
    partitions: Int32s,
    topics: TopicSlots,
    sticky_limit: int,
    slots: Int32s,
) -> int:
    """Fills `slots`: by the row's partition, else by its key, else with the topic's sticky partition.

    Returns the number of the first row whose partition does not exist, or -1.
    """
    counts, firsts = topics.partition_counts.tolist(), topics.first_slots.tolist()
    wanted = zip(topic_numbers.tolist(), partitions.tolist(), _blobs(columns.keys), strict=True)
    for row, (topic, partition, key) in enumerate(wanted):
        if partition != NO_PARTITION:
            if not 0 <= partition < counts[topic]:
                return row
        elif key is not None:
            partition = partition_for_key(key, counts[topic])
        else:
            if topics.sticky_bytes[topic] >= sticky_limit:
                topics.sticky_bytes[topic] = 0
                topics.sticky_partitions[topic] = (topics.sticky_partitions[topic] + 1) % counts[topic]
            topics.sticky_bytes[topic] += max(int(columns.values.sizes[row]), 0) + ROW_OVERHEAD_BYTES
            partition = int(topics.sticky_partitions[topic])
        slots[row] = firsts[topic] + partition
    return -1


def _record(columns: RecordColumns, row: int, timestamp_delta: int, offset_delta: int) -> bytes:
    body = bytearray((_ATTRIBUTES,))
    write_varint(timestamp_delta, body)
    write_varint(offset_delta, body)
    _put(columns.keys, row, body)
    _put(columns.values, row, body)
    headers = columns.headers
    count, first = int(headers.counts[row]), int(headers.firsts[row])
    write_varint(count, body)
    for header in range(first, first + count):
        _put(headers.names, header, body)
        _put(headers.values, header, body)
    record = bytearray()
    write_varint(len(body), record)
    return bytes(record + body)


def _put(blobs: Blobs, index: int, out: bytearray) -> None:
    size = int(blobs.sizes[index])
    write_varint(size, out)
    if size > 0:
        start = int(blobs.starts[index])
        out += blobs.data[start : start + size].tobytes()


def _blobs(blobs: Blobs) -> Iterator[bytes | None]:
    for start, size in zip(blobs.starts.tolist(), blobs.sizes.tolist(), strict=True):
        yield None if size < 0 else blobs.data[start : start + size].tobytes()
