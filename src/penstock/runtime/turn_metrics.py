"""Metrics of the event loop's turn lengths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from penstock.observability.exposition import Family, HistogramSample, counter, gauge, histogram
from penstock.runtime.loop import BOUNDS_S, TurnLoop


class TurnMetrics:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def families(self) -> AsyncIterator[Family]:
        if not isinstance(self._loop, TurnLoop):
            return
        turns = self._loop.turns
        yield histogram(
            "penstock_loop_turn_seconds",
            "Duration of event loop turns: a request that arrives may have to wait for one turn.",
            (),
            [HistogramSample((), BOUNDS_S, list(turns.counts), turns.sum_s)],
        )
        yield gauge(
            "penstock_loop_turn_longest_seconds", "The longest turn since the start.", (), [((), turns.longest_s)]
        )
        yield counter(
            "penstock_loop_stalls_total",
            "Turns that took longer than penstock.loop.stall.ms; the log names the code that held the loop.",
            (),
            [((), turns.stalled)],
        )
