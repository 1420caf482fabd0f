"""What becomes of transactional batches and their markers while a log is cleaned, in the order of the log.

The records of aborted transactions go. A marker stays until nothing of its transaction is left, and then for
`delete.retention.ms` more, like a tombstone. Knows headers and the list of aborted transactions, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.records.batch import BatchHeader
from penstock.storage.cleaner.plan import AbortedTransaction

ABORT, COMMIT = 0, 1


class CleanedTransactions:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, bool] = {}  # producer id -> whether a batch of it was met
        self._committed: dict[int, None] = {}

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            self._aborted.setdefault(self._coming.pop().producer_id, False)

    def is_aborted(self, header: BatchHeader) -> bool:
        """A batch of data comes by."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted[header.producer_id] = True
            return True
        self._committed[header.producer_id] = None
        return False

    def is_spent(self, header: BatchHeader, kind: int | None) -> bool:
        """A marker comes by (`kind` None: one that lost its record already): is its transaction all gone?"""
        self._advance(header.last_offset)
        if kind is None:
            return True
        if kind == ABORT:
            return not self._aborted.pop(header.producer_id, False)
        if kind == COMMIT:
            was_there = header.producer_id in self._committed
            self._committed.pop(header.producer_id, None)
            return not was_there
        return False
