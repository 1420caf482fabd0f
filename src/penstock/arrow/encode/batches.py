"""Rows to record batches: each partition has one open batch, which is closed when the next row would not fit.

`PartitionEncoder` holds the open batches of all partitions in one arena of bounded size, whatever the number of
partitions. Must not know: producers, connections, topics by name.
Invariant: rows of a slot keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.arrow.encode import loops
from penstock.arrow.encode.closed import NO_LEADER_EPOCH, ClosedBatch
from penstock.arrow.encode.columns import Int32s, RecordColumns
from penstock.arrow.encode.layout import OpenBatches, open_batches
from penstock.records.batch import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC
from penstock.records.compression import NONE, compress

SMALLEST_BATCH_BYTES = 4 << 10


class PartitionEncoder:
    """`batch_size_bytes` bounds a batch before compression; a larger row gets its own batch.

    `memory_bytes` bounds all open batches together: with very many partitions they are closed at a smaller size.
    """

    def __init__(
        self, batch_size_bytes: int, memory_bytes: int, compression: int = NONE, level: int | None = None
    ) -> None:
        self.batch_size_bytes = batch_size_bytes
        self._memory_bytes = memory_bytes
        self._compression = compression
        self._level = level
        self._loops = loops()
        self._slot_count = 0
        self._open = open_batches(0, 0)

    def resize(self, slot_count: int) -> Iterator[ClosedBatch]:
        """Makes room for `slot_count` slots. Closes all open batches first."""
        if slot_count <= self._slot_count:
            return
        yield from self.close_all()
        self._slot_count = slot_count
        share = self._memory_bytes // slot_count
        self._open = open_batches(slot_count, max(min(self.batch_size_bytes, share), SMALLEST_BATCH_BYTES))

    def add(self, columns: RecordColumns, slots: Int32s) -> Iterator[ClosedBatch]:
        """Returns the batches that become full. Rows are taken only as the iterator advances."""
        row, end = 0, len(slots)
        while True:
            limit = min(self._open.stride, max(self.batch_size_bytes, SMALLEST_BATCH_BYTES))
            row = self._loops.encode_rows(columns, slots, row, end, self._open, limit)
            if row == end:
                return
            slot = int(slots[row])
            if self._open.counts[slot]:
                yield self._close(self._open, slot, slot)
            else:
                yield self._large(columns, row, slot)
                row += 1

    def close_all(self) -> Iterator[ClosedBatch]:
        for slot in self._open.counts.nonzero()[0]:
            yield self._close(self._open, int(slot), int(slot))

    def _large(self, columns: RecordColumns, row: int, slot: int) -> ClosedBatch:
        """A batch for one row that is too large for the arena."""
        size = HEADER_SIZE + self._loops.record_size(columns, row)
        alone = open_batches(1, size)
        self._loops.encode_rows(columns, np.zeros(row + 1, np.int32), row, row + 1, alone, size)
        return self._close(alone, 0, slot)

    def _close(self, batches: OpenBatches, place: int, slot: int) -> ClosedBatch:
        start, end = place * batches.stride, int(batches.ends[place])
        count = int(batches.counts[place])
        data = bytearray(batches.arena.data[start : start + end])
        if self._compression != NONE:
            data[HEADER_SIZE:] = compress(self._compression, memoryview(data)[HEADER_SIZE:], self._level)
        HEADER.pack_into(
            data,
            0,
            0,
            len(data) - LENGTH_OVERHEAD,
            NO_LEADER_EPOCH,
            MAGIC,
            0,
            self._compression,
            count - 1,
            int(batches.base_timestamps[place]),
            int(batches.max_timestamps[place]),
            -1,
            -1,
            -1,
            count,
        )
        batches.ends[place] = HEADER_SIZE
        batches.counts[place] = 0
        return ClosedBatch(slot, data, count)
