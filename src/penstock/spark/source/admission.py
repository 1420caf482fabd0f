"""The size of the next micro-batch, as a pure function of numbers.

A limit is divided among the partitions in proportion to their backlogs, as in Spark's Kafka source: a partition with a
tenth of the backlog gets a tenth of the batch, and every partition with a backlog gets something. Must not know:
clusters, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock.model.topic_partition import TopicPartition

Offsets = Mapping[TopicPartition, int]


def backlog(start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """The backlog of each partition that has one. `start` has every partition of `end`."""
    sizes = {tp: last - start[tp] for tp, last in end.items()}
    return {tp: size for tp, size in sizes.items() if size > 0}


def limit_offsets(start: Offsets, end: Offsets, max_offsets: int) -> dict[TopicPartition, int]:
    waiting = backlog(start, end)
    total = sum(waiting.values())
    if total <= max_offsets:
        return dict(end)
    limited = dict(end)
    for tp, size in waiting.items():
        limited[tp] = start[tp] + min(size, _share(max_offsets * size / total))
    return limited


def limit_bytes(
    start: Offsets, end: Offsets, max_bytes: int, bytes_per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """Limits by an estimate: `bytes_per_offset` has every partition with a backlog."""
    waiting = backlog(start, end)
    total = sum(size * bytes_per_offset[tp] for tp, size in waiting.items())
    if total <= max_bytes:
        return dict(end)
    limited = dict(end)
    for tp, size in waiting.items():
        # The share in bytes is max_bytes * (size * bytes per offset / total): the bytes per offset cancel out.
        limited[tp] = start[tp] + min(size, _share(max_bytes * size / total))
    return limited


def _share(exact: float) -> int:
    """Rounded down, but at least 1."""
    return math.ceil(exact) if exact < 1 else math.floor(exact)


class TriggerGate:
    """Delays a micro-batch until `min_offsets` are waiting, or `max_delay_ms` have passed since the first trigger.

    The first batch after a start is never delayed.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._opened_ms: float | None = None

    def is_open(self, waiting: int, now_ms: float) -> bool:
        if waiting == 0:
            return False
        is_due = self._opened_ms is None or now_ms - self._opened_ms >= self._max_delay_ms
        if not is_due and waiting < self._min_offsets:
            return False
        self._opened_ms = now_ms
        return True
