"""Promises to writers, compared with the final content of the logs.

Acknowledged by all in-sync replicas: present at the returned offset. Acknowledged by the leader alone: present at that
offset or not at all, and present if this leader led the whole time. Idempotent: present only once, and in the order of
the lane. Every record read by a client is still present. Nothing is present that was never written. Must not know:
brokers, how logs are read.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from penstock.sim.judges.history import History, Outcome, Place, Violation, Write

ACKS_ALL = -1
Final = Mapping[Place, Sequence[bytes]]
"""Every value of a partition; its offset is its index."""


def check_records(history: History, final: Final, undisturbed: Container[Place] = ()) -> None:
    """`undisturbed`: partitions led by one process the whole time."""
    by_place: dict[Place, dict[bytes, Write]] = {}
    for write in history.writes:
        by_place.setdefault(write.place, {})[write.value] = write
    for place, values in final.items():
        writes = by_place.get(place, {})
        _nothing_is_lost(place, writes, values, is_undisturbed=place in undisturbed)
        _reads_are_kept(history, place, values)
        _nothing_comes_twice(place, writes, values)
        _lanes_are_in_order(place, writes, values)


def check_reads(history: History, place: Place) -> None:
    """For a topic that may be deleted: records read there were written there, at the offset their writer got."""
    writes = {write.value: write for write in history.writes if write.place == place}
    for offset, seen in history.seen.get(place, {}).items():
        write = writes.get(seen.value)
        if write is None:
            raise Violation(
                "every record was written",
                f"{seen.reader} read {seen.value!r} at {place}@{offset}, never written there",
            )
        if write.outcome is Outcome.ACKNOWLEDGED and write.offset != offset:
            raise Violation(
                "acknowledged records are at their offset",
                f"{seen.value!r} was acknowledged at {place}@{write.offset}, and {seen.reader} read it at {offset}",
            )


def _nothing_is_lost(
    place: Place, writes: Mapping[bytes, Write], values: Sequence[bytes], *, is_undisturbed: bool
) -> None:
    present = frozenset(values)
    for value, write in writes.items():
        if write.outcome is not Outcome.ACKNOWLEDGED:
            continue
        found = values[write.offset] if 0 <= write.offset < len(values) else None
        if found == value:
            continue
        if write.acks == ACKS_ALL or is_undisturbed:
            raise Violation(
                "acknowledged records are kept",
                f"{value!r} was acknowledged (acks={write.acks}) at {place}@{write.offset} at {write.ended_s:.3f} s, "
                f"and in the end there is {_described(found, len(values))}",
            )
        if value in present:
            raise Violation(
                "acknowledged records are at their offset",
                f"{value!r} was acknowledged (acks={write.acks}) at {place}@{write.offset} at {write.ended_s:.3f} s, "
                f"and is at {values.index(value)}",
            )


def _described(found: bytes | None, end: int) -> str:
    return f"nothing (the log ends at {end})" if found is None else repr(found)


def _reads_are_kept(history: History, place: Place, values: Sequence[bytes]) -> None:
    for offset, seen in history.seen.get(place, {}).items():
        found = values[offset] if offset < len(values) else None
        if found != seen.value:
            raise Violation(
                "records that were read are kept",
                f"{seen.reader} read {seen.value!r} at {place}@{offset} at {seen.at_s:.3f} s from broker "
                f"{seen.leader} (epoch {seen.leader_epoch}), and in the end there is {_described(found, len(values))}",
            )


def _nothing_comes_twice(place: Place, writes: Mapping[bytes, Write], values: Sequence[bytes]) -> None:
    offsets: dict[bytes, int] = {}
    for offset, value in enumerate(values):
        if value not in writes:
            raise Violation("every record was written", f"{value!r} at {place}@{offset} was never written")
        first = offsets.setdefault(value, offset)
        if first != offset:
            raise Violation("no record appears twice", f"{value!r} is at {place}@{first} and at {offset}")
        if writes[value].outcome is Outcome.REFUSED:
            raise Violation("refused records are not stored", f"{value!r} at {place}@{offset} was refused")


def _lanes_are_in_order(place: Place, writes: Mapping[bytes, Write], values: Sequence[bytes]) -> None:
    last: dict[str, tuple[int, int]] = {}
    for offset, value in enumerate(values):
        write = writes[value]
        if not write.is_idempotent and write.outcome is not Outcome.ACKNOWLEDGED:
            continue  # this one may still have been in flight when later ones were written
        number, before = last.get(write.lane, (-1, -1))
        if write.number < number:
            raise Violation(
                "a lane stays in order",
                f"{write.lane}: {number} at {place}@{before} comes before {write.number}@{offset}",
            )
        if write.is_idempotent and write.number != number + 1:
            raise Violation(
                "an idempotent lane has no gaps", f"{write.lane}: {write.number} at {place}@{offset} follows {number}"
            )
        last[write.lane] = write.number, offset
