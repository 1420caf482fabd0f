"""The answers that clients of a cluster got, and the promises that follow from them.

A `History` is lists of facts with their times: sends, acknowledgements, failures, reads. `check` compares it with the
log as it stands in the end and returns every broken promise as a `Violation`; it knows no clients and no brokers, so
planted histories test it (tests/unit/test_history.py). `history_clients` makes histories from librdkafka.

A record is named by (producer, number); numbers count up by producer and partition. The promises, for idempotent
producers with acks=all:

    lost          acknowledged, and not in the log
    duplicated    in the log more than once
    reordered     in the log before an earlier record of the same producer
    moved         in the log at another offset than the acknowledgement named
    shared        two records acknowledged at one offset
    unsent        in the log, or read, and never sent
    backwards     a consumer read an offset that is not above the one before it
    skipped       a consumer passed over a record that the log holds
    vanished      a consumer read a record that is not at that offset in the log: it was above the high watermark,
                  or what was below it has been cut
    reset         a consumer was told that its position is outside of the log

A read before the acknowledgement reaches the producer is no fault: the record is committed while the answer is still
under way. A read past the high watermark is a fault because the record may go: `vanished`.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

RecordName = tuple[str, int]  # producer, number
UNKNOWN_OFFSET = -1
"""The broker knew a repeat as one, but no longer where the first is."""


class Sent(NamedTuple):
    time_s: float
    producer: str
    partition: int
    number: int


class Acknowledged(NamedTuple):
    time_s: float
    producer: str
    partition: int
    number: int
    offset: int


class Failed(NamedTuple):
    time_s: float
    producer: str
    partition: int
    number: int
    error: str


class Read(NamedTuple):
    time_s: float
    consumer: str
    partition: int
    offset: int
    producer: str
    number: int


class Reset(NamedTuple):
    time_s: float
    consumer: str
    partition: int
    error: str


class Stored(NamedTuple):
    offset: int
    producer: str
    number: int


FinalLog = Mapping[int, Sequence[Stored]]  # by partition, in the order of the log


@dataclass(slots=True)
class History:
    """Appended to by client threads; a list's append is atomic."""

    sent: list[Sent] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    client_errors: list[str] = field(default_factory=list)
    """What clients said about connections and the like: no promise is broken by it, but it explains pauses."""


class Violation(NamedTuple):
    kind: str
    text: str


def check(history: History, log: FinalLog) -> list[Violation]:
    return [
        *_check_log(history, log),
        *_check_acknowledgements(history, log),
        *_check_reads(history, log),
        *(
            Violation("reset", f"{reset.consumer}, partition {reset.partition}: {reset.error}")
            for reset in history.resets
        ),
    ]


def assert_kept(history: History, log: FinalLog) -> None:
    """Every promise; a failure counts by kind and shows the first few."""
    violations = check(history, log)
    if violations:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(v.kind for v in violations).items()))
        shown = "\n".join(f"  {kind}: {text}" for kind, text in violations[:20])
        raise AssertionError(f"{counts}, of {len(history.acknowledged)} acknowledged records\n{shown}")


def _check_log(history: History, log: FinalLog) -> Iterator[Violation]:
    sent = {(one.partition, one.producer, one.number) for one in history.sent}
    for partition, records in log.items():
        last: dict[str, int] = {}
        offset_of: dict[RecordName, int] = {}
        for record in records:
            name = (record.producer, record.number)
            where = f"partition {partition}, offset {record.offset}: {record.producer} {record.number}"
            if (partition, *name) not in sent:
                yield Violation("unsent", f"{where} was never sent")
            if name in offset_of:
                yield Violation("duplicated", f"{where} is at offset {offset_of[name]} too")
            else:
                offset_of[name] = record.offset
                if record.number < last.get(record.producer, -1):
                    yield Violation("reordered", f"{where} comes after {last[record.producer]}")
                last[record.producer] = max(record.number, last.get(record.producer, -1))


