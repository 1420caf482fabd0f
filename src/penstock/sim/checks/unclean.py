"""What may be lost where a leader is elected uncleanly: what was acknowledged after it had left the in-sync replicas.

Whatever was acknowledged before that is there, at its offset, as everywhere; so is everything if nobody was elected so.
What is lost does not turn up elsewhere. Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.sim.judges.history import History, Outcome, Place, Seen, Violation


class UncleanElection(NamedTuple):
    at_s: float
    leader: int
    left_s: float
    """When it had last left the in-sync replicas."""


def check_unclean(
    history: History, place: Place, final: Mapping[int, Seen], elections: Sequence[UncleanElection]
) -> None:
    """`final`: what is there in the end, by offset."""
    writes = {write.value: write for write in history.writes if write.place == place}
    offsets: dict[bytes, int] = {}
    for offset, seen in final.items():
        if seen.value not in writes:
            raise Violation("nothing is made up", f"{seen.value!r} at {place}@{offset} was written by nobody")
        if offsets.setdefault(seen.value, offset) != offset:
            raise Violation("nothing comes twice", f"{seen.value!r} is at {place}@{offsets[seen.value]} and {offset}")
    for write in writes.values():
        if write.outcome is not Outcome.ACKNOWLEDGED or offsets.get(write.value) == write.offset:
            continue
        assert write.ended_s is not None, "it was answered"
        if write.value in offsets:
            raise Violation(
                "what is acknowledged is at its offset",
                f"{write.value!r} was acknowledged at {place}@{write.offset}, and is at {offsets[write.value]}",
            )
        may_be_lost = any(one.at_s > write.begun_s and one.left_s < write.ended_s for one in elections)
        if not may_be_lost:
            raise Violation(
                "an unclean election loses only what its leader never had",
                f"{write.value!r} was acknowledged at {place}@{write.offset} at {write.ended_s:.3f} s, and is gone; "
                f"elected uncleanly were {[tuple(one) for one in elections]}",
            )
