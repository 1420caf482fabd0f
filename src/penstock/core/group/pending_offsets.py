"""Offsets that open transactions have committed: they count when their transaction commits.

The order of the log decides between two commits of one partition. Where a later one counts already, the end of a
transaction does not bring back an earlier one: so a commit outside of transactions, and a transaction that commits,
discard what is pending from before them.

Must not know: members, records' bytes, who may commit.
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
        """Open transactions that have committed offsets."""
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
        """A commit outside of transactions, or a tombstone, comes after everything that is pending there."""
        for producer_id in self._producers_at.get(place, ()):
            self._discard(producer_id, place)
        self._forget_place(place)

    def end(self, producer_id: int, *, is_commit: bool) -> list[OffsetCommit]:
        """What counts from now on."""
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
        """Of what is pending there, the last in the log."""
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
