"""A lane whose records have keys, a few that come again and again: for topics that are compacted.

Must not know: faults, checkers.
"""

from __future__ import annotations

from penstock.sim.history import Write
from penstock.sim.workload.producers import IdempotentLane

KEYS = 5


def key_of(write: Write) -> bytes:
    return b"key-%d" % (write.number % KEYS)


class KeyedLane(IdempotentLane):
    def _key(self, write: Write) -> bytes | None:
        return key_of(write)
