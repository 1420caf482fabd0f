"""The files of one log, and the order in which they change on disk.

`Log` holds the state; this class makes the directory match it: the directory and its marks, a roll, a cut, a fresh
start. A cut runs in a worker, and the segments belong to that worker until the cut ends.
Must not know: which offsets may be read, flushing, whether the log is offline or closed.

Invariants

- The name of a segment is stable before the next segment is created.
- A cut drops segments from the end, each permanently before the next, so a crash leaves no hole.
- A mark that offsets are missing is stable no later than the first batch after the gap.
"""

from __future__ import annotations

from penstock.model.errors import CorruptBatch, StorageError
from penstock.ports.disk import Disk
from penstock.storage.checkpoint_builder import CheckpointBuilder
from penstock.storage.checkpoints import PARTITION_METADATA, write_partition_metadata
from penstock.storage.cleaner.swap import Swap
from penstock.storage.cut import Remainder
from penstock.storage.durability import Unsynced
from penstock.storage.files import write_atomic
from penstock.storage.gaps import OffsetGaps
from penstock.storage.producers.producer_state import ProducerStates
from penstock.storage.producers.transaction_index import encode
from penstock.storage.replay import find_aborted
from penstock.storage.segments.segment import Segment
from penstock.storage.segments.segments import Segments


