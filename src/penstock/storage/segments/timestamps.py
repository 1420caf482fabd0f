"""From a timestamp to a record: time index, offset index, headers, and the records of the one batch that matters.

All of it reads the disk. So a lookup is a value, as in `lookups`. The loop makes it, and a worker runs its
`next_batch`. The returned batch is examined where that may block (`records.examine`). `LogReader.end_time_lookup` takes
over the facts learned about segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.model.errors import CorruptBatch
from penstock.records import examine
from penstock.storage.segments.segment import UNKNOWN_TIMESTAMP, Segment, SegmentIndexes
from penstock.storage.segments.segments import Segments


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class Largest(NamedTuple):
    """The largest timestamp of a segment, and the last offset of the first batch that has it."""

    timestamp: int
    offset: int


@dataclass(slots=True)
class Learning:
    """Facts learned about segments, to be taken over on the loop."""

    index_interval_bytes: int
    tag: str
    """Tag in the names of temporary files."""
    largest: list[tuple[Segment, Largest]] = field(default_factory=list)
    rebuilt: list[SegmentIndexes] = field(default_factory=list)

    def largest_of(self, segment: Segment) -> Largest:
        """For a sealed segment: the last entry of its time index, if it is correct. Blocks."""
        if segment.max_timestamp != UNKNOWN_TIMESTAMP:
            return Largest(segment.max_timestamp, segment.max_timestamp_offset)
        for known, largest in self.largest:
            if known is segment:
                return largest
        largest = self._look_at(segment)
        self.largest.append((segment, largest))
        return largest

    def _look_at(self, segment: Segment) -> Largest:
        if not segment.size:
            return Largest(-1, segment.base_offset)
        view = segment.view()
        try:
            last = view.time_index.last()
            if last is not None and view.is_time_entry_true(last):
                return Largest(last[0], segment.base_offset + last[1])
        except CorruptBatch:
            pass  # lost or damaged
        made = self.rebuild(segment)
        return Largest(made.max_timestamp, made.max_timestamp_offset)

    def rebuild(self, segment: Segment) -> Segment:
        for rebuilt in self.rebuilt:
            if rebuilt.segment is segment:
                return rebuilt.made
        self.rebuilt.append(segment.rebuilt_indexes(self.index_interval_bytes, self.tag))
        return self.rebuilt[-1].made


@dataclass(slots=True)
class SegmentTimes:
    """Learns the unknown largest timestamps of segments, oldest first, up to a young one."""

    segments: list[Segment]
    young_ms: int
    generation: int
    layout: int
    learning: Learning

    def run(self) -> None:
        """Blocks. Raises CorruptBatch, OSError."""
        for segment in self.segments:
            if self.learning.largest_of(segment).timestamp >= self.young_ms:
                break


@dataclass(slots=True)
class TimeLookup:
    """`timestamp` None: the record with the largest one."""

    segments: Segments  # a copy
    timestamp: int | None
    log_start_offset: int
    generation: int
    layout: int
    learning: Learning
    _number: int = 0
    _position: int = -1  # next position in that segment; -1: not searched yet

    def next_batch(self) -> bytes | None:
        """The next batch that may hold the record; None: there is none. Blocks. Raises CorruptBatch, OSError."""
        if self.timestamp is None:
            return self._with_largest()
        while self._number < len(self.segments.items):
            segment = self.segments.items[self._number]
            if self.learning.largest_of(segment).timestamp >= self.timestamp:
                batch = self._next_in(segment, self.timestamp)
                if batch is not None:
                    return batch
            self._number, self._position = self._number + 1, -1
        return None

    def examine(self, batch: bytes) -> TimestampOffset | None:
        """Walks over records in place: not for a loop, nor for one of its threads if there are many."""
        found = examine.largest(batch) if self.timestamp is None else examine.first_at_or_after(batch, *self.question)
        return None if found is None else TimestampOffset(*found)

    @property
    def question(self) -> tuple[int, int]:
        assert self.timestamp is not None
        return self.timestamp, self.log_start_offset

    def run(self) -> TimestampOffset | None:
        """The whole lookup. Blocks."""
        while (batch := self.next_batch()) is not None:
            found = self.examine(batch)
            if found is not None:
                return found
        return None

    def _next_in(self, segment: Segment, timestamp: int) -> bytes | None:
        view = segment.view()
        if self._position < 0:
            start = self._start_in(segment, view, timestamp)
            if start is None:
                return None
            self._position = start
        for position, header in view.walk(self._position, view.size):
            self._position = position + header.size_bytes
            if header.max_timestamp >= timestamp and header.last_offset >= self.log_start_offset:
                return view.file().read(position, header.size_bytes)
        self._position = view.size
        return None

    def _start_in(self, segment: Segment, view: Segment, timestamp: int) -> int | None:
        """The position at which to start: everything before it is older; the record may be in the batch of the time
        index entry.
        """
        for rebuilt in self.learning.rebuilt:
            if rebuilt.segment is segment:
                view.time_index, view.index = rebuilt.made.time_index, rebuilt.made.index
        try:
            entry = view.time_index.floor(0, timestamp)
            is_true = entry is None or view.is_time_entry_true(entry)
        except CorruptBatch:
            entry, is_true = None, False
        if not is_true and segment.writer is None:
            made = self.learning.rebuild(segment)
            view.time_index, view.index = made.time_index, made.index
            entry = view.time_index.floor(0, timestamp)
        elif not is_true:
            entry = None  # the segment is being appended to: from its start
        found = view.find(max(segment.base_offset + (entry[1] if entry else 0), self.log_start_offset))
        return None if found is None else found[0]

    def _with_largest(self) -> bytes | None:
        if self._position >= 0:
            return None
        self._position = 0
        best: tuple[Segment, Largest] | None = None
        for segment in self.segments.items:
            largest = self.learning.largest_of(segment)
            if segment.size and (best is None or largest.timestamp > best[1].timestamp):
                best = segment, largest
        if best is None:
            return None
        view = best[0].view()
        found = view.find(best[1].offset)
        return None if found is None else view.file().read(found[0], found[1].size_bytes)
