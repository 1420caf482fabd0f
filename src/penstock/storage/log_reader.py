"""Reading one log: from an offset or a timestamp to the batches that hold it.

`read` looks in memory and raises NotCached if the loop would have to wait for the disk. Then a lookup answers: a value
made here, run in a worker, and taken over here (`lookups`, `timestamps`).
Knows segments, and the part of the log in `ReadLog`. Must not know: how the log grows, is flushed or is cut.

Invariants

- Reading never changes the content of the log: only remembered places, and indexes, which are an aid.
- Results found before segments were cut, deleted or swapped are dropped afterwards.
- No place is remembered from bytes that this process neither wrote nor checked, because their header may be wrong.
"""

from __future__ import annotations

import logging
from typing import Protocol

from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import BatchHeader
from penstock.storage.durability import Position
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.segments import slices
from penstock.storage.segments.lookups import Lookup
from penstock.storage.segments.segment import UNKNOWN_TIMESTAMP, Segment, SegmentIndexes
from penstock.storage.segments.segments import Segments
from penstock.storage.segments.slices import LogSlice
from penstock.storage.segments.timestamps import Learning, SegmentTimes, TimeLookup, TimestampOffset

log = logging.getLogger(__name__)

_HINTS = 64


class ReadLog(Protocol):
    """The part of a log that its reader needs."""

    directory: str
    log_start_offset: int
    log_end_offset: int
    generation: int
    offline: OSError | None
    is_closed: bool
    is_being_cut: bool

    @property
    def may_have_gaps(self) -> bool: ...

    def end_position(self) -> Position: ...
    def check_readable(self) -> None: ...
    def check_usable(self) -> None: ...


