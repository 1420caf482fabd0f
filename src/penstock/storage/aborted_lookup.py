"""A lookup of aborted transactions that needs the disk: a value made on the loop, run in a worker, and taken over on
the loop. The counterpart of `lookups`, which is for batches.

A damaged `.txnindex` of a sealed segment is rebuilt from the batches, as a file beside it. The new file replaces the
damaged one when the log takes over the result, provided that the log has not changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.model.errors import CorruptBatch
from penstock.ports.disk import Disk
from penstock.storage.files import TEMPORARY, write_whole
from penstock.storage.producers.transaction_index import Overlapping, TransactionIndex, collect, encode
from penstock.storage.producers.transactions import AbortedTransaction
from penstock.storage.segments.segment import Segment


class Rebuilt(NamedTuple):
    original: TransactionIndex
    path: str
    entries: int


@dataclass(slots=True)
class AbortedLookup:
    fetch_offset: int
    upper_bound: int
    indexes: list[tuple[Segment, TransactionIndex]]  # copies of the indexes, in the order of the log
    generation: int
    layout: int
    """The layout of the segments when the lookup was made."""
    recount: Callable[[Segment], list[AbortedTransaction]]
    """Finds the aborted transactions of a segment from its batches. Blocks."""
    disk: Disk
    tag: str
    """Part of the names of temporary files."""
    rebuilt: list[Rebuilt] = field(default_factory=list)
    found: list[AbortedTransaction] | None = None
    """After `run`: the transactions that begin below `upper_bound`."""

    def run_up_to(self, offset: int) -> None:
        """Like `run`, for a reader that gets the records below `offset`. The result is kept in `found`: it may be too
        long for the loop to search again."""
        self.upper_bound = min(self.upper_bound, offset)
        self.found = self.run()

    def run(self) -> list[AbortedTransaction]:
        """Return what `Log.aborted_between` would return. Blocks; for a worker. Raises CorruptBatch, OSError."""
        found: list[AbortedTransaction] = []
        for segment, index in self.indexes:
            part = self._overlapping(segment, index)
            found += part.entries
            if part.is_complete:
                break
        return found

    def _overlapping(self, segment: Segment, index: TransactionIndex) -> Overlapping:
        try:
            return index.overlapping(self.fetch_offset, self.upper_bound)
        except (CorruptBatch, FileNotFoundError):
            entries = self.recount(segment)
            original = segment.transaction_index
            if segment.writer is None and original is not None:
                path = f"{index.path}.{self.tag}{TEMPORARY}"
                write_whole(self.disk, path, encode(entries), sync=True)
                self.rebuilt.append(Rebuilt(original, path, len(entries)))
            return collect(entries, self.fetch_offset, self.upper_bound)

    def adopt(self) -> bool:
        """Call on the loop: renames each rebuilt file into place. Raises nothing: a file that stays damaged is rebuilt
        the next time.
        """
        is_changed = False
        for rebuilt in self.rebuilt:
            with suppress(OSError):
                self.disk.rename(rebuilt.path, rebuilt.original.path)
                rebuilt.original.were_written(rebuilt.entries)
                is_changed = True
        self.discard()
        return is_changed

    def discard(self) -> None:
        """Remove the files that were written. A leftover is removed when the log is opened."""
        for rebuilt in self.rebuilt:
            with suppress(OSError):
                self.disk.remove(rebuilt.path)
        self.rebuilt.clear()
