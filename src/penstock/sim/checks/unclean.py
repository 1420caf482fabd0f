"""The records that an unclean election may lose: those acknowledged after the new leader had left the ISR, and before
the old leader must know of the election.

Records acknowledged before that are present at their offsets, as everywhere; without unclean elections all are. Lost
records do not reappear elsewhere. Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.sim.judges.history import History, Outcome, Place, Seen, Violation


class UncleanElection(NamedTuple):
    at_s: float
    leader: int
    left_s: float
    """Time when it last left the in-sync replicas."""
    known_s: float
    """Time when the old leader must know, and acknowledges nothing any more."""


def check_unclean(
    history: History, place: Place, final: Mapping[int, Seen], elections: Sequence[UncleanElection]
) -> None:
    """`final`: the final content, by offset."""
    writes = {write.value: write for write in history.writes if write.place == place}
    offsets: dict[bytes, int] = {}
    for offset, seen in final.items():
        if seen.value not in writes:
            raise Violation("every record was written", f"{seen.value!r} at {place}@{offset} was never written")
        if offsets.setdefault(seen.value, offset) != offset:
            raise Violation(
                "no record appears twice", f"{seen.value!r} is at {place}@{offsets[seen.value]} and {offset}"
            )
    for write in writes.values():
        if write.outcome is not Outcome.ACKNOWLEDGED or offsets.get(write.value) == write.offset:
            continue
        assert write.ended_s is not None, "the request was answered"
        if write.value in offsets:
            raise Violation(
                "acknowledged records are at their offset",
                f"{write.value!r} was acknowledged at {place}@{write.offset}, and is at {offsets[write.value]}",
            )
        may_be_lost = any(one.known_s > write.begun_s and one.left_s < write.ended_s for one in elections)
        if not may_be_lost:
            raise Violation(
                "an unclean election loses only what its leader never had",
                f"{write.value!r} was acknowledged at {place}@{write.offset} at {write.ended_s:.3f} s, but is gone; "
                f"unclean elections: {[tuple(one) for one in elections]}",
            )
