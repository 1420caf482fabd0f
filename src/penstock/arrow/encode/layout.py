"""What the loops of the sink work on: open batches in one arena, and the topics of a task.

Both versions of the loops use it, the compiled one (`kernels`) and that in plain Python (`plain`). numba's cache checks
only the file of a compiled function: after a change here, `kernels` must change, too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.arrow.encode.columns import Bytes, Int32s, Int64s
from penstock.records.batch import HEADER_SIZE

NO_PARTITION = -(2**31)  # a row without a partition; -1 would be a user's mistake
ROW_OVERHEAD_BYTES = 12  # about the size of a record besides key and value


class OpenBatches(NamedTuple):
    """One open batch per slot, each in its own `stride` bytes of the arena, after room for a header."""

    arena: Bytes
    stride: int
    ends: Int64s
    counts: Int64s
    base_timestamps: Int64s
    max_timestamps: Int64s


class TopicSlots(NamedTuple):
    """Topics by number. The slots of a topic are neighbours: first_slots[t] + partition."""

    first_slots: Int32s
    partition_counts: Int32s
    sticky_partitions: Int32s
    sticky_bytes: Int64s


def open_batches(slot_count: int, stride: int) -> OpenBatches:
    return OpenBatches(
        arena=np.empty(slot_count * stride, np.uint8),
        stride=stride,
        ends=np.full(slot_count, HEADER_SIZE, np.int64),
        counts=np.zeros(slot_count, np.int64),
        base_timestamps=np.zeros(slot_count, np.int64),
        max_timestamps=np.zeros(slot_count, np.int64),
    )
