"""Transactional batches and their markers during a cleaning, in log order.

Records of aborted transactions are removed. A marker stays until its transaction has no batch left, and then for
`delete.retention.ms`, like a tombstone. Must not know: anything but headers and the list of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.records.batch import BatchHeader
from penstock.records.control import ABORT, COMMIT
from penstock.storage.producers.transactions import AbortedTransaction


class CleanedTransactions:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        # by producer id: the transactions that are open at this offset
        self._aborted: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()  # the producers among them that had batches
        self._committed: dict[int, None] = {}
        # the transactions that readers must still know, in order of their markers
        self.kept: list[AbortedTransaction] = []

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            entry = self._coming.pop()
            self._aborted[entry.producer_id] = entry
            self._met.discard(entry.producer_id)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this data batch belongs to an aborted transaction."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        entry = self._aborted.get(header.producer_id)
        if entry is not None and header.base_offset < entry.last_offset:
            self._met.add(header.producer_id)
            return True
        self._committed[header.producer_id] = None
        return False

    def is_spent(self, header: BatchHeader, kind: int | None) -> bool:
        """Whether the transaction of this marker has no batch left. `kind` None: the marker has lost its record."""
        self._advance(header.last_offset)
        if kind is None:
            return True
        if kind == ABORT:
            entry = self._aborted.pop(header.producer_id, None)
            if entry is None or header.producer_id not in self._met:
                return True
            self._met.discard(header.producer_id)
            self.kept.append(entry)
            return False
        if kind == COMMIT:
            was_there = header.producer_id in self._committed
            self._committed.pop(header.producer_id, None)
            return not was_there
        return False
