"""The mean bytes per offset of a partition, from a sample of its next batches, for `maxBytesPerTrigger`.

The sample is one small fetch at the start of the next micro-batch: the bytes of whole batches as in the log
(compressed), divided by the offsets that they cover, so that holes of compaction count as empty. A sample is valid for
`MAX_AGE_S`. A partition without a sample counts as the mean of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from struct import Struct

from penstock.model.errors import PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, LENGTH_OVERHEAD

MAX_AGE_S = 5.0
SAMPLE_BYTES = 64 << 10
LOOK_TIMEOUT_S = 5.0
UNKNOWN_BYTES = 1024.0

_OFFSET_AND_LENGTH = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23

Look = Callable[[TopicPartition, int], Buffer]
"""Fetches bytes from an offset on."""


class RecordSizes:
    def __init__(self, look: Look, clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._seen: dict[TopicPartition, tuple[float, float]] = {}

    def estimate(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        known: dict[TopicPartition, float] = {}
        for tp, position in positions.items():
            size = self._size(tp, position)
            if size is not None:
                known[tp] = size
        usual = sum(known.values()) / len(known) if known else UNKNOWN_BYTES
        return {tp: known.get(tp, usual) for tp in positions}

    def _size(self, tp: TopicPartition, position: int) -> float | None:
        seen = self._seen.get(tp)
        if seen is not None and self._clock() - seen[0] < MAX_AGE_S:
            return seen[1]
        try:
            size = bytes_per_offset(self._look(tp, position), position)
        except PenstockError:
            # The reader gets the same error and reports it.
            size = None
        if size is not None:
            self._seen[tp] = (self._clock(), size)
        return size


def bytes_per_offset(records: Buffer, position: int) -> float | None:
    """The mean of the whole batches in `records`, which was fetched from `position` on."""
    view = memoryview(records)
    at, next_offset = 0, position
    while at + HEADER_SIZE <= len(view):
        base_offset, length = _OFFSET_AND_LENGTH.unpack_from(view, at)
        size = length + LENGTH_OVERHEAD
        if size < HEADER_SIZE or at + size > len(view):
            break
        next_offset = base_offset + _LAST_OFFSET_DELTA.unpack_from(view, at + _LAST_OFFSET_DELTA_AT)[0] + 1
        at += size
    return at / (next_offset - position) if next_offset > position else None
