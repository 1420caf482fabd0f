"""The log in memory: entries after a base, the commit index, the stable index.

The base is the position before the first entry; only its index and term are known. It is at the snapshot or, so that
slow followers need no snapshot, some entries before it. Invariants: `base_index <= snapshot index <= commit_index <=
last_index`, `stable_index <= last_index`; committed entries are never truncated. Must not know: roles, elections,
messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from penstock.core.raft.messages import Entry, Snapshot
from penstock.model.errors import PenstockError


class CommittedEntryLost(PenstockError):
    """A leader tried to replace a committed entry: some server broke its promises."""


class LogGap(PenstockError):
    """Entries are missing between the stored snapshot and the stored log."""


def continues(snapshot: Snapshot, entries: Sequence[Entry]) -> bool:
    """Whether these entries belong to the same history as the snapshot."""
    if entries[0].index > snapshot.index:
        return True
    return entries[-1].index >= snapshot.index and entries[snapshot.index - entries[0].index].term == snapshot.term


class RaftLog:
    __slots__ = ("_entries", "_writing", "base_index", "base_term", "commit_index", "stable_index")

    def __init__(self, base_index: int, base_term: int, entries: Iterable[Entry] = ()) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self._entries = list(entries)
        self.commit_index = base_index
        self.stable_index = self.last_index
        self._writing: deque[tuple[int, int]] = deque()

    @staticmethod
    def recover(snapshot: Snapshot, entries: Sequence[Entry]) -> RaftLog:
        """Recover after a crash. A log that does not match the snapshot was about to be replaced by it."""
        if entries and entries[0].index > snapshot.index + 1:
            raise LogGap(f"the snapshot ends at {snapshot.index}, the log begins at {entries[0].index}")
        if not entries or not continues(snapshot, entries):
            log = RaftLog(snapshot.index, snapshot.term)
        elif entries[0].index > snapshot.index:
            log = RaftLog(snapshot.index, snapshot.term, entries)
        else:
            log = RaftLog(entries[0].index, entries[0].term, entries[1:])
        log.commit_index = snapshot.index
        return log

    # ---- reading

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """None if the entry was compacted or is past the end."""
        if self.base_index < index <= self.last_index:
            return self._entries[index - self.base_index - 1].term
        return self.base_term if index == self.base_index else None

    def between(self, first: int, last: int) -> list[Entry]:
        """Entries from first to last, inclusive."""
        return self._entries[first - self.base_index - 1 : last - self.base_index]

    def after(self, index: int) -> list[Entry]:
        """All entries after index; none if the next one was compacted."""
        return self._entries[index - self.base_index :] if index >= self.base_index else []

    def batch_from(self, index: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from index on: as many as fit, and at least one if there is one."""
        batch: list[Entry] = []
        size = 0
        for position in range(index - self.base_index - 1, len(self._entries)):
            entry = self._entries[position]
            size += entry.size_bytes
            if batch and size > max_bytes:
                break
            batch.append(entry)
        return tuple(batch)

    def is_at_most(self, last_index: int, last_term: int) -> bool:
        """Whether a log with this end is at least as up to date as this log."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    # ---- conflicts

    def conflict_at(self, prev_index: int) -> tuple[int, int]:
        """The conflict to report if `prev_index` does not match: index and term, see `AppendResponse`."""
        term = self.term_at(prev_index)
        if term is None:
            return self.last_index + 1, 0
        first = prev_index
        while first - 1 > self.commit_index and self.term_at(first - 1) == term:
            first -= 1
        return first, term

    def next_after_conflict(self, conflict_index: int, conflict_term: int, prev_index: int) -> int:
        """The next index at which a follower with this conflict may agree: after our last entry of that term, or before
        all of it.
        """
        if conflict_term == 0:
            return min(conflict_index, prev_index)
        index = min(prev_index - 1, self.last_index)
        while index >= conflict_index and (self.term_at(index) or 0) > conflict_term:
            index -= 1
        return index + 1 if index >= conflict_index and self.term_at(index) == conflict_term else conflict_index

    def first_difference(self, entries: Sequence[Entry]) -> int | None:
        """Position of the first of these entries that is not in the log, or None."""
        for position, entry in enumerate(entries):
            if self.term_at(entry.index) != entry.term and entry.index > self.base_index:
                return position
        return None

    # ---- writing

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            assert entry.index == self.last_index + 1, f"{entry.index} after {self.last_index}"
            self._entries.append(entry)

    def truncate_from(self, index: int) -> None:
        if index <= self.commit_index:
            raise CommittedEntryLost(f"entry {index} is committed (up to {self.commit_index})")
        del self._entries[index - self.base_index - 1 :]
        self._stable_before(index)

    def compact_to(self, index: int) -> None:
        """Drop entries up to index; a snapshot contains them."""
        if index > self.base_index:
            term = self.term_at(index)
            assert term is not None
            del self._entries[: index - self.base_index]
            self.base_index, self.base_term = index, term

    def restart_at(self, snapshot: Snapshot) -> None:
        """Drop the whole log; it continues after the leader's snapshot."""
        self._entries.clear()
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self.commit_index = snapshot.index
        self._stable_before(0)

    # ---- durability

    def begin_write(self, generation: int) -> None:
        self._writing.append((generation, self.last_index))

    def end_write(self, generation: int) -> None:
        while self._writing and self._writing[0][0] <= generation:
            self.stable_index = self._writing.popleft()[1]

    def _stable_before(self, index: int) -> None:
        """Truncated entries must not become stable when an older write ends."""
        end = max(index - 1, 0)
        self.stable_index = min(self.stable_index, end)
        self._writing = deque((generation, min(last, end)) for generation, last in self._writing)
