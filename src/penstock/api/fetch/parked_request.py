"""A request that waits until its answer is large enough, its deadline is over, or its client is gone.

News wakes it once, at the end of the turn, however much happens in that turn. Then it looks at the partitions with
news. If that is enough, or the deadline is over, it looks once more at the partitions it is about to offer, and is
completed. A narrow request does all this in one turn and needs no task. A wide one is a coroutine and looks in turns of
its own. Must not know: what a look is, how the answer is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Final, Protocol

from penstock.api.fetch.fetch_sessions import SessionPartition
from penstock.api.turns import Pace
from penstock.model.errors import ProtocolError
from penstock.net.connection import Connection

PARTITIONS_PER_STEP: Final = 64


class Waiting(Protocol):
    """The parked request."""

    @property
    def makes_way(self) -> bool:
        """Whether it is answered with its current findings when its client sends another request, which must wait for
        it.
        """
        ...

    @property
    def is_enough(self) -> bool: ...

    def look_at(self, one: SessionPartition) -> None: ...

    def offered(self) -> Collection[SessionPartition]:
        """The partitions to look at once more just before the answer."""
        ...


class News(Protocol):
    wake: Callable[[], None] | None

    def take_news(self) -> Collection[SessionPartition]: ...

    def release(self) -> None:
        """The request is no longer parked."""
        ...


class ParkedRequest:
    __slots__ = ("_complete", "_connection", "_is_notified", "_is_parked", "_loop", "_news", "_timer", "_waiting")

    def __init__(self, waiting: Waiting, news: News, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting = waiting
        self._news = news
        self._connection = connection
        self._loop = loop
        self._complete: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_parked = False
        self._is_notified = False

    def park(self, timeout_s: float, complete: Callable[[], None]) -> None:
        """`complete` is called once, or never if the client disconnects first."""
        self._is_parked = True
        self._complete = complete
        self._news.wake = self._wake
        if self._waiting.makes_way:
            self._connection.when_blocked = self._make_way
        self._timer = self._loop.call_later(timeout_s, self._due)
        self._connection.when_closed[self.leave] = None

    def leave(self) -> None:
        self._news.release()
        if self._timer is None:
            return  # it was answered without waiting
        self._is_parked = False
        self._complete = None
        self._timer.cancel()
        connection = self._connection
        if self._waiting.makes_way:
            connection.when_blocked = None
        connection.when_closed.pop(self.leave, None)

    def _wake(self) -> None:
        """The look comes once, after all events of this turn."""
        if not self._is_notified:
            self._is_notified = True
            self._loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._is_notified = False
        self._look_again(is_due=False)

    def _make_way(self, api_key: int) -> None:
        self._loop.call_soon(self._due)

    def _due(self) -> None:
        self._look_again(is_due=True)

    def _look_again(self, *, is_due: bool) -> None:
        if not self._is_parked:
            return
        waiting = self._waiting
        try:
            looked = self._news.take_news()
            for one in looked:
                waiting.look_at(one)
            if is_due or waiting.is_enough:
                for one in waiting.offered():
                    if one not in looked:
                        waiting.look_at(one)
                complete = self._complete
                self.leave()
                if complete is not None:
                    complete()
        except BaseException:
            # A defect: this client must not wait for ever. The loop logs it.
            self.leave()
            self._connection.abort(ProtocolError("internal error"))
            raise

    async def wait_in_turns(self, timeout_s: float, pace: Pace) -> bool:
        """The counterpart of `park` for wide requests. False: the client is gone."""
        waiting, connection = self._waiting, self._connection
        woken = asyncio.Event()
        is_due = waiting.makes_way and connection.is_blocked

        def due(api_key: int = 0) -> None:
            nonlocal is_due
            is_due = True
            woken.set()

        self._news.wake = woken.set
        if waiting.makes_way:
            connection.when_blocked = due
        self._timer = self._loop.call_later(timeout_s, due)
        connection.when_closed[due] = None
        try:
            while True:
                await pace.finish(in_steps(self._news.take_news(), waiting.look_at))
                if connection.is_closed:
                    return False
                if is_due or waiting.is_enough:
                    break
                await woken.wait()
                woken.clear()
            await pace.finish(in_steps(waiting.offered(), waiting.look_at))
            return not connection.is_closed
        finally:
            connection.when_closed.pop(due, None)
            self.leave()


def in_steps(
    asked: Iterable[SessionPartition], look_at: Callable[[SessionPartition], None]
) -> Generator[None, None, None]:
    for at, one in enumerate(asked, 1):
        look_at(one)
        if not at % PARTITIONS_PER_STEP:
            yield
