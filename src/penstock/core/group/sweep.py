"""A walk over all committed offsets of a shard, in pieces, so that other requests are served in between.

A group that changes meanwhile is judged by its state at its turn. Offsets to be deleted are hidden as soon as the
walk is requested (`Sweeps.is_doomed`), so clients do not notice how far the walk has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.core.group.exchange import Committed

PIECE = 5_000  # offsets examined per piece
PIECE_RECORDS = 1_000  # tombstones after which a piece starts no further group

TopicExists = Callable[[str], bool]


class Sweep:
    """`deleted`: deleted topics, even if recreated. `exists`: other topics may be deleted, too."""

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
        self.left: list[str] = []  # groups; the next one is last

    def begin(self, groups: Sequence[str]) -> None:
        self.left = list(reversed(groups))

    def take_along(self, other: Sweep) -> None:
        self.deleted.update(other.deleted)
        self.exists = other.exists or self.exists
        self.is_of_all_topics |= other.is_of_all_topics
        self.expires |= other.expires


class Sweeps:
    """The current sweep, and the next one, which collects requests that arrive in between."""

    __slots__ = ("_next", "current")

    def __init__(self) -> None:
        self.current: Sweep | None = None
        self._next: Sweep | None = None

    def ask_for(self, sweep: Sweep, groups: Iterable[str]) -> bool:
        """Return True if the sweep starts now."""
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
        """End the current sweep."""
        self.current, self._next = self._next, None
        if self.current is not None:
            self.current.begin(list(groups))

    def is_doomed(self, topic: str, topic_id: bytes, committed: Committed) -> bool:
        """Whether an offset belongs to a deleted topic. `topic_id`: of today's topic of that name, or empty."""
        if not committed.is_of(topic_id):
            return True
        for sweep in (self.current, self._next):
            if sweep is not None and topic in sweep.deleted:
                # Commits for today's topic carry its id.
                return not topic_id or committed.topic_id != topic_id
        return False
