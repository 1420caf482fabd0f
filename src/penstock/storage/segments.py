"""The segments of one log in order, the last one active: lookup by offset, setting deleted ones aside, replacing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from penstock.model.errors import NotCached
from penstock.ports.disk import Disk
from penstock.records.batch import BatchHeader
from penstock.storage.files import DELETED, INDEX, LOG, SEGMENT_SUFFIXES, SWAP, TIME_INDEX, file_path
from penstock.storage.segment import OpenFiles, Segment


class Doomed(NamedTuple):
    """A segment that is no longer the log's, and whose files are still there."""

    segment: Segment
    size: int
    names: Sequence[tuple[str, str]]  # of the log and its indexes: now, and set aside


class Segments:
    __slots__ = (
        "_deleted_paths",
        "_directory",
        "_disk",
        "_open_files",
        "_set_aside_count",
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
        self.items = items
        self.bases = [segment.base_offset for segment in items]
        self.active = items[-1]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.items)

    def add(self, base_offset: int) -> Segment:
        """A new active segment, its file created. On OSError nothing has changed."""
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
        """For a worker: what it finds there stays, whatever the loop adds and drops."""
        return Segments(self._disk, self._directory, list(self.items), self._open_files)

    def locate(
        self, offset: int, *, may_have_gaps: bool, may_wait: bool = True, is_view: bool = False
    ) -> tuple[Segment, int, BatchHeader]:
        """The first batch that ends at `offset` or later. Raises CorruptBatch where there should be one.

        Not `may_wait`: NotCached where the disk would have to be waited for. `is_view`: in a thread.
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
            at += 1  # compacted away at the end of a segment

    @property
    def layout(self) -> int:
        """Changes when files are taken away or replaced: by a cut, by retention, by compaction."""
        return self._set_aside_count

    def set_aside(self, first: int, last: int) -> list[Segment]:
        """Take segments [first:last] out and rename their files; slices in flight keep theirs open.

        OSError: what could not be renamed is still a segment. One that nobody knew of would come back after a crash.
        """
        doomed = self.items[first:last]
        for segment in doomed:
            self._rename_aside(segment, LOG)
            del self.items[first], self.bases[first]
            if self.items:
                self.active = self.items[-1]
            segment.size = 0  # no hint leads here any more
            segment.release()
            for suffix in (INDEX, TIME_INDEX):
                self._rename_aside(segment, suffix)
        return doomed

    def _rename_aside(self, segment: Segment, suffix: str) -> None:
        path, aside = self._names_of(segment, suffix)
        if self._disk.exists(path):
            self._disk.rename(path, aside)
            self._deleted_paths.append(aside)

    def _names_of(self, segment: Segment, suffix: str) -> tuple[str, str]:
        """Now, and set aside: not over one set aside before, as freeing a large file takes its time."""
        path = file_path(self._directory, segment.base_offset, suffix)
        self._set_aside_count += 1
        return path, f"{path}.{self._set_aside_count}{DELETED}"

    def withdraw(self, count: int) -> list[Doomed]:
        """The oldest ones, to be set aside by a worker: then `were_set_aside`, and `put_back` of what is left."""
        doomed: list[Doomed] = []
        for segment in self.items[:count]:
            names = [self._names_of(segment, suffix) for suffix in (LOG, INDEX, TIME_INDEX)]
            doomed.append(Doomed(segment, segment.size, names))
            segment.size = 0  # no hint leads here any more
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
        """Where sealed segments with exactly these bases follow each other: [first, last). None: nowhere."""
        first = bisect_right(self.bases, bases[0]) - 1
        last = first + len(bases)
        return (first, last) if first >= 0 and self.bases[first:last] == bases and last < len(self.bases) else None

    def replace(self, first: int, last: int, size: int) -> Segment:
        """Put the `.swap` files of one segment in the place of [first:last]."""
        base_offset = self.bases[first]
        self.set_aside(first, last)
        for suffix in SEGMENT_SUFFIXES:
            path = file_path(self._directory, base_offset, suffix)
            self._disk.rename(path + SWAP, path)
        segment = Segment(self._disk, self._directory, base_offset, self._open_files, is_file_there=True)
        segment.size = size
        segment.is_name_stable = False
        self.items.insert(first, segment)
        self.bases.insert(first, base_offset)
        return segment

    @property
    def has_deleted_files(self) -> bool:
        return bool(self._deleted_paths)

    def remove_deleted(self) -> None:
        """Unlink what was set aside. May block; may run in a thread."""
        paths, self._deleted_paths = self._deleted_paths, []
        for path in paths:
            if self._disk.exists(path):
                self._disk.remove(path)

    def release(self) -> None:
        for segment in self.items:
            segment.release()
