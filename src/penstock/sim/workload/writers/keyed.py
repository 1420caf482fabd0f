"""A lane whose records have keys, for compacted topics: some keys recur always, others only for a while. All are
deleted at times.

A tombstone has no value, so a header identifies it. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.records.builder import Record
from penstock.sim.judges.history import History, Place, Write
from penstock.sim.workload.caller import Caller
from penstock.sim.workload.writers.producers import PADDING, IdempotentLane

KEYS = 5
PASSING_EVERY = 3
PASSES_AFTER = 15
DELETES_EVERY = 7
"""In numbers of a lane; without a common factor, so that every key is deleted at times."""
WHICH = "which"


def key_of(write: Write) -> bytes:
    if write.number % PASSING_EVERY == 0:
        return b"passing-%d" % (write.number // PASSES_AFTER)
    return b"key-%d" % (write.number % KEYS)


def is_tombstone(write: Write) -> bool:
    return write.number % DELETES_EVERY == DELETES_EVERY - 1


def keyed_record(write: Write, now_ms: int) -> Record:
    if is_tombstone(write):
        return Record(key_of(write), None, ((WHICH, write.value),), now_ms)
    return Record(key_of(write), write.value + b" " + PADDING, (), now_ms)


def keyed_lane(caller: Caller, history: History, place: Place, now_ms: Callable[[], int]) -> IdempotentLane:
    lane = IdempotentLane(caller, history, place, now_ms, record_of=keyed_record)
    lane.may_be_forgotten = True
    return lane
