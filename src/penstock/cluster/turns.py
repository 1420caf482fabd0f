"""One decision at a time, each on an image that holds all the ones before.

A decision that failed here may have happened all the same: its disk was full and has room again, or whoever asked has
gone away while it was under way. It is still in this leader's log then, and about to be applied. One made meanwhile on
the image as it is could contradict it (delete a topic twice, say), and every node would fail at the same entry.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Settling(Protocol):
    """What a turn needs of `cluster.quorum.Quorum`."""

    async def settled(self) -> None: ...


class Turns:
    """To be used with `async with`. Raises what `settled` does."""

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
