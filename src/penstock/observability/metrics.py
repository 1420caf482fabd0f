"""All metrics of a broker as one page.

Runs on the broker's loop and yields to it after every few hundred lines. So the numbers on one page may be moments
apart. Numbers of one family that are compared with each other are taken together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from penstock.observability.exposition import Family, render


class MetricsSource(Protocol):
    def families(self) -> AsyncIterator[Family]: ...


class Metrics:
    def __init__(self, sources: Sequence[MetricsSource]) -> None:
        self._sources = sources

    async def page(self) -> bytes:
        pieces: list[bytes] = []
        for source in self._sources:
            async for family in source.families():
                for piece in render(family):
                    pieces.append(piece.encode(errors="replace"))
                    await asyncio.sleep(0)
        return b"".join(pieces)
