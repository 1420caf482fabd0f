"""Offsets committed in open transactions: they count when their transaction commits.

If a partition has two commits, the later one in the log wins, even if the transaction of the earlier one ends later. So
a commit outside of transactions, and the commit of a transaction, discard all earlier pending offsets of the partition.

Must not know: members, the bytes of records, permissions to commit.
"""

from __future__ import annotations

from typing import TypeAlias

from penstock.core.group.records import OffsetCommit

Place: TypeAlias = tuple[str, str, int]
"""(group, topic, partition)"""


class PendingOffsets:
    def __init__(self) -> None:
        self._by_producer: dict[int, dict[Place, OffsetCommit]] = {}
        self._producers_at: dict[Place, dict[int, None]] = {}  # in the order of the log
        self._by_group: dict[str, dict[Place, None]] = {}

    def __len__(self) -> int:
        """The number of open transactions with committed offsets."""
        return len(self._by_producer)

    def add(self, producer_id: int, commit: OffsetCommit) -> None:
        place = commit[:3]
        self._by_producer.setdefault(producer_id, {})[place] = commit
        producers = self._producers_at.get(place)
        if producers is None:
            producers = self._producers_at[place] = {}
            self._by_group.setdefault(commit.group, {})[place] = None
        producers.pop(producer_id, None)
        producers[producer_id] = None

    def supersede(self, place: Place) -> None:
        """A commit outside of transactions, or a tombstone, discards all pending offsets of this partition."""
        for producer_id in self._producers_at.get(place, ()):
            self._discard(producer_id, place)
        self._forget_place(place)

    def end(self, producer_id: int, *, is_commit: bool) -> list[OffsetCommit]:
        """Returns the offsets that count from now on."""
        ended = self._by_producer.pop(producer_id, {})
        for place in ended:
            producers = self._producers_at[place]
            if is_commit:
                for other in list(producers):
                    del producers[other]
                    if other == producer_id:
                        break
                    self._discard(other, place)
            else:
                del producers[producer_id]
            if not producers:
                self._forget_place(place)
        return list(ended.values()) if is_commit else []

    def has(self, place: Place) -> bool:
        return place in self._producers_at

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def of_group(self, group_id: str) -> list[Place]:
        return list(self._by_group.get(group_id, ()))

    def latest(self, place: Place) -> OffsetCommit:
        """The pending offset that is last in the log."""
        return self._by_producer[next(reversed(self._producers_at[place]))][place]

    def _discard(self, producer_id: int, place: Place) -> None:
        commits = self._by_producer[producer_id]
        del commits[place]
        if not commits:
            del self._by_producer[producer_id]

    def _forget_place(self, place: Place) -> None:
        if self._producers_at.pop(place, None) is not None:
            places = self._by_group[place[0]]
            del places[place]
            if not places:
                del self._by_group[place[0]]
