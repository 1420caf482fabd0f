"""Server-side assignors of consumer groups: they decide which member gets which partition.

Pure functions from subscriptions and the previous target to the next target. Must not know:
epochs, sessions, current ownership; `reconciliation` moves the members to the target.

- `range`: each topic separately, cut into contiguous ranges in the order of the members. Topics
  with the same subscribers and partition count are cut alike (co-partitioning).
- `uniform`: all partitions as evenly as the subscriptions allow, with as few moves as possible.

Invariants (property tests check them): every partition of a subscribed topic has exactly one
owner, and the owner subscribes to it; with equal subscriptions the loads differ by at most
one; `uniform` applied to its own result changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id; no topic has an empty set."""

EMPTY: Final[Assignment] = {}


class MemberSpec(NamedTuple):
    """The facts about a member that an assignor uses."""

    topics: frozenset[bytes]  # ids of existing subscribed topics
    target: Assignment = EMPTY  # the previous target
    instance_id: str | None = None


Members: TypeAlias = Mapping[str, MemberSpec]
Partitions: TypeAlias = Mapping[bytes, int]
"""Number of partitions by topic id, for every subscribed topic at least."""

_Partition: TypeAlias = tuple[bytes, int]

Assignor: TypeAlias = Callable[[Members, Partitions], dict[str, Assignment]]


class _Plan:
    """An assignment under construction: the partitions and the load of each member."""

    def __init__(self, members: Iterable[str]) -> None:
        self.held: dict[str, dict[bytes, set[int]]] = {member: {} for member in members}
        self.load: dict[str, int] = dict.fromkeys(self.held, 0)

    def give(self, member: str, topic: bytes, partition: int) -> None:
        self.held[member].setdefault(topic, set()).add(partition)
        self.load[member] += 1

    def take(self, member: str, topic: bytes, partition: int) -> None:
        self.held[member][topic].discard(partition)
        self.load[member] -= 1

    def finish(self) -> dict[str, Assignment]:
        return {
            member: {topic: frozenset(partitions) for topic, partitions in sorted(held.items()) if partitions}
            for member, held in self.held.items()
        }


def assign_range(members: Members, partitions: Partitions) -> dict[str, Assignment]:
    plan = _Plan(members)
    # Static members come first, ordered by instance id: after a restart a member id is new, but the range stays.
    ordered = sorted(members, key=lambda member: (members[member].instance_id is None, _range_key(members, member)))
    for topic in sorted(partitions):
        subscribers = [member for member in ordered if topic in members[member].topics]
        if not subscribers:
            continue
        size, extra = divmod(partitions[topic], len(subscribers))
        start = 0
        for position, member in enumerate(subscribers):
            end = start + size + (position < extra)
            for partition in range(start, end):
                plan.give(member, topic, partition)
            start = end
    return plan.finish()


def _range_key(members: Members, member: str) -> str:
    return members[member].instance_id or member


def assign_uniform(members: Members, partitions: Partitions) -> dict[str, Assignment]:
    subscriptions = {spec.topics for spec in members.values()}
    if len(subscriptions) <= 1:
        return _uniform_equal(members, partitions)
    return _uniform_mixed(members, partitions)


def _kept(members: Members, partitions: Partitions) -> tuple[dict[str, list[_Partition]], list[_Partition]]:
    """Return the partitions each member keeps, and the unassigned ones, both in order."""
    kept: dict[str, list[_Partition]] = {}
    taken: dict[_Partition, str] = {}
    for member, spec in sorted(members.items()):
        mine = kept[member] = []
        for topic, held in sorted(spec.target.items()):
            if topic not in spec.topics:
                continue
            for partition in sorted(held):
                if partition < partitions[topic] and taken.setdefault((topic, partition), member) == member:
                    mine.append((topic, partition))
    subscribed = sorted(frozenset().union(*{spec.topics for spec in members.values()}))
    free = [
        (topic, partition)
        for topic in subscribed
        for partition in range(partitions[topic])
        if (topic, partition) not in taken
    ]
    return kept, free


