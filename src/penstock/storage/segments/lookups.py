"""A lookup that needs the disk, as a value: made on the loop, run in a worker, its result taken over on the loop.

The loop looks things up in memory (`LogReader.read` without `may_wait`) and gets NotCached if that is not enough: cold
pages, a gap in unchecked batches, a damaged index. A `Lookup` does the same with blocking reads. It works on views of
the segments and changes nothing. Its findings (places, new indexes) are used only if `LogReader.end_lookup` finds
the log unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.errors import CorruptBatch
from penstock.storage.segments.segment import Segment, SegmentIndexes
from penstock.storage.segments.segments import Segments
from penstock.storage.segments.slices import LogSlice


@dataclass(slots=True)
class Lookup:
    segments: Segments  # a copy
    offset: int
    max_bytes: int
    end_offset: int  # read nothing from here on
    log_end_offset: int
    may_have_gaps: bool
    generation: int
    layout: int
    """Layout of the segments: compaction may replace them during the lookup."""
    index_interval_bytes: int
    tag: str
    """Tag in the names of temporary files."""
    places: list[tuple[int, Segment, int]] = field(default_factory=list)  # offset, segment and start of its batch
    rebuilt: list[SegmentIndexes] = field(default_factory=list)

    def run(self) -> LogSlice | None:
        """Return what `LogReader.read_below` would. Blocks; for a worker. Raises CorruptBatch, OSError."""
        try:
            return self._run()
        except (CorruptBatch, OSError):
            for rebuilt in self.rebuilt:
                rebuilt.discard()
            self.rebuilt.clear()
            raise

    def _run(self) -> LogSlice | None:
        if self.offset >= self.end_offset:
            return None
        segment, position = self._locate(self.offset)
        limit, next_offset = segment.size, self.segments.end_of(segment, self.log_end_offset)
        if self.end_offset < self.log_end_offset:
            last, end = self._locate(self.end_offset)
            if last is segment:
                limit, next_offset = end, self.end_offset
        if limit <= position:
            return None
        view = segment.view()
        end_offset = next_offset
        if limit - position > self.max_bytes:
            limit, next_offset = view.boundary(position, position + self.max_bytes)
        piece = LogSlice(segment, view.file(), position, limit - position, self.offset, next_offset)
        piece.end_offset, piece.generation = end_offset, self.generation
        return piece

    def _locate(self, offset: int) -> tuple[Segment, int]:
        segment, position, _ = self.segments.locate(offset, may_have_gaps=self.may_have_gaps, is_view=True)
        self.places.append((offset, segment, position))
        if segment.writer is None and not segment.view().index_is_true(offset):
            self._rebuild(segment)
        return segment, position

    def _rebuild(self, segment: Segment) -> None:
        if not any(one.segment is segment for one in self.rebuilt):
            self.rebuilt.append(segment.rebuilt_indexes(self.index_interval_bytes, self.tag))


def timestamp_at(lookup: Lookup) -> int:
    """The first timestamp of the batch that holds the offset, from its header; -1 if there is none. Blocks."""
    try:
        return lookup.segments.locate(lookup.offset, may_have_gaps=lookup.may_have_gaps, is_view=True)[2].base_timestamp
    except (CorruptBatch, OSError):
        return -1
