"""Which transactions of one log are undecided, and which are decided and not yet replicated.

Where the oldest of both begins, the last stable offset ends: whoever reads committed records sees nothing of a
transaction before its marker lies below the high watermark. Knows offsets and producer ids, no batches and no files.

A marker says the outcome of one producer's transaction. What may be said of aborted ones later on lies in the
`.txnindex` file of the segment that holds the marker (`transaction_index`).
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
    last_offset: int  # of its marker
    last_stable_offset: int  # with the marker: no transaction that was open then begins below it


class MarkerCheck(Enum):
    """What becomes of a marker that a coordinator sends."""

    APPEND = "append"
    ALREADY_THERE = "already there"
    """An earlier try appended it, and may not be replicated yet: the answer waits until the high watermark reaches what
    is the end of the log now."""


class DecidedTransaction(NamedTuple):
    """Its marker may lie above the high watermark."""

    marker_offset: int
    first_offset: int


class Transactions:
    """Both rise from entry to entry: first offsets of open ones; markers and first offsets of decided ones.

    A decided transaction that begins after one whose marker comes later is not kept: it holds nothing back. With more
    than `MOST_DECIDED` the oldest two become one, which holds back as long as either of them would.
    """

    __slots__ = ("_decided", "_open")

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()  # first offset -> producer id
        self._decided: deque[DecidedTransaction] = deque()

    def __bool__(self) -> bool:
        return bool(self._open) or bool(self._decided)

    def restore(self, opened: Iterable[tuple[int, int]], decided: Iterable[DecidedTransaction]) -> None:
        """From a snapshot: (first offset, producer id) of open ones in any order."""
        self._open = OrderedDict(sorted(opened))
        self._decided = deque(decided)

    def begin(self, first_offset: int, producer_id: int) -> None:
        self._open[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """The last stable offset after the marker, as far as it depends on open transactions."""
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
        """Where the oldest one begins that is undecided or whose marker is not below `high_watermark`.

        Those below are forgotten: a log that is cut below its high watermark gets its producers anew.
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
