"""How far the next micro-batch goes: numbers in, numbers out.

A limit is shared among the partitions by what each has waiting, as Spark's Kafka source does it: a partition with a
tenth of the backlog gets a tenth of the batch, and none with a backlog gets nothing. Must not know: clusters, clocks
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock.model.topic_partition import TopicPartition

Offsets = Mapping[TopicPartition, int]


def backlog(start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Offsets that wait, of the partitions that have any; one that `start` does not know begins at 0."""
    sizes = {tp: last - start.get(tp, 0) for tp, last in end.items()}
    return {tp: size for tp, size in sizes.items() if size > 0}


def limit_offsets(start: Offsets, end: Offsets, max_offsets: int) -> dict[TopicPartition, int]:
    waiting = backlog(start, end)
    total = sum(waiting.values())
    if total <= max_offsets:
        return dict(end)
    limited = dict(end)
    for tp, size in waiting.items():
        limited[tp] = start.get(tp, 0) + min(size, _share(max_offsets * size / total))
    return limited


def limit_bytes(
    start: Offsets, end: Offsets, max_bytes: int, bytes_per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """By an estimate: every partition with a backlog has one in `bytes_per_offset`."""
    waiting = backlog(start, end)
    total = sum(size * bytes_per_offset[tp] for tp, size in waiting.items())
    if total <= max_bytes:
        return dict(end)
    limited = dict(end)
    for tp, size in waiting.items():
        # The share in bytes is max_bytes * (size * bytes per offset / total): the bytes per offset cancel out.
        limited[tp] = start.get(tp, 0) + min(size, _share(max_bytes * size / total))
    return limited


def _share(exact: float) -> int:
    """Rounded down, but never to nothing."""
    return math.ceil(exact) if exact < 1 else math.floor(exact)


class TriggerGate:
    """Holds a micro-batch back until it has `min_offsets` waiting, or the oldest trigger is `max_delay_ms` ago.

    The first batch after a start is never held back.
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
