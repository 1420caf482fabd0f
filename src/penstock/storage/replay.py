"""Rebuilds the state of producers and transactions from a producer snapshot and the batches after it.

Reads headers and markers. Changes nothing, except that it notes torn snapshots. Blocks, so it runs when a log is
opened, and in workers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from penstock.model.errors import CorruptBatch
from penstock.records.batch import BatchHeader
from penstock.storage.producers.producer_state import ProducerStates
from penstock.storage.producers.snapshots import Snapshots
from penstock.storage.producers.transactions import AbortedTransaction
from penstock.storage.segments.segment import Segment
from penstock.storage.segments.segments import Segments

WALK_BYTES = 256 << 10


def headers_from(segments: list[Segment], offset: int, end_offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """(segment, position, header) of the batches that end at `offset` or later."""
    if offset >= end_offset:
        return
    bases = [segment.base_offset for segment in segments]
    for segment in segments[max(bisect_right(bases, offset) - 1, 0) :]:
        found = segment.find(offset)
        if found is not None:
            for position, header in segment.walk(found[0], segment.size, WALK_BYTES):
                yield segment, position, header


def batches_before(segments: list[Segment], offset: int) -> Iterator[BatchHeader]:
    """The last few hundred KB of batches below `offset`, of one segment."""
    at = bisect_left([segment.base_offset for segment in segments], offset) - 1
    if at < 0:
        return
    segment = segments[at]
    found = segment.find(offset) if at + 1 == len(segments) else None
    end = found[0] if found is not None else segment.size
    entry = segment.index.floor(1, max(end - WALK_BYTES, 0))
    try:
        for _, header in segment.walk(entry[1] if entry is not None else 0, end, WALK_BYTES):
            yield header
    except CorruptBatch:
        return  # found and reported when it is read


def replay_producers(segments: list[Segment], snapshots: Snapshots, start: int, end_offset: int) -> ProducerStates:
    """The producers, from the newest intact snapshot within the log and the batches after it; without one, from the
    batches at `start` and after.
    """
    newest = snapshots.load_newest(end_offset)
    producers = ProducerStates()
    if newest is not None:
        start, producers = newest
        if not producers.has_earlier_batches:
            producers.recall(batches_before(segments, start))
    _replay(segments, producers, start, end_offset)
    return producers


def _replay(
    segments: list[Segment], producers: ProducerStates, start: int, end_offset: int
) -> list[AbortedTransaction]:
    """The transactions that were aborted from `start` on."""
    aborted: list[AbortedTransaction] = []
    for segment, position, header in headers_from(segments, start, end_offset):
        if header.base_offset >= end_offset:
            break
        if header.producer_id >= 0 and header.base_offset >= start:
            data = segment.file().read(position, header.size_bytes) if header.is_control else b""
            entry = producers.update(header, header.base_offset, data)
            if entry is not None:
                aborted.append(entry)
    return aborted


def find_aborted(
    segments: list[Segment], snapshots: Snapshots, offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions whose markers are at `offset` or later. Their first offsets come from a producer
    snapshot and the batches after it.

    If the first batches of a transaction were deleted or compacted, it begins with the first remaining batch. Blocks.
    """
    if offset >= end_offset:
        return []
    base_offset = segments[0].base_offset
    newest = snapshots.load_newest(offset, base_offset)
    found: list[AbortedTransaction] = []
    if newest is None:
        # Nothing was deleted yet; or a deletion was interrupted, and has left a snapshot at the first batch that stays.
        newest = snapshots.load_oldest(base_offset)
        end = end_offset if newest is None else min(newest[0], end_offset)
        found = _replay(segments, ProducerStates(), base_offset, end)
    if newest is not None:
        found += _replay(segments, newest[1], newest[0], end_offset)
    return [entry for entry in found if entry.last_offset >= offset]


def find_aborted_in(
    segments: Segments, snapshots: Snapshots, segment: Segment, *, log_end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions of one segment; for a worker. Blocks."""
    views = [one.view() for one in segments.items]
    return find_aborted(views, snapshots, segment.base_offset, segments.end_of(segment, log_end_offset))
