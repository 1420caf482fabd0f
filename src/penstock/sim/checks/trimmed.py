"""A partition whose oldest records may be deleted: nothing else may be missing.

The log may begin anywhere up to the highest offset of any DeleteRecords request, answered or not. It may begin later
only if retention may delete whole segments, and then the rest is at least as large as the retention size. From its
beginning on, everything is as in other partitions. Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.sim.judges.history import History, Outcome, Place, Seen, Violation, Write


def check_trimmed(
    history: History, place: Place, final: Mapping[int, Seen], kept_bytes: int, retention_bytes: int | None
) -> None:
    """`final`: the final content, by offset; `kept_bytes`: size of the smallest replica; None: no retention."""
    wanted = [int(action.value) for action in history.admin if action.verb == "trim"]
    start, end = min(final, default=0), max(final, default=-1) + 1
    is_retained = retention_bytes is not None and kept_bytes >= retention_bytes
    if start > max(wanted, default=0) and not is_retained:
        raise Violation(
            "only permitted records are deleted",
            f"{place} begins at {start}; requests deleted up to {max(wanted, default=0)}; {kept_bytes} bytes are left",
        )
    writes = {write.value: write for write in history.writes if write.place == place}
    _check_writes(place, writes, final, start, end)
    for offset, seen in history.seen.get(place, {}).items():
        if offset >= start and (offset not in final or final[offset].value != seen.value):
            raise Violation("records that were read are kept", f"{seen.reader} read {seen.value!r} at {place}@{offset}")
    _check_order(place, writes, final)


def _check_writes(place: Place, writes: Mapping[bytes, Write], final: Mapping[int, Seen], start: int, end: int) -> None:
    for write in writes.values():
        if write.outcome is not Outcome.ACKNOWLEDGED or write.offset < start:
            continue
        if write.offset not in final or final[write.offset].value != write.value:
            raise Violation(
                "acknowledged records are kept",
                f"{write.value!r} was acknowledged at {place}@{write.offset}; the log is from {start} to {end}",
            )


def _check_order(place: Place, writes: Mapping[bytes, Write], final: Mapping[int, Seen]) -> None:
    numbers: dict[str, int] = {}
    for offset, seen in sorted(final.items()):
        write = writes.get(seen.value)
        if write is None:
            raise Violation("every record was written", f"{place}@{offset} is {seen.value!r}, which was never written")
        before = numbers.get(write.lane, write.number - 1)
        if write.number != before + 1:
            raise Violation(
                "an idempotent lane has no gaps", f"{write.lane}: {write.number} at {place}@{offset} follows {before}"
            )
        numbers[write.lane] = write.number
