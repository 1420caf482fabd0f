"""The line of connections that have sent more than one turn's share: one of them is served in each turn.

Must not know: what a turn's share is. A connection is in the line at most once, and may end while it waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class WaitingConnection(Protocol):
    def turn_came(self) -> None: ...


class WaitingLine:
    """The line for all connections of a broker."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[WaitingConnection] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, loop: asyncio.AbstractEventLoop, waiting: WaitingConnection) -> None:
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            loop.call_soon(self._serve, loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        first = self._waiting[0]
        try:
            first.turn_came()  # it may join again at the end
        finally:
            self._waiting.popleft()
            if self._waiting:
                loop.call_soon(self._serve, loop)
