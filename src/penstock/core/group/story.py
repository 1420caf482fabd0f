"""Why a group rebalanced: a bounded list of events per group, for people.

Kept only in memory: a restart begins a new story. No decision depends on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from penstock.core.shard.wall_clock import WallClock

EVENTS_KEPT: Final = 256
SHARES_KEPT: Final = 50_000
"""Limit of members and partitions in all assignments of a story together; large groups have shorter stories."""
WHY_CHARACTERS: Final = 255
"""Clients cut their reasons to the same length; a subscription may be long too."""
REASONS_KEPT: Final = 8

Holding: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""(topic, partitions), both sorted."""


def holding(partitions: Mapping[str, Collection[int]]) -> Holding:
    return tuple((topic, tuple(sorted(held))) for topic, held in sorted(partitions.items()) if held)


def shares_of(shares: Collection[int]) -> str:
    """Describe the shares of a rebalance: partitions in total, and the smallest and largest share. Empty if unknown."""
    return f", {many(sum(shares), 'partition')}, {min(shares)} to {max(shares)} each" if shares else ""


def many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class What(Enum):
    JOINED = "joined"
    REJOINED = "requested a new assignment"
    CHANGED = "changed its subscription"
    REPLACED = "took over its instance id"
    LEFT = "left"
    TIMED_OUT = "timed out"
    NOT_REJOINED = "did not rejoin in time"
    NOT_SYNCED = "did not request its assignment in time"
    ASSIGNED = "assigned"
    EMPTY = "empty"
    LOADED = "loaded from the log"
    TOPICS_CHANGED = "topics changed"
    UPGRADED = "moved to the consumer protocol"
    DOWNGRADED = "moved back to the classic protocol"


class StoryEvent(NamedTuple):
    at_ms: int
    """A monotonic moment when recorded, the time of day when read."""
    generation: int
    what: What
    member: str | None = None
    why: str = ""
    assigned: tuple[tuple[str, int], ...] = ()
    """(member, number of partitions) of an ASSIGNED event, if the assignment could be read."""
    holdings: tuple[Holding, ...] = ()
    """The partitions of each member in `assigned`, in the same order."""


class Reasons:
    """Reasons of one rebalance: the first few, and their total number."""

    __slots__ = ("_count", "_first")

    def __init__(self) -> None:
        self._first: list[str] = []
        self._count = 0

    def add(self, reason: str) -> None:
        self._count += 1
        if len(self._first) < REASONS_KEPT:
            self._first.append(reason)

    def take(self) -> list[str]:
        """Return the reasons for people, and clear them."""
        told, more = self._first, self._count - len(self._first)
        self._first, self._count = [], 0
        return [*told, f"and {more} more"] if more else told


class Stories:
    def __init__(
        self, wall: WallClock | None = None, *, events_kept: int = EVENTS_KEPT, shares_kept: int = SHARES_KEPT
    ) -> None:
        self._wall = wall or WallClock()
        self._events_kept = events_kept
        self._shares_kept = shares_kept
        self._by_group: dict[str, deque[StoryEvent]] = {}

    def tell(self, group_id: str, event: StoryEvent) -> None:
        events = self._by_group.get(group_id)
        if events is None:
            events = self._by_group[group_id] = deque(maxlen=self._events_kept)
        events.append(event._replace(at_ms=self._wall.at(event.at_ms), why=event.why[:WHY_CHARACTERS]))
        if event.assigned:
            shares = sum(_size(earlier) for earlier in events)
            while shares > self._shares_kept and len(events) > 1:
                shares -= _size(events.popleft())

    def of(self, group_id: str) -> tuple[StoryEvent, ...]:
        return tuple(self._by_group.get(group_id, ()))

    def forget(self, group_id: str) -> None:
        self._by_group.pop(group_id, None)


def _size(event: StoryEvent) -> int:
    return len(event.assigned) + sum(count for _, count in event.assigned)
