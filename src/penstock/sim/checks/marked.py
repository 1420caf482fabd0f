"""In a compacted log, records of a transaction keep its marker: without it nobody knows whether they count.

Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.records.batch import BatchHeader
from penstock.sim.judges.history import Violation

MARKED = "records of a transaction keep their marker"


class Markers:
    """The committed transactional batches of one partition, and their markers; each by its end offset."""

    def __init__(self) -> None:
        self._open: dict[int, list[int]] = {}  # by producer id: batches of transactions without a marker
        self._marker_of: dict[int, int] = {}

    @property
    def undecided(self) -> set[int]:
        return {end for ends in self._open.values() for end in ends}

    def add(self, end: int, header: BatchHeader) -> None:
        self._open.setdefault(header.producer_id, []).append(end)

    def marked(self, end: int, header: BatchHeader) -> list[int]:
        """The batches of the transaction that this marker ends."""
        ended = self._open.pop(header.producer_id, [])
        self._marker_of.update(dict.fromkeys(ended, end))
        return ended

    def check(self, who: str, headers: Iterable[BatchHeader], limit: int) -> None:
        """`headers`: of a replica that has everything committed up to `limit`, apart from what compaction removed."""
        wanted: dict[int, int] = {}
        for header in headers:
            if not header.record_count or not header.is_transactional:
                continue
            if header.is_control:
                wanted.pop(header.next_offset, None)
            elif (marker := self._marker_of.get(header.next_offset, limit + 1)) <= limit:
                wanted[marker] = header.base_offset
        for marker, offset in wanted.items():
            raise Violation(
                MARKED, f"{who} has records of a transaction at offset {offset}, and not its marker at {marker - 1}"
            )
