"""Divides work that is too large for one turn of the event loop into steps.

The whole broker runs one step a turn, in request order. So however many clients send wide requests, other work waits
for one step at most, about a tenth of a millisecond. Must not know: what the steps do.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable, Iterable
from itertools import islice
from sys import getrefcount
from typing import Any, Final, TypeVar

from penstock.wire.primitives import Message

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

ITEMS_PER_TURN: Final = 32
COUNTED_PER_TURN: Final = 2048
FREED_PER_TURN: Final = 2048
TAKEN_APART_PER_TURN: Final = 128
"""Items that contain arrays: each of these is inspected."""


def drained(steps: Generator[None, None, T]) -> T:
    """The result of the steps, in this turn: for narrow work."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _arrays(message: object) -> list[list[object]]:
    if not isinstance(message, Message):
        return []
    values = (getattr(message, field[0], None) for field in message.FIELDS)
    return [value for value in values if isinstance(value, list) and value]


def _references(arrays: list[list[object]]) -> int:
    """References to the last of the arrays, including those of this call."""
    array = arrays[-1]
    return getrefcount(array)


NO_OTHERS: Final = _references([[]])


class Turns:
    """The turns of the whole broker."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self.taken = 0

    def call(self, step: Callable[[], None]) -> None:
        """Call `step` in a turn of its own."""
        self._waiting.append(step)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        step = self._waiting[0]
        self.taken += 1
        try:
            step()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._run)

    def let_go(self, message: Message) -> None:
        """Free a wide message some items a turn: 40,000 at once take more than a millisecond.

        The caller drops the message within this turn. An array with other references by then stays as it is.
        """
        if arrays := _arrays(message):
            self.call(lambda: self._free(arrays))

    def _free(self, arrays: list[list[object]]) -> None:
        """Arrays within the items of others go first."""
        left = TAKEN_APART_PER_TURN
        while arrays and left > 0:
            left -= 1
            if not arrays[-1] or _references(arrays) > NO_OTHERS:
                arrays.pop()
            elif inner := _arrays(arrays[-1][-1]):
                del arrays[-1][-1]
                arrays += inner
                inner.clear()  # there are no other references
            else:
                left -= min(len(arrays[-1]), FREED_PER_TURN) * TAKEN_APART_PER_TURN // FREED_PER_TURN
                del arrays[-1][-FREED_PER_TURN:]
        if arrays:
            self.call(lambda: self._free(arrays))

    async def next(self) -> None:
        """Let other work have a turn."""
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call(lambda: None if come.done() else come.set_result(None))
        await come


class Pace:
    """The turns of one request."""

    __slots__ = ("_done", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._done = 0

    async def finish(self, steps: Generator[None, None, T]) -> T:
        """The result of the steps; each runs in a turn of its own."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            await self._turns.next()

    async def later(self, steps: Generator[None, None, T]) -> T:
        """Like `finish`, with the first step in a turn of its own: many requests wake at the same time."""
        await self._turns.next()
        return await self.finish(steps)

    async def gather(self, work: Iterable[Coroutine[Any, Any, T]], per_turn: int = ITEMS_PER_TURN) -> list[T]:
        """The results in order, like `asyncio.gather`, some at a time."""
        rest = iter(work)
        done: list[T] = []
        while some := list(islice(rest, per_turn)):
            if done:
                await self._turns.next()
            done += await asyncio.gather(*some)
        return done

    async def counted(self, items: Iterable[K]) -> Counter[K]:
        """Count the items."""
        rest = iter(items)
        found: Counter[K] = Counter()
        while some := list(islice(rest, COUNTED_PER_TURN)):
            if found:
                await self._turns.next()
            found.update(some)
        return found

    async def each(self, items: Iterable[T], per_turn: int = ITEMS_PER_TURN) -> AsyncIterator[T]:
        """The items, with a turn for other work after every `per_turn` of this request's, nested ones included."""
        for item in items:
            if self._done >= per_turn:
                self._done = 0
                await self._turns.next()
            self._done += 1
            yield item
