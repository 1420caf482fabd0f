"""What a follower's fetch session has to look at: only partitions that were asked for anew or that have news.

A broker may follow thousands of partitions of another over one session, most of them idle. The watch is told of
appends and of moves of the high watermark as long as the session lives, that is as long as its connection does; an
append wakes the parked fetch, a high watermark waits for the next answer unless followers serve consumers (`is_eager`).
Must not know: the wire, how partitions are read.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.api.fetch_sessions import SessionPartition
from penstock.replica.committed_log import CommittedLog


class _Ear:
    """A `Waiter` of one kind."""

    __slots__ = ("_hear",)

    def __init__(self, hear: Callable[[CommittedLog], None]) -> None:
        self._hear = hear

    def notify(self, source: CommittedLog) -> None:
        self._hear(source)


class FollowerWatch:
    __slots__ = ("_asked", "_mark_ear", "_news", "_sources", "_tail_ear", "is_eager", "on_close", "wake")

    def __init__(self, *, is_eager: bool) -> None:
        self.is_eager = is_eager
        self.wake: Callable[[], None] | None = None  # the fetch that is parked
        self.on_close: Callable[[], object] | None = None
        self._asked: dict[CommittedLog, SessionPartition] = {}
        self._sources: dict[tuple[str, bytes, int], CommittedLog] = {}
        self._news: dict[SessionPartition, None] = {}
        self._tail_ear = _Ear(self._grown)
        self._mark_ear = _Ear(self._committed)

    def watch(self, asked: SessionPartition, source: CommittedLog) -> None:
        known = self._sources.get(_key(asked))
        if known is source and self._asked[source] is asked:
            return
        self.forget(asked)
        self._sources[_key(asked)] = source
        self._asked[source] = asked
        source.tail_waiters[self._tail_ear] = None
        source.waiters[self._mark_ear] = None

    def forget(self, asked: SessionPartition) -> None:
        source = self._sources.pop(_key(asked), None)
        self._news.pop(asked, None)
        if source is not None:
            self._news.pop(self._asked.pop(source), None)
            source.tail_waiters.pop(self._tail_ear, None)
            source.waiters.pop(self._mark_ear, None)

    def close(self) -> None:
        for source in self._asked:
            source.tail_waiters.pop(self._tail_ear, None)
            source.waiters.pop(self._mark_ear, None)
        self._asked.clear()
        self._sources.clear()
        self._news.clear()
        self.wake = None
        if self.on_close is not None:
            self.on_close()

    def put_back(self, asked: SessionPartition) -> None:
        """It could not be looked at this time."""
        self._news[asked] = None

    def take_news(self) -> list[SessionPartition]:
        news, self._news = self._news, {}
        return list(news)

    def _grown(self, source: CommittedLog) -> None:
        asked = self._asked.get(source)
        if asked is not None:
            self._news[asked] = None
            if self.wake is not None:
                self.wake()

    def _committed(self, source: CommittedLog) -> None:
        asked = self._asked.get(source)
        if asked is not None:
            self._news[asked] = None
            if self.is_eager and self.wake is not None:
                self.wake()


def _key(asked: SessionPartition) -> tuple[str, bytes, int]:
    return asked.topic, asked.topic_id, asked.index
