"""The transactions of one log that hold back its last stable offset: open ones, and decided ones not yet replicated.

The last stable offset is the first offset of the oldest of these transactions. So a read_committed consumer sees
nothing of a transaction before its marker is below the high watermark. This module knows offsets and producer ids, but
no batches and no files.

A marker is the outcome of one producer's transaction. Aborted transactions are listed in the `.txnindex` file of the
segment that has the marker (`transaction_index`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

MOST_DECIDED = 1_000


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # the offset of its marker
    # when the marker was appended: every transaction that was still open then begins at or above it
    last_stable_offset: int


class MarkerCheck(Enum):
    """The verdict on a marker that a coordinator sends."""

    APPEND = "append"
    ALREADY_THERE = "already there"
    """An earlier attempt has appended it, but it may not be replicated yet: the answer waits until the high watermark
    has reached the current end of the log."""


class DecidedTransaction(NamedTuple):
    """A decided transaction whose marker may be above the high watermark."""

    marker_offset: int
    first_offset: int


class Transactions:
    """Open transactions are ordered by first offset; decided ones increase in both marker and first offset.

    A decided transaction is dropped if another one begins before it and has a later marker: the other one holds back
    the last stable offset for longer. With more than `MOST_DECIDED`, the oldest two are merged into one that holds back
    as long as either of them would.
    """

    __slots__ = ("_decided", "_open")

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()  # first offset -> producer id
        self._decided: deque[DecidedTransaction] = deque()

    def __bool__(self) -> bool:
        return bool(self._open) or bool(self._decided)

    def restore(self, opened: Iterable[tuple[int, int]], decided: Iterable[DecidedTransaction]) -> None:
        """Restore from a snapshot. `opened`: (first offset, producer id) of the open transactions, in any order."""
        self._open = OrderedDict(sorted(opened))
        self._decided = deque(decided)

    def begin(self, first_offset: int, producer_id: int) -> None:
        self._open[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """Returns the last stable offset after the marker, as far as it depends on open transactions."""
        self._open.pop(first_offset, None)
        decided = self._decided
        while decided and decided[-1].first_offset >= first_offset:
            decided.pop()
        decided.append(DecidedTransaction(marker_offset, first_offset))
        if len(decided) > MOST_DECIDED:
            oldest = decided.popleft()
            decided[0] = decided[0]._replace(first_offset=oldest.first_offset)
        return next(iter(self._open), marker_offset + 1)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of the oldest transaction that is open, or whose marker is not below `high_watermark`.

        Decided transactions with markers below it are forgotten: a log that is cut below its high watermark rebuilds
        its producers.
        """
        decided = self._decided
        while decided and decided[0].marker_offset < high_watermark:
            decided.popleft()
        first_open = next(iter(self._open)) if self._open else None
        if not decided:
            return first_open
        first_decided = decided[0].first_offset
        return first_decided if first_open is None else min(first_open, first_decided)

    @property
    def decided(self) -> list[DecidedTransaction]:
        return list(self._decided)