def _uniform_equal(members: Members, partitions: Partitions) -> dict[str, Assignment]:
    """Equal subscriptions: each member gets a quota, which minimises moves.

    Members keep partitions up to their quota. The places above it go first to members that
    already hold that many, then to the first of the others.
    """
    plan = _Plan(members)
    if not members:
        return {}
    kept, free = _kept(members, partitions)
    total = len(free) + sum(len(mine) for mine in kept.values())
    quota, extra = divmod(total, len(members))
    hungry: list[tuple[str, int]] = []
    for member in sorted(kept, key=lambda member: (-len(kept[member]), member)):
        places = quota + (extra > 0)
        extra -= extra > 0
        mine = kept[member]
        for topic, partition in mine[:places]:
            plan.give(member, topic, partition)
        free += mine[places:]
        if places > len(mine):
            hungry.append((member, places))
    free.sort()
    # Dealt in turn instead of filling one member at a time, so that each topic is spread too.
    position = 0
    while position < len(free) and hungry:
        still: list[tuple[str, int]] = []
        for member, places in hungry:
            if position == len(free):
                break
            plan.give(member, *free[position])
            position += 1
            if plan.load[member] < places:
                still.append((member, places))
        hungry = still
    return plan.finish()


def _uniform_mixed(members: Members, partitions: Partitions) -> dict[str, Assignment]:
    """Different subscriptions: keep all, deal the rest to the least loaded, then even out.

    Evening out moves a partition only to a subscriber with at least two fewer. So the sum of
    squared loads falls with every move, and the loop ends.
    """
    plan = _Plan(members)
    kept, free = _kept(members, partitions)
    had: dict[_Partition, str] = {}
    for member, mine in kept.items():
        for topic, partition in mine:
            plan.give(member, topic, partition)
            had[topic, partition] = member
    subscribers = _subscribers(members)
    # Topics with the fewest subscribers are dealt first.
    by_topic: dict[bytes, list[int]] = {}
    for topic, partition in free:
        by_topic.setdefault(topic, []).append(partition)
    for topic in sorted(by_topic, key=lambda topic: (len(subscribers[topic]), topic)):
        heap = [(plan.load[member], member) for member in subscribers[topic]]
        heapq.heapify(heap)
        for partition in by_topic[topic]:
            load, member = heap[0]
            plan.give(member, topic, partition)
            heapq.heapreplace(heap, (load + 1, member))
    order = sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic))
    moved = True
    while moved:
        moved = False
        for topic in order:
            moved |= _even_out(plan, topic, subscribers[topic], had)
    return plan.finish()


def _subscribers(members: Members) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for member in sorted(members):
        for topic in sorted(members[member].topics):
            found.setdefault(topic, []).append(member)
    return found


def _even_out(plan: _Plan, topic: bytes, subscribers: list[str], had: Mapping[_Partition, str]) -> bool:
    """Move partitions of one topic from the most to the least loaded; return whether any moved."""
    low = [(plan.load[member], member) for member in subscribers]
    high = [(-plan.load[member], member) for member in subscribers if plan.held[member].get(topic)]
    heapq.heapify(low)
    heapq.heapify(high)
    moved = False
    while high:
        load, giver = high[0]
        if -load != plan.load[giver] or not plan.held[giver].get(topic):
            heapq.heappop(high)
            if plan.held[giver].get(topic):
                heapq.heappush(high, (-plan.load[giver], giver))
            continue
        least, taker = low[0]
        if least != plan.load[taker]:
            heapq.heapreplace(low, (plan.load[taker], taker))
            continue
        if plan.load[giver] - plan.load[taker] < 2:
            break
        # A partition that is new to the giver costs nothing to move.
        partition = min(plan.held[giver][topic], key=lambda index: (had.get((topic, index)) == giver, index))
        plan.take(giver, topic, partition)
        plan.give(taker, topic, partition)
        heapq.heapreplace(high, (-plan.load[giver], giver))
        heapq.heapreplace(low, (plan.load[taker], taker))
        if len(plan.held[taker][topic]) == 1:
            heapq.heappush(high, (-plan.load[taker], taker))
        moved = True
    return moved


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names of `group.consumer.assignors`."""
