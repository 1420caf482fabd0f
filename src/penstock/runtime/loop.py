"""uvloop with a measurement of every turn's length, and `run` for a coroutine on it.

A turn is one round of the loop: due timers, queued callbacks, and input of sockets and threads. A request that arrives
now may have to wait for that long. uvloop has no hook around its poll. So a callback of our own is first in the queue
of every round while there is work, and measures the time between two rounds; while it is queued, the poll does not
wait. After a round without work it is not queued again, and the next event starts over (`_enter`): sockets, timers and
threads come in through here.

Must not know: what the callbacks do.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from time import perf_counter
from typing import Any, TypeVar, TypeVarTuple, cast

import uvloop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DEFAULT_STALL_S = 0.1
_SHORT_S = BOUNDS_S[0]
_REMEMBERED = 64
_call_soon = uvloop.Loop.call_soon
_call_later = uvloop.Loop.call_later
_call_soon_threadsafe = uvloop.Loop.call_soon_threadsafe


class TurnTimes:
    """`counts` has one more entry than BOUNDS_S. `stalls` are turns over `stall_s`: (number, seconds).

    Written by the loop. Another thread reads `began_s` (0: the loop is idle) and `number`, and takes entries from
    `stalls`.
    """

    __slots__ = ("began_s", "counts", "longest_s", "number", "stall_s", "stalled", "stalls", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = self.longest_s = 0.0
        self.began_s = 0.0
        self.number = 0
        self.stall_s = DEFAULT_STALL_S
        self.stalled = 0
        self.stalls: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)

    def observe(self, seconds: float) -> None:
        self.sum_s += seconds
        if seconds <= _SHORT_S:
            self.counts[0] += 1
            return
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        if seconds > self.longest_s:
            self.longest_s = seconds
        if seconds > self.stall_s > 0:
            self.stalled += 1
            self.stalls.append((self.number, seconds))


class TurnLoop(uvloop.Loop):
    def __init__(self) -> None:
        super().__init__()
        self.turns = TurnTimes()
        self._is_counting = False
        self._has_more = False

    def _begin(self) -> None:
        self._is_counting = True
        self.turns.began_s = perf_counter()
        _call_soon(self, self._turned)

    def _turned(self) -> None:
        turns = self.turns
        now = perf_counter()
        turns.observe(now - turns.began_s)
        turns.number += 1
        if self._has_more:
            self._has_more = False
            turns.began_s = now
            _call_soon(self, self._turned)
        else:
            self._is_counting = False
            turns.began_s = 0.0

    def _enter(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        if not self._is_counting:
            self._begin()
        self._has_more = True
        callback(*args)

    # -- every way into a turn -----------------------------------------------------------

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if not self._is_counting:
            self._begin()
        self._has_more = True
        return _call_soon(self, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """uvloop's `call_at` uses this, too."""
        return _call_later(self, delay, self._enter, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return _call_soon_threadsafe(self, self._enter, callback, *args, context=context)

    def add_reader(self, fd: Any, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        super().add_reader(fd, self._enter, callback, *args)

    def add_writer(self, fd: Any, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        super().add_writer(fd, self._enter, callback, *args)

    async def create_connection(  # type: ignore[override]  # as uvloop has it, argument for argument
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *args: Any, **kwargs: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        made: list[asyncio.BaseProtocol] = []

        def make() -> asyncio.BaseProtocol:
            made.append(protocol_factory())
            inner = made[0]
            return _TimedProtocol(self, inner) if isinstance(inner, asyncio.BufferedProtocol) else inner

        transport, _ = await super().create_connection(make, *args, **kwargs)
        return cast(asyncio.Transport, transport), made[0]


class _TimedProtocol(asyncio.BufferedProtocol):
    """Input of one of our connections begins a turn. uvloop asks for the buffer before it reads."""

    def __init__(self, loop: TurnLoop, inner: asyncio.BufferedProtocol) -> None:
        self._loop = loop
        self._get_buffer = inner.get_buffer
        self.buffer_updated = inner.buffer_updated  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.connection_made = inner.connection_made  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> Any:
        loop = self._loop
        if not loop._is_counting:
            loop._begin()
        loop._has_more = True
        return self._get_buffer(sizehint)


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(main)