def _check_acknowledgements(history: History, log: FinalLog) -> Iterator[Violation]:
    offsets: dict[int, dict[RecordName, list[int]]] = {}
    for partition, records in log.items():
        of_partition = offsets[partition] = defaultdict(list)
        for record in records:
            of_partition[record.producer, record.number].append(record.offset)
    told: dict[tuple[int, int], RecordName] = {}
    for one in history.acknowledged:
        name = (one.producer, one.number)
        where = f"partition {one.partition}: {one.producer} {one.number}, acknowledged at offset {one.offset}"
        found = offsets.get(one.partition, {}).get(name)
        if not found:
            yield Violation("lost", where)
        elif one.offset >= 0 and one.offset not in found:
            yield Violation("moved", f"{where}, is at {found[0]}")
        if one.offset >= 0:
            other = told.setdefault((one.partition, one.offset), name)
            if other != name:
                yield Violation("shared", f"{where}, as was {other[0]} {other[1]}")


def _check_reads(history: History, log: FinalLog) -> Iterator[Violation]:
    sent = {(one.partition, one.producer, one.number) for one in history.sent}
    stored = {partition: {record.offset: record for record in records} for partition, records in log.items()}
    position: dict[tuple[str, int], int] = {}
    for one in history.read:
        of_partition = stored.get(one.partition, {})
        where = f"{one.consumer}, partition {one.partition}, offset {one.offset}: {one.producer} {one.number}"
        if (one.partition, one.producer, one.number) not in sent:
            yield Violation("unsent", f"{where} was never sent")
        final = of_partition.get(one.offset)
        if final is None:
            yield Violation("vanished", f"{where} is gone")
        elif (final.producer, final.number) != (one.producer, one.number):
            yield Violation("vanished", f"{where}; now {final.producer} {final.number} is there")
        last = position.get((one.consumer, one.partition))
        if last is not None:
            if one.offset <= last:
                yield Violation("backwards", f"{where}, after offset {last}")
            for offset in range(last + 1, one.offset):
                if offset in of_partition:
                    yield Violation("skipped", f"{where}, after offset {last}, past {offset}")
        position[one.consumer, one.partition] = one.offset


# -- pauses ---------------------------------------------------------------------------------------------------------


class Pauses(NamedTuple):
    """One pause an event (a kill, say), in seconds, in the order of the events."""

    each_s: list[float]

    @property
    def median_s(self) -> float:
        return statistics.median(self.each_s) if self.each_s else 0.0

    @property
    def worst_s(self) -> float:
        return max(self.each_s, default=0.0)

    def __str__(self) -> str:
        each = ", ".join(f"{pause:.2f}" for pause in self.each_s)
        return f"median {self.median_s:.2f} s, worst {self.worst_s:.2f} s, of {len(self.each_s)} ({each})"


def longest_pause(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """The longest stretch within [begin, end] without one of `times_s` (sorted), counted from the one before begin."""
    previous, longest = begin_s, 0.0
    for moment in times_s:
        if moment <= begin_s:
            previous = moment
        elif moment <= end_s:
            longest, previous = max(longest, moment - previous), moment
        else:
            break
    return max(longest, end_s - previous)


def pauses(history: History, events_s: Sequence[float], end_s: float) -> Pauses:
    """For each event the longest time until the next one that a producer of a partition got no acknowledgement.

    Of those that sent or were answered in that time: one that had nothing to send did not wait.
    """
    acknowledged, active = (defaultdict[tuple[str, int], list[float]](list) for _ in range(2))
    for one in (*history.sent, *history.acknowledged):
        active[one.producer, one.partition].append(one.time_s)
    for one in history.acknowledged:
        acknowledged[one.producer, one.partition].append(one.time_s)

    def pause_s(begin: float, until: float) -> float:
        waiting = [stream for stream, times in active.items() if any(begin <= moment <= until for moment in times)]
        return max((longest_pause(acknowledged[stream], begin, until) for stream in waiting), default=until - begin)

    return Pauses([pause_s(begin, until) for begin, until in itertools.pairwise([*events_s, end_s])])
