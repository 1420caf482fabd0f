"""The actions and observations of the clients of one history, as plain facts; `sim.checks` judges them.

A write, a commit or an administrative action has a beginning and, if it was answered, an end. Without an end its
outcome is unknown: it may take effect at any moment after its beginning. Must not know: brokers, faults, how to judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.sim.machine.loop import SimError


class Violation(SimError):
    """A checker found something that must never happen. The first argument is the name of the broken rule."""

    def __init__(self, what: str, story: str) -> None:
        super().__init__(what, story)
        self.what = what
        self.story = story

    def __str__(self) -> str:
        return f"{self.what}: {self.story}"


class Place(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Outcome(Enum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """One record. Values are unique in a history; those of one lane are numbered from 0."""

    place: Place
    lane: str
    number: int
    acks: int
    is_idempotent: bool
    begun_s: float
    ended_s: float | None = None
    outcome: Outcome = Outcome.OPEN
    offset: int = -1

    @property
    def value(self) -> bytes:
        return b"%s/%d" % (self.lane.encode(), self.number)


NOTHING = -1
"""Stands for a missing or deleted offset of a group."""


@dataclass(slots=True)
class Commit:
    """A commit of a group's offset; NOTHING if it is deleted."""

    group: str
    place: Place
    offset: int
    member: str
    generation: int
    begun_s: float
    ended_s: float | None = None
    outcome: Outcome = Outcome.OPEN


class OffsetRead(NamedTuple):
    """A group's offset as its coordinator returned it."""

    group: str
    place: Place
    offset: int
    begun_s: float
    ended_s: float


class Assigned(NamedTuple):
    group: str
    generation: int
    member: str
    places: tuple[Place, ...]


@dataclass(slots=True)
class Owned:
    """From the assignment until the member requests another, or its session may have ended."""

    group: str
    place: Place
    member: str
    begun_s: float
    until_s: float


@dataclass(slots=True)
class AdminAction:
    """A requested change of a topic; an empty value of a reassignment cancels the current one."""

    verb: str
    topic: str
    key: str
    """The partition or the setting."""
    value: str
    begun_s: float
    ended_s: float | None = None
    outcome: Outcome = Outcome.OPEN
    refusal: str = ""


class Seen(NamedTuple):
    """The first read of an offset."""

    value: bytes
    reader: str
    at_s: float
    leader: int
    leader_epoch: int


@dataclass
class History:
    time: Callable[[], float]
    writes: list[Write] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    admin: list[AdminAction] = field(default_factory=list)
    seen: dict[Place, dict[int, Seen]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Counts for people: errors by name, records read, rebalances."""

    def begin_write(self, place: Place, lane: str, number: int, acks: int, *, is_idempotent: bool) -> Write:
        write = Write(place, lane, number, acks, is_idempotent, self.time())
        self.writes.append(write)
        return write

    def end_write(self, write: Write, outcome: Outcome, offset: int = -1) -> None:
        write.ended_s, write.outcome, write.offset = self.time(), outcome, offset

    def begin_commit(self, group: str, place: Place, offset: int, member: str, generation: int) -> Commit:
        commit = Commit(group, place, offset, member, generation, self.time())
        self.commits.append(commit)
        return commit

    def end_commit(self, commit: Commit, outcome: Outcome) -> None:
        commit.ended_s, commit.outcome = self.time(), outcome

    def begin_admin(self, verb: str, topic: str, key: str = "", value: str = "") -> AdminAction:
        action = AdminAction(verb, topic, key, value, self.time())
        self.admin.append(action)
        return action

    def end_admin(self, action: AdminAction, outcome: Outcome, refusal: str = "") -> None:
        action.ended_s, action.outcome, action.refusal = self.time(), outcome, refusal

    def saw(self, place: Place, offset: int, value: bytes, reader: str, leader: int, leader_epoch: int) -> None:
        """Checked at once: every reader must see the same record at an offset."""
        known = self.seen.setdefault(place, {})
        first = known.get(offset)
        if first is None:
            known[offset] = Seen(value, reader, self.time(), leader, leader_epoch)
        elif first.value != value:
            raise Violation(
                "a read is stable",
                f"{reader} reads {value!r} at {place}@{offset} from broker {leader} (epoch {leader_epoch}), where "
                f"{first.reader} read {first.value!r} at {first.at_s:.3f} s from broker {first.leader} "
                f"(epoch {first.leader_epoch})",
            )

    def statistics(self) -> dict[str, int]:
        outcomes = Counter(write.outcome for write in self.writes)
        return {
            "writes": len(self.writes),
            "acknowledged": outcomes[Outcome.ACKNOWLEDGED],
            "unknown": outcomes[Outcome.UNKNOWN] + outcomes[Outcome.OPEN],
            "read": sum(len(offsets) for offsets in self.seen.values()),
            "commits": sum(commit.outcome is Outcome.ACKNOWLEDGED for commit in self.commits),
            "generations": len(dict.fromkeys((entry.group, entry.generation) for entry in self.assigned)),
            "admin": sum(action.outcome is Outcome.ACKNOWLEDGED for action in self.admin),
        }
