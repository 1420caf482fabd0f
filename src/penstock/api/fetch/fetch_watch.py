"""The partitions that a fetch must look at again: with a session only requested partitions and those with news.

A session may have thousands of partitions, most of them idle. The watch is notified of their changes while its
connection lives. For a follower an append is news and wakes the parked fetch; a new high watermark waits for the next
answer unless followers serve consumers (`is_eager`). For a consumer a new high watermark is news. Partitions offered to
a consumer stay in `standing`: it may repeat a fetch without naming them, so the next fetch looks at them in any case. A
fetch without a session has its own listener while it is parked (`Listening`). Must not know: the wire, how partitions
are read.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.api.fetch.fetch_sessions import SessionPartition
from penstock.replica.partition import Partition


class _Ear:
    """A `Waiter` of one kind."""

    __slots__ = ("_hear",)

    def __init__(self, hear: Callable[[Partition], None]) -> None:
        self._hear = hear

    def notify(self, source: Partition) -> None:
        self._hear(source)


class FetchWatch:
    __slots__ = (
        "_asked",
        "_is_of_follower",
        "_mark_ear",
        "_news",
        "_sources",
        "_tail_ear",
        "is_eager",
        "on_close",
        "standing",
        "wake",
    )

    def __init__(self, *, is_of_follower: bool, is_eager: bool) -> None:
        """`is_eager`: a new high watermark wakes the parked fetch."""
        self._is_of_follower = is_of_follower
        self.is_eager = is_eager
        self.wake: Callable[[], None] | None = None  # the parked fetch
        self.on_close: Callable[[], object] | None = None
        self.standing: dict[SessionPartition, None] = {}
        self._asked: dict[Partition, SessionPartition] = {}
        self._sources: dict[SessionPartition, Partition] = {}
        self._news: dict[SessionPartition, None] = {}
        self._tail_ear = _Ear(self._grown)
        self._mark_ear = _Ear(self._committed)

    def watch(self, asked: SessionPartition, source: Partition) -> None:
        if self._sources.get(asked) is source:
            return
        self._leave(asked)
        self._sources[asked] = source
        self._asked[source] = asked
        if self._is_of_follower:
            source.tail_waiters[self._tail_ear] = None
        source.waiters[self._mark_ear] = None

    def forget(self, asked: SessionPartition) -> None:
        self._news.pop(asked, None)
        self.standing.pop(asked, None)
        self._leave(asked)

    def _leave(self, asked: SessionPartition) -> None:
        source = self._sources.pop(asked, None)
        if source is not None:
            self._asked.pop(source, None)
            source.tail_waiters.pop(self._tail_ear, None)
            source.waiters.pop(self._mark_ear, None)

    def close(self) -> None:
        for source in self._asked:
            source.tail_waiters.pop(self._tail_ear, None)
            source.waiters.pop(self._mark_ear, None)
        self._asked.clear()
        self._sources.clear()
        self._news.clear()
        self.standing.clear()
        self.wake = None
        if self.on_close is not None:
            self.on_close()

    def release(self) -> None:
        """The parked fetch has ended. The watch continues."""
        self.wake = None

    def move_to_end(self, asked: SessionPartition) -> None:
        if asked in self.standing:
            self.standing[asked] = self.standing.pop(asked)

    def put_back(self, asked: SessionPartition) -> None:
        """Keep the partition for the next look: it could not be read this time."""
        self._news[asked] = None

    @property
    def due(self) -> int:
        """The number of partitions that a new fetch looks at besides those it names."""
        return len(self._news) + len(self.standing)

    def take_all(self) -> dict[SessionPartition, None]:
        """For a new fetch. The longest waiting comes first, so that a busy partition does not starve the others."""
        taken, self.standing = self.standing, {}
        taken |= self._news
        self._news = {}
        return taken

    def take_news(self) -> list[SessionPartition]:
        """For a parked fetch."""
        news, self._news = self._news, {}
        return list(news)

    def _grown(self, source: Partition) -> None:
        asked = self._asked.get(source)
        if asked is not None:
            self._news[asked] = None
            if self.wake is not None:
                self.wake()

    def _committed(self, source: Partition) -> None:
        asked = self._asked.get(source)
        if asked is not None:
            self._news[asked] = None
            if self.is_eager and self.wake is not None:
                self.wake()


class Listening:
    """The listener of one fetch without a session; a `Waiter`."""

    __slots__ = ("_asked", "_news", "_to_tails", "wake")

    def __init__(self, *, to_tails: bool) -> None:
        """`to_tails`: an append is news; else a new high watermark."""
        self._to_tails = to_tails
        self.wake: Callable[[], None] | None = None  # the parked fetch
        self._asked: dict[Partition, SessionPartition] = {}
        self._news: dict[SessionPartition, None] = {}

    def watch(self, asked: SessionPartition, source: Partition) -> None:
        (source.tail_waiters if self._to_tails else source.waiters)[self] = None
        self._asked[source] = asked

    def notify(self, source: Partition) -> None:
        asked = self._asked.get(source)
        if asked is not None:
            self._news[asked] = None
            if self.wake is not None:
                self.wake()

    def take_news(self) -> dict[SessionPartition, None]:
        news, self._news = self._news, {}
        return news

    def release(self) -> None:
        """The parked fetch has ended, so stop listening."""
        for source in self._asked:
            (source.tail_waiters if self._to_tails else source.waiters).pop(self, None)
        self._asked = {}
        self.wake = None
