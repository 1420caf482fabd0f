"""One decision at a time, each on an image that contains all earlier ones.

A decision that failed here may still be committed: its disk was full and has room again, or the caller was cancelled
while it was under way. Then it is still in this leader's log and will be applied. Another decision on the current image
could contradict it (delete a topic twice, for example), and every node would fail at the same entry.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Settling(Protocol):
    """The part of `cluster.quorum.Quorum` that a turn uses."""

    async def settled(self) -> None: ...


class DecisionTurns:
    """For use with `async with`. Raises the errors of `settled`."""

    def __init__(self, quorum: Settling) -> None:
        self._quorum = quorum
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await self._quorum.settled()
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
