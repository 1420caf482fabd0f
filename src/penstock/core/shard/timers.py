"""Deadlines by key: set, moved, cancelled, and taken when due. Must not know: clocks.

Most deadlines are sessions, and every heartbeat extends one. So moving a deadline is only a dictionary write: the heap
keeps the old entry and corrects it when it reaches the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

TimerKey: TypeAlias = tuple[str, ...]
"""The kind, then the owner: ("session", group, member), ("join", group), ..."""


class Timers:
    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, TimerKey]] = []
        self._taken_ms = -(1 << 63)  # deadlines up to here have been returned

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._deadlines

    def set(self, key: TimerKey, deadline_ms: int) -> None:
        deadline_ms = max(deadline_ms, self._taken_ms + 1)  # else `take_due` might never end
        known = self._deadlines.get(key)
        self._deadlines[key] = deadline_ms
        if known is None or deadline_ms < known:
            heappush(self._heap, (deadline_ms, key))
            if len(self._heap) > 64 + 2 * len(self._deadlines):
                # Keys that are cancelled and set again leave old entries behind.
                self._heap = [(at, key) for key, at in self._deadlines.items()]
                heapify(self._heap)

    def cancel(self, key: TimerKey) -> None:
        self._deadlines.pop(key, None)

    def next_deadline(self) -> int | None:
        heap = self._heap
        while heap:
            at, key = heap[0]
            deadline = self._deadlines.get(key)
            if deadline == at:
                return at
            heappop(heap)
            if deadline is not None and deadline > at:
                heappush(heap, (deadline, key))
        return None

    def take_due(self, now_ms: int) -> Iterator[TimerKey]:
        """Yield due keys, earliest first; each is removed before it is yielded.

        A deadline set meanwhile is due a millisecond later at the earliest.
        """
        self._taken_ms = max(self._taken_ms, now_ms)
        while (deadline := self.next_deadline()) is not None and deadline <= now_ms:
            _, key = heappop(self._heap)
            del self._deadlines[key]
            yield key
