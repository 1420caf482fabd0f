"""The segments of one log in order, the last one active: lookup by offset, removal, replacement."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from penstock.model.errors import NotCached
from penstock.ports.disk import Disk
from penstock.records.batch import BatchHeader
from penstock.storage.files import DELETED, INDEX, LOG, SEGMENT_SUFFIXES, SWAP, TIME_INDEX, TRANSACTION_INDEX, file_path
from penstock.storage.producers.transaction_index import TransactionIndex
from penstock.storage.segments.segment import OpenFiles, Segment


class Doomed(NamedTuple):
    """A segment that no longer belongs to the log, and whose files still exist."""

    segment: Segment
    size: int
    names: Sequence[tuple[str, str]]  # of the log file and its indexes: current name, new name


class Segments:
    __slots__ = (
        "_deleted_paths",
        "_directory",
        "_disk",
        "_open_files",
        "_set_aside_count",
        "_with_aborted",
        "_with_aborted_of",
        "active",
        "bases",
        "items",
    )

    def __init__(self, disk: Disk, directory: str, items: list[Segment], open_files: OpenFiles) -> None:
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        self._deleted_paths: list[str] = []
        self._set_aside_count = 0
        self._with_aborted: list[Segment] = []  # sealed ones
        self._with_aborted_of = (-1, 0)  # the layout and number of segments that were searched
        self.items = items
        self.bases = [segment.base_offset for segment in items]
        self.active = items[-1]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.items)

    def add(self, base_offset: int) -> Segment:
        """Add an active segment and create its file. On OSError nothing has changed."""
        segment = Segment(self._disk, self._directory, base_offset, self._open_files, is_file_there=False)
        segment.writer = segment.create_file()
        self.items.append(segment)
        self.bases.append(base_offset)
        self.active = segment
        return segment

    def end_of(self, segment: Segment, log_end_offset: int) -> int:
        """The offset after the last one of `segment`."""
        if segment is self.active:
            return log_end_offset
        return self.bases[bisect_right(self.bases, segment.base_offset)]

    def copy(self) -> Segments:
        """A copy for a worker, not affected by the loop's changes."""
        return Segments(self._disk, self._directory, list(self.items), self._open_files)

    def locate(
        self, offset: int, *, may_have_gaps: bool, may_wait: bool = True, is_view: bool = False
    ) -> tuple[Segment, int, BatchHeader]:
        """The first batch that ends at `offset` or later. Raises CorruptBatch if it should exist and does not.

        Without `may_wait`: NotCached if the disk is needed. `is_view`: in a thread.
        """
        at = max(bisect_right(self.bases, offset) - 1, 0)
        while True:
            segment = self.items[at]
            reader = segment.view() if is_view else segment
            found = reader.find(offset, may_have_gaps=may_have_gaps, may_wait=may_wait)
            if found is not None:
                return segment, *found
            if not may_have_gaps or segment is self.active:
                if not may_wait:
                    raise NotCached(segment.path)
                reader.report_missing(offset)
            at += 1  # compaction removed the end of the segment

    def with_aborted(self, offset: int) -> list[Segment]:
        """The segments with a transaction index, from the segment of `offset` on. Costs nothing if there are none."""
        state = (self._set_aside_count, len(self.items))
        if state != self._with_aborted_of:  # a sealed segment gets its index when it is sealed, or never
            self._with_aborted = [one for one in self.items[:-1] if one.transaction_index is not None]
            self._with_aborted_of = state
        active = [] if self.active.transaction_index is None else [self.active]
        if not self._with_aborted:
            return active
        base = self.bases[max(bisect_right(self.bases, offset) - 1, 0)]
        first = bisect_left(self._with_aborted, base, key=_base_offset)
        return self._with_aborted[first:] + active

    @property
    def layout(self) -> int:
        """Changes when files are removed or replaced: by a cut, by retention, by compaction."""
        return self._set_aside_count

    def set_aside(self, first: int, last: int) -> list[Segment]:
        """Remove segments [first:last] and rename their files; slices in flight keep them open.

        OSError: a segment that could not be renamed stays, because an unknown one would come back after a crash.
        """
        doomed = self.items[first:last]
        for segment in doomed:
            self._rename_aside(segment, LOG)
            del self.items[first], self.bases[first]
            if self.items:
                self.active = self.items[-1]
            segment.size = 0  # invalidates hints
            segment.release()
            for suffix in _index_suffixes(segment):
                self._rename_aside(segment, suffix)
        return doomed

    def _rename_aside(self, segment: Segment, suffix: str) -> None:
        path, aside = self._names_of(segment, suffix)
        if self._disk.exists(path):
            self._disk.rename(path, aside)
            self._deleted_paths.append(aside)

    def _names_of(self, segment: Segment, suffix: str) -> tuple[str, str]:
        """The current and the new name. New names are unique, because freeing a large file takes time."""
        path = file_path(self._directory, segment.base_offset, suffix)
        self._set_aside_count += 1
        return path, f"{path}.{self._set_aside_count}{DELETED}"

    def withdraw(self, count: int) -> list[Doomed]:
        """Remove the oldest segments, for a worker to rename: then `were_set_aside`, and `put_back` for the rest."""
        doomed: list[Doomed] = []
        for segment in self.items[:count]:
            names = [self._names_of(segment, suffix) for suffix in (LOG, *_index_suffixes(segment))]
            doomed.append(Doomed(segment, segment.size, names))
            segment.size = 0  # invalidates hints
            segment.release()
        del self.items[:count], self.bases[:count]
        return doomed

    def were_set_aside(self, paths: Sequence[str]) -> None:
        self._deleted_paths += paths

    def put_back(self, left: Sequence[Doomed]) -> None:
        for one in left:
            one.segment.size = one.size
        self.items[:0] = [one.segment for one in left]
        self.bases[:0] = [one.segment.base_offset for one in left]
        self._set_aside_count += 1

    def run_of(self, bases: list[int]) -> tuple[int, int] | None:
        """The place of consecutive sealed segments with exactly these bases: [first, last). None: not found."""
        first = bisect_right(self.bases, bases[0]) - 1
        last = first + len(bases)
        return (first, last) if first >= 0 and self.bases[first:last] == bases and last < len(self.bases) else None

    def replace(self, first: int, last: int, size: int, aborted: int) -> Segment:
        """Put the `.swap` files of one segment in place of [first:last]. `aborted`: entries of its transaction
        index, -1: it has none."""
        base_offset = self.bases[first]
        self.set_aside(first, last)
        for suffix in SEGMENT_SUFFIXES:
            if suffix != TRANSACTION_INDEX or aborted >= 0:
                path = file_path(self._directory, base_offset, suffix)
                self._disk.rename(path + SWAP, path)
        segment = Segment(self._disk, self._directory, base_offset, self._open_files, is_file_there=True)
        segment.size = size
        if aborted >= 0:
            segment.transaction_index = TransactionIndex(self._disk, segment.transaction_index_path, stored=aborted)
        segment.is_name_stable = False
        self.items.insert(first, segment)
        self.bases.insert(first, base_offset)
        return segment

    @property
    def has_deleted_files(self) -> bool:
        return bool(self._deleted_paths)

    def remove_deleted(self) -> None:
        """Unlink removed files. May block; may run in a thread."""
        paths, self._deleted_paths = self._deleted_paths, []
        for path in paths:
            if self._disk.exists(path):
                self._disk.remove(path)

    def release(self) -> None:
        for segment in self.items:
            segment.release()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _index_suffixes(segment: Segment) -> tuple[str, ...]:
    if segment.transaction_index is None:
        return INDEX, TIME_INDEX
    return INDEX, TIME_INDEX, TRANSACTION_INDEX
