"""Connections that ask for more than their share, in two respects.

In line: those that have sent more than one turn's share, in the order in which they came. One is served a turn.

Greedy: those that bring no records, and keep the loop busy for more than SHARE_S in WINDOW_S. While others are there
they have that much together, and pause for the rest of the window. Such a client is broken or hostile: it asks for
metadata, or fetches nothing, without a pause. It costs processor time at both ends, and on a machine that has none to
spare everybody waits for that, however fair the loop is.

Must not know: what a turn's share is. Whoever is in line is in it once, and may leave by ending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

WINDOW_S: Final = 0.005
SHARE_S: Final = 0.0005
GREEDY_S: Final = 1.0
"""For so long after it took too much a connection counts as greedy."""
COMPANY_S: Final = 0.1
"""For so long after a request others count as there."""


class Waiting(Protocol):
    def turn_came(self) -> None: ...


class WaitingLine:
    """Of all connections of a broker."""

    __slots__ = ("_company", "_company_until", "_spent_s", "_waiting", "_window_ends")

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._company, self._company_until = 0, 0.0
        self._window_ends = 0.0
        self._spent_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            loop.call_soon(self._serve, loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        first = self._waiting[0]
        try:
            first.turn_came()  # which may join again, at the end
        finally:
            self._waiting.popleft()
            if self._waiting:
                loop.call_soon(self._serve, loop)

    def company_came(self, number: int, now: float) -> None:
        """A connection that is not greedy sent a request."""
        self._company = number
        self._company_until = now + COMPANY_S

    def greedy_spent(self, seconds: float) -> None:
        self._spent_s += seconds

    def pause_of_greedy(self, number: int, now: float) -> float:
        """In seconds, before the next request of one of them is served; 0.0: it may be now."""
        if now >= self._window_ends:
            self._window_ends, self._spent_s = now + WINDOW_S, 0.0
        is_alone = now >= self._company_until or self._company == number  # it was not greedy a moment ago
        if self._spent_s <= SHARE_S or is_alone:
            return 0.0
        return self._window_ends - now