class LogReader:
    __slots__ = ("_hints", "_log", "_lookups", "_segments", "index_interval_bytes")

    def __init__(self, log: ReadLog, segments: Segments, index_interval_bytes: int) -> None:
        self._log = log
        self._segments = segments
        self._hints: dict[int, tuple[Segment, int]] = {}  # offset of a reader's next read -> its place
        self._lookups = 0
        self.index_interval_bytes = index_interval_bytes

    # -- in memory -------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, up_to: Position | None = None, *, may_wait: bool = True
    ) -> LogSlice | None:
        """Return whole batches of one segment, from the one that holds `offset`, at least one, below `up_to`.

        None if there are none yet. Check `LogSlice.is_trusted` before serving them. The event loop must not wait for
        the disk: it gets NotCached and uses `lookup`.
        """
        owner = self._log
        log_end_offset = owner.log_end_offset
        if offset >= log_end_offset or offset < owner.log_start_offset:
            if offset == log_end_offset:
                return None
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in {owner.log_start_offset} to {log_end_offset}",
            )
        if up_to is not None and offset >= up_to.offset:
            return None
        hint = self._hints.get(offset)
        if hint is not None and hint[1] < hint[0].size:
            segment, position = hint
        else:
            segment, position, _ = self.locate(offset, may_wait=may_wait)
        if up_to is None or segment.base_offset < up_to.segment:
            limit = segment.size
            next_offset = self._segments.end_of(segment, log_end_offset)
        else:
            limit = up_to.position if segment.base_offset == up_to.segment else 0
            next_offset = up_to.offset
        end_offset = next_offset
        if limit - position > max_bytes:
            limit, next_offset = segment.boundary(position, position + max_bytes, may_wait=may_wait)
        if limit <= position:
            return None
        if segment.is_trusted(position, limit):
            self._remember(next_offset, segment, limit)
        piece = LogSlice(segment, segment.file(), position, limit - position, offset, next_offset)
        piece.end_offset = end_offset
        piece.generation = owner.generation
        return piece

    def read_below(self, offset: int, max_bytes: int, end_offset: int, *, may_wait: bool = True) -> LogSlice | None:
        """`read` up to a plain offset, which is looked up first."""
        if end_offset <= offset:
            return None
        return self.read(offset, max_bytes, self.position_of(end_offset, may_wait=may_wait), may_wait=may_wait)

    def position_of(self, offset: int, *, may_wait: bool = True) -> Position:
        """The start of the batch that holds `offset`."""
        if offset >= self._log.log_end_offset:
            return self._log.end_position()
        segment, position, header = self.locate(max(offset, self._log.log_start_offset), may_wait=may_wait)
        return Position(header.base_offset, segment.base_offset, position)

    def timestamp_at(self, offset: int) -> int:
        """The first timestamp of the batch that holds `offset`, from its header; -1 if none. Raises NotCached."""
        return self.locate(offset, may_wait=False)[2].base_timestamp

    def locate(self, offset: int, *, may_wait: bool = True) -> tuple[Segment, int, BatchHeader]:
        """The first batch that ends at `offset` or later. Raises CorruptBatch, NotCached as `Segments.locate`."""
        self._log.check_readable()
        hint = self._hints.get(offset)
        if hint is not None and hint[1] < hint[0].size:
            segment, position = hint
            return segment, *next(segment.walk(position, segment.size, may_wait=may_wait))
        return self._segments.locate(offset, may_have_gaps=self._log.may_have_gaps, may_wait=may_wait)

    def _remember(self, next_offset: int, segment: Segment, position: int) -> None:
        """Remember the place of the offset that a sequential reader will need next."""
        hints = self._hints
        hints[next_offset] = (segment, position)
        if len(hints) > _HINTS:
            del hints[next(iter(hints))]

    def forget_places(self) -> None:
        """Segments are removed or replaced: drop all places."""
        self._hints.clear()

    # -- verification ----------------------------------------------------------------------------------------

    def verify_slice(self, piece: LogSlice, epochs: LeaderEpochs | None = None) -> LogSlice:
        """Return the longest valid prefix, or raise CorruptBatch if there is none. Blocks; may run in a thread.

        `epochs`: a copy; batches with other epochs count as damaged.
        """
        return slices.verify(piece, may_have_gaps=self._log.may_have_gaps, epochs=epochs)

    def mark_trusted(self, piece: LogSlice) -> None:
        if piece.generation != self._log.generation:
            return  # cut off during verification
        end = piece.position + piece.size
        piece.segment.mark_trusted(piece.position, end)
        self._remember(piece.next_offset, piece.segment, end)

    # -- in a worker -----------------------------------------------------------------------------------------

    def lookup(self, offset: int, max_bytes: int, end_offset: int | None = None) -> Lookup:
        """After NotCached: a lookup for a worker, then `end_lookup`. The offset is in the log."""
        owner = self._log
        owner.check_readable()
        return Lookup(
            self._segments.copy(),
            max(offset, owner.log_start_offset),
            max_bytes,
            owner.log_end_offset if end_offset is None else min(end_offset, owner.log_end_offset),
            owner.log_end_offset,
            owner.may_have_gaps,
            owner.generation,
            self._segments.layout,
            self.index_interval_bytes,
            self.next_tag(),
        )

    def end_lookup(self, lookup: Lookup) -> bool:
        """Take over the result. False: the result is stale."""
        is_stale = self.is_stale(lookup)
        if is_stale or self._log.offline is not None or self._log.is_closed:
            _discard(lookup.rebuilt)
            return not is_stale
        for offset, segment, position in lookup.places:
            if position < segment.size:
                self._remember(offset, segment, position)
        self._adopt(lookup.rebuilt)
        return True

    def is_stale(self, lookup: Lookup | TimeLookup | SegmentTimes) -> bool:
        """Whether segments were cut, deleted or swapped during the lookup, so that its result is void."""
        return lookup.generation != self._log.generation or lookup.layout != self._segments.layout

    def time_lookup(self, timestamp: int | None) -> TimeLookup:
        """Look up the first record with at least this timestamp; None: with the largest. Then `end_time_lookup`."""
        self._log.check_usable()
        return TimeLookup(
            self._segments.copy(),
            timestamp,
            self._log.log_start_offset,
            self._log.generation,
            self._segments.layout,
            Learning(self.index_interval_bytes, self.next_tag()),
        )

    def times_to_learn(self, young_ms: int) -> SegmentTimes | None:
        """The timestamps of the oldest segments that retention needs from the disk. Then `end_time_lookup`."""
        unknown = []
        for segment in self._segments.items:
            if segment.max_timestamp == UNKNOWN_TIMESTAMP:
                unknown.append(segment)
            elif segment.max_timestamp >= young_ms:
                break
        owner = self._log
        if not unknown or owner.offline is not None or owner.is_closed or owner.is_being_cut:
            return None
        learning = Learning(self.index_interval_bytes, self.next_tag())
        return SegmentTimes(unknown, young_ms, owner.generation, self._segments.layout, learning)

    def end_time_lookup(self, lookup: TimeLookup | SegmentTimes) -> bool:
        """Take over what it learned about segments. False: the result is stale."""
        is_stale = self.is_stale(lookup)
        if is_stale or self._log.offline is not None or self._log.is_closed:
            _discard(lookup.learning.rebuilt)
            return not is_stale
        for segment, largest in lookup.learning.largest:
            if segment.max_timestamp == UNKNOWN_TIMESTAMP:
                segment.max_timestamp, segment.max_timestamp_offset = largest
        self._adopt(lookup.learning.rebuilt)
        return True

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Blocks: for tools and tests."""
        return self._find_time(self.time_lookup(timestamp))

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp. Blocks: for tools and tests."""
        return self._find_time(self.time_lookup(None))

    def _find_time(self, lookup: TimeLookup) -> TimestampOffset | None:
        found = lookup.run()
        self.end_time_lookup(lookup)
        return found

    def next_tag(self) -> str:
        """For the files of a lookup that finds a damaged index: another may find the same one."""
        self._lookups += 1
        return str(self._lookups)

    def _adopt(self, indexes: list[SegmentIndexes]) -> None:
        """Replace rebuilt indexes. If one cannot be replaced, the old one stays: readers check every index."""
        for rebuilt in indexes:
            if rebuilt.segment in self._segments.items and rebuilt.segment.writer is None:
                try:
                    rebuilt.segment.adopt(rebuilt)
                except OSError as error:
                    log.warning("%s: cannot replace an index: %s", self._log.directory, error)
        _discard(indexes)


def _discard(indexes: list[SegmentIndexes]) -> None:
    for rebuilt in indexes:
        rebuilt.discard()
