"""A walk over all committed offsets of a shard, a piece at a time: others are served in between.

A group that changes meanwhile is judged as it is when its turn comes. What is about to go does not count any more from
the moment the walk is asked for (`Sweeps.is_doomed`), so it makes no difference to clients how far the walk has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.core.group.exchange import Committed

PIECE = 5_000  # offsets that are looked at in one go
PIECE_RECORDS = 1_000  # and tombstones beyond which no further group is begun

TopicExists = Callable[[str], bool]


class Sweep:
    """What is looked for. `deleted`: topics, whatever has their names now; `exists`: others are deleted too."""

    __slots__ = ("deleted", "exists", "expires", "is_of_all_topics", "left")

    def __init__(
        self,
        deleted: Iterable[str] = (),
        exists: TopicExists | None = None,
        *,
        is_of_all_topics: bool = False,
        expires: bool = False,
    ) -> None:
        self.deleted = dict.fromkeys(deleted)
        self.exists = exists
        self.is_of_all_topics = is_of_all_topics or expires or exists is not None
        self.expires = expires
        self.left: list[str] = []  # groups, the next one last

    def begin(self, groups: Sequence[str]) -> None:
        self.left = list(reversed(groups))

    def take_along(self, other: Sweep) -> None:
        self.deleted.update(other.deleted)
        self.exists = other.exists or self.exists
        self.is_of_all_topics |= other.is_of_all_topics
        self.expires |= other.expires


class Sweeps:
    """One under way, and one that begins when it has ended: for whatever was asked for in between."""

    __slots__ = ("_next", "current")

    def __init__(self) -> None:
        self.current: Sweep | None = None
        self._next: Sweep | None = None

    def ask_for(self, sweep: Sweep, groups: Iterable[str]) -> bool:
        """True: it begins now."""
        if self.current is None:
            self.current = sweep
            sweep.begin(list(groups))
            return True
        if self._next is None:
            self._next = sweep
        else:
            self._next.take_along(sweep)
        return False

    def end(self, groups: Iterable[str]) -> None:
        """Of the current one."""
        self.current, self._next = self._next, None
        if self.current is not None:
            self.current.begin(list(groups))

    def is_doomed(self, topic: str, topic_id: bytes, committed: Committed) -> bool:
        """Whether it was committed for a topic that is no more. `topic_id`: of the one of that name today, or empty."""
        if not committed.is_of(topic_id):
            return True
        for sweep in (self.current, self._next):
            if sweep is not None and topic in sweep.deleted:
                # Whatever is committed for the topic of today carries its id.
                return not topic_id or committed.topic_id != topic_id
        return False
