"""Writes and reads of a compacted partition: records may be removed, but never the last record of a key.

A tombstone may be removed after `delete.retention.ms`; then its key has no records. Deleted records do not return.
Must not know: brokers, faults, how histories are made.
"""

from __future__ import annotations

from math import inf

from penstock.sim.judges.history import History, Outcome, Place, Seen, Violation, Write
from penstock.sim.workload.writers.keyed import is_tombstone, key_of


def check_keyed(history: History, place: Place, final: dict[int, Seen], *, tombstones_may_go: bool) -> None:
    """`history`: everything ever read; `final`: the final content, by offset."""
    writes = {write.value: write for write in history.writes if write.place == place}
    _check_reads(writes, place, history.seen.get(place, {}))
    last: dict[bytes, int] = {}
    for offset, seen in sorted(final.items()):
        last[key_of(writes[seen.value])] = offset
    deleted: dict[bytes, float] = {}  # highest possible offset of the last tombstone of a key
    for write in writes.values():
        if tombstones_may_go and is_tombstone(write) and write.outcome is not Outcome.REFUSED:
            where = float(write.offset) if write.outcome is Outcome.ACKNOWLEDGED else inf
            deleted[key_of(write)] = max(where, deleted.get(key_of(write), -1))
    for write in writes.values():
        if write.outcome is not Outcome.ACKNOWLEDGED or last.get(key_of(write), -1) >= write.offset:
            continue
        if key_of(write) in last and is_tombstone(write):
            raise Violation(
                "deleted records do not return",
                f"{key_of(write)!r} was deleted at {place}@{write.offset}, and there is one at {last[key_of(write)]}",
            )
        if key_of(write) in last or deleted.get(key_of(write), -1) < write.offset:
            raise Violation(
                "compaction keeps the last record of a key",
                f"{write.value!r} was acknowledged at {place}@{write.offset}, and the last of its key is at "
                f"{last.get(key_of(write), -1)}",
            )


def _check_reads(writes: dict[bytes, Write], place: Place, seen: dict[int, Seen]) -> None:
    numbers: dict[str, tuple[int, int]] = {}
    for offset, read in sorted(seen.items()):
        write = writes.get(read.value)
        if write is None:
            raise Violation("every record was written", f"{place}@{offset} is {read.value!r}, which was never written")
        if write.outcome is Outcome.ACKNOWLEDGED and write.offset != offset:
            raise Violation(
                "acknowledged records keep their offset",
                f"{write.value!r} was acknowledged at {place}@{write.offset} and read at {offset}",
            )
        before, where = numbers.get(write.lane, (-1, -1))
        if write.number <= before:
            raise Violation(
                "a lane stays in order",
                f"{place}: number {write.number} of {write.lane} at {offset}, after {before} at {where}",
            )
        numbers[write.lane] = write.number, offset
