"""The batches of a fetch answer that belong to aborted transactions.

A read_committed answer lists (producer id, first offset) of its aborted transactions. From that offset on, the
producer's transactional batches are left out until its abort marker: the producer's next transaction may be committed.
Batches must be passed in offset order, including markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop
from struct import Struct

from penstock.records.batch import BatchHeader
from penstock.records.builder import MalformedRecords, iterate_records
from penstock.records.compression import decompress

_CONTROL_KEY = Struct(">hh")  # version, type
_ABORT = 0


class AbortedTransactions:
    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._ahead = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapify(self._ahead)
        self._open: set[int] = set()

    def reach(self, last_offset: int) -> None:
        """Opens the ranges that begin at or before the end of the current batch."""
        while self._ahead and self._ahead[0][0] <= last_offset:
            self._open.add(heappop(self._ahead)[1])

    def has_open(self, producer_id: int) -> bool:
        return producer_id in self._open

    def end(self, producer_id: int) -> None:
        """Closes the producer's range at its abort marker."""
        self._open.discard(producer_id)


def is_abort_marker(header: BatchHeader, payload: memoryview) -> bool:
    """Whether a control batch is an abort marker. Raises MalformedRecords, or ApiError if it cannot be decompressed."""
    for record in iterate_records(header, decompress(header.compression, payload)):
        if record.key is None or len(record.key) < _CONTROL_KEY.size:
            raise MalformedRecords("control record without a type in its key")
        return bool(_CONTROL_KEY.unpack_from(record.key)[1] == _ABORT)
    return False
