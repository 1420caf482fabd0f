"""The actions of transactional producers and the answers they got, as plain facts; `sim.checks.transactions` judges
them.

An attempt is one transaction of one instance of a transactional id. Every record has the name of its attempt, so that
each record in a log can be traced back. Must not know: brokers, faults, how to judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.sim.judges.history import Place

LATEST_S = 3.0
"""A request may arrive this long after it was sent."""


class Ending(Enum):
    OPEN = "open"
    """The instance did not ask for a commit: it died, gave up or was fenced."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """The instance asked for an abort, or its commit was refused."""
    UNKNOWN = "unknown"
    """The instance asked for a commit and does not know the outcome."""


@dataclass(slots=True)
class SentRecord:
    """One record."""

    place: Place
    value: bytes
    number: int
    """Increases with every record of the instance."""
    row: int
    """The input offset of the row that it was made from; -1: none."""
    offset: int = -1
    """The offset that a leader acknowledged; -1: none yet."""


@dataclass(slots=True)
class Attempt:
    name: str
    transactional_id: str
    instance: int
    producer_id: int
    epoch: int
    begun_s: float
    source: Place
    rows: range = range(0)
    """The rows of the source that it reads and commits."""
    sent: list[SentRecord] = field(default_factory=list)
    ending: Ending = Ending.OPEN
    asked_s: float | None = None
    """When the instance first asked to end it."""
    ended_s: float | None = None
    refusal: str = ""
    """The coordinator's refusal of a repeated commit request."""
    prepared_s: float | None = None
    """Under two-phase commit: when the decision about it was made, outside of the cluster."""
    is_decided_to_commit: bool = False
    """Under two-phase commit: the decision."""

    def send(self, place: Place, number: int, row: int) -> SentRecord:
        sent = SentRecord(place, b"%s/%d" % (self.name.encode(), number), number, row)
        self.sent.append(sent)
        return sent


@dataclass(slots=True)
class AskedToBegin:
    """An instance asked a coordinator to begin. That ends transactions that others have open under this id."""

    at_s: float
    instance: int
    until_s: float
    """The request arrives at no coordinator after this time."""


class Begun(NamedTuple):
    """A coordinator gave an instance a producer id and an epoch, in the answer to InitProducerId or EndTxn."""

    transactional_id: str
    instance: int
    producer_id: int
    epoch: int
    asked_s: float
    answered_s: float


class SourceRead(NamedTuple):
    """A committed offset of a source, as the group's coordinator returned it."""

    source: Place
    offset: int
    begun_s: float
    ended_s: float
    is_excused: bool = False
    """The coordinator had been replaced shortly before, and could not know."""


class Delivered(NamedTuple):
    """A record that a read_committed reader has returned."""

    value: bytes
    reader: str
    at_s: float


@dataclass
class TransactionHistory:
    time: Callable[[], float]
    attempts: list[Attempt] = field(default_factory=list)
    asked: dict[str, list[AskedToBegin]] = field(default_factory=dict)
    """By transactional id."""
    begun: list[Begun] = field(default_factory=list)
    source_reads: list[SourceRead] = field(default_factory=list)
    may_not_know: Callable[[str, str], bool] = lambda host, group: False
    """Whether the broker on this host was replaced as the coordinator of the group so recently that it may not know."""
    delivered: dict[Place, dict[int, Delivered]] = field(default_factory=dict)
    audited: dict[Place, frozenset[int]] = field(default_factory=dict)
    """In the end: the offsets that a reader of committed records was given."""
    counts: Counter[str] = field(default_factory=Counter)
    on_begun: Callable[[Begun], None] = lambda _: None

    def begin(self, transactional_id: str, instance: int, producer: tuple[int, int], source: Place) -> Attempt:
        name = f"{transactional_id}.{instance}.{len(self.attempts)}"
        attempt = Attempt(name, transactional_id, instance, *producer, self.time(), source)
        self.attempts.append(attempt)
        return attempt

    def asks_to_begin(self, transactional_id: str, instance: int) -> AskedToBegin:
        asked = AskedToBegin(self.time(), instance, self.time() + LATEST_S)
        self.asked.setdefault(transactional_id, []).append(asked)
        return asked

    def begins(self, begun: Begun) -> None:
        self.begun.append(begun)
        self.on_begun(begun)

    def statistics(self) -> dict[str, int]:
        endings = Counter(attempt.ending for attempt in self.attempts)
        return {
            "transactions": len(self.attempts),
            "transactions committed": endings[Ending.COMMITTED],
            "transactions aborted": endings[Ending.ABORTED],
            "transactions left": endings[Ending.OPEN],
            "transactions in doubt": endings[Ending.UNKNOWN],
            "transactions prepared": sum(attempt.prepared_s is not None for attempt in self.attempts),
            "transactional reads": sum(map(len, self.delivered.values())),
        }