class LogFiles:
    __slots__ = (
        "_checkpoints",
        "_directory",
        "_disk",
        "_gaps",
        "_is_directory_there",
        "_segments",
        "_unsynced",
        "topic_id",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: Segments,
        gaps: OffsetGaps,
        unsynced: Unsynced,
        checkpoints: CheckpointBuilder,
        topic_id: bytes | None,
        *,
        is_directory_there: bool,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._gaps = gaps
        self._unsynced = unsynced
        self._checkpoints = checkpoints
        self.topic_id = topic_id
        self._is_directory_there = is_directory_there

    # -- growing ---------------------------------------------------------------------------------------------

    def open_to_append(self, segment: Segment) -> None:
        """The first append creates the file of an empty log, and its directory. Raises OSError."""
        if not segment.is_file_there:
            if not self._is_directory_there:
                self._make_directory()
            segment.create_file()
            self._unsynced.names_changed()
        segment.writer = segment.file()

    def _make_directory(self) -> None:
        self._disk.make_directory(self._directory)
        self._gaps.begin()
        if self.topic_id is not None:
            # Stable with the first batch: without it, the owner of the directory would be unknown.
            write_partition_metadata(self._disk, self._directory, self.topic_id, sync=False)
            self._unsynced.metadata = [f"{self._directory}/{PARTITION_METADATA}"]
        self._unsynced.directory_made()
        self._is_directory_there = True

    def mark_gaps(self) -> None:
        """The mark becomes stable with the next flush or sync of the directory. Raises StorageError."""
        try:
            if self._gaps.found():
                self._unsynced.names_changed()
        except OSError as error:
            raise StorageError(f"{self._directory}: cannot mark that offsets are missing: {error}") from error

    def roll(self, base_offset: int, producers: ProducerStates, *, is_flushed: bool) -> Segment:
        """Seal the active segment and begin the next one. The next flush or checkpoint syncs what is needed.

        Only an unstable name is synced here: if the next segment survives a crash, this one must survive too, or its
        batches would be missing in the middle of the log. On OSError nothing has changed.
        """
        sealed = self._segments.active
        if not sealed.is_name_stable:
            self._sync_names()
        sealed.limit_bytes = 0  # if this fails half way, the next append takes the slow path
        sealed.seal()
        snapshot = self._checkpoints.plan_snapshot(producers, base_offset)
        segment = self._segments.add(base_offset)
        self._unsynced.names_changed()
        self._unsynced.paths += [*sealed.index_paths, *snapshot]
        sealed.writer = None
        if is_flushed:
            sealed.release()
        else:
            self._unsynced.segments.append(sealed)
        return segment

    def _sync_names(self) -> None:
        """Blocks. Makes the names of all segments permanent."""
        self._unsynced.sync_names()
        for segment in self._segments.items:
            segment.is_name_stable = True

    # -- cutting, in a worker --------------------------------------------------------------------------------

    def cut(
        self,
        segment: Segment,
        position: int,
        end_offset: int,
        log_start_offset: int,
        producers: ProducerStates,
        swap: Swap | None,
        is_again: bool,
        *,
        may_have_gaps: bool,
    ) -> Remainder:
        """Make the files end where the batch at `end_offset` began: at `position` of `segment`. Blocks.

        `swap`: a compaction in progress, to be cancelled first. `is_again`: the cut was postponed half way.
        """
        if is_again:
            self._disk.sync_directory(self._directory)  # makes earlier drops permanent
        if swap is not None:
            swap.cancel()
        segments = self._segments.items
        first = segments.index(segment) if segment in segments else len(segments)
        if segment.base_offset > end_offset:  # compaction removed everything from there on in the previous segment
            self._drop_from(first)
            end_offset = self._end_of_last_batch(end_offset, may_have_gaps=may_have_gaps)
            last = self._segments.active
            if last.size:
                self._segments.add(end_offset)
            else:
                last.cut(0, last.base_offset)
        else:
            self._drop_from(first + 1)
            self._unsynced.forget([segment])
            file = segment.file()
            file.truncate(position)
            file.sync()
            segment.cut(position, end_offset)
            self._cut_aborted(segment, end_offset)
            self._unsynced.paths += segment.index_paths
            end_offset = self._end_of_last_batch(end_offset, may_have_gaps=may_have_gaps)
        if end_offset < log_start_offset:  # the remaining records were deleted before
            return self.begin_anew(log_start_offset, None, is_again)
        self._unsynced.names_changed()
        self._sync_names()
        producers = self._checkpoints.producers_after_cut(producers, end_offset)
        return Remainder(producers, end_offset, is_anew=False)

    def _cut_aborted(self, segment: Segment, end_offset: int) -> None:
        """Drop the index entries of markers beyond the cut; without entries the file is removed."""
        index = segment.transaction_index
        if index is None:
            return
        try:
            is_any_left = index.truncate(end_offset)
        except (CorruptBatch, FileNotFoundError):  # the index is damaged: rebuild it
            snapshots = self._checkpoints.snapshots
            entries = find_aborted(self._segments.items, snapshots, segment.base_offset, end_offset)
            write_atomic(self._disk, index.path, encode(entries))
            index.were_written(len(entries))
            is_any_left = index.truncate(end_offset)
        if not is_any_left:
            segment.transaction_index = None

    def begin_anew(self, offset: int, swap: Swap | None, is_again: bool) -> Remainder:
        """Replace all segments with an empty one at `offset`. Blocks. `swap` and `is_again` as in `cut`."""
        if is_again and self._is_directory_there:
            self._disk.sync_directory(self._directory)
        if swap is not None:
            swap.cancel()
        if not self._is_directory_there:
            self._make_directory()
        self._drop_from(0)
        self._gaps.begin()
        self._checkpoints.snapshots.drop_all()
        self._segments.add(offset)
        self._unsynced.names_changed()
        self._sync_names()
        return Remainder(ProducerStates(), offset, is_anew=True)

    def _end_of_last_batch(self, cut: int, *, may_have_gaps: bool) -> int:
        """The end of the log after the segments behind the cut are gone."""
        if not may_have_gaps:
            return cut
        last = self._segments.active
        return min(last.load_tail(last.size), cut)

    def _drop_from(self, first: int) -> None:
        for number in reversed(range(first, len(self._segments))):
            self._drop(number)
            self._disk.sync_directory(self._directory)

    def _drop(self, number: int) -> None:
        doomed = self._segments.items[number]
        try:
            self._segments.set_aside(number, number + 1)
        finally:  # a segment that could not be renamed still exists
            if doomed not in self._segments.items[number:]:
                self._unsynced.forget([doomed])
