"""What every record of a partition passes: its log appended to at the end, flushed, and read.

The hot path of `storage/log.py`, whose invariants hold here. Knows segments and offsets; must not know how a log is
opened, cut at its ends, compacted or closed.
"""

from __future__ import annotations

import logging
from typing import NoReturn

from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, LogBusy, LogOffline, StorageError
from penstock.ports.disk import Buffer, File
from penstock.records.batch import LENGTH_OVERHEAD, PREFIX, PREFIX_SIZE, BatchHeader, iterate_headers
from penstock.storage import rolling, slices
from penstock.storage.checkpoint_builder import CheckpointBuilder
from penstock.storage.checkpoints import PARTITION_METADATA, write_partition_metadata
from penstock.storage.durability import Flush, FlushPutOff, Position, Unsynced, is_passing_at_open
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.log_config import LogConfig
from penstock.storage.lookups import Lookup
from penstock.storage.recovery import RecoveredLog
from penstock.storage.segment import MAX_RELATIVE_OFFSET, UNKNOWN_TIMESTAMP, Segment, SegmentIndexes
from penstock.storage.segments import Segments
from penstock.storage.slices import LogSlice
from penstock.storage.timestamps import Learning, SegmentTimes, TimeLookup, TimestampOffset

log = logging.getLogger(__name__)

MAX_EPOCH = 0x7FFFFFFF
_HINTS = 64
_pack_prefix = PREFIX.pack


class GrowingLog:
    def __init__(self, recovered: RecoveredLog) -> None:
        disk, directory = recovered.disk, recovered.directory
        self._disk = disk
        self.directory = directory
        self._segments = Segments(disk, directory, recovered.segments, recovered.open_files)
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.log_end_offset
        self.epochs = recovered.epochs
        self.producers = recovered.producers
        self.offline: OSError | None = None
        self.is_closed = False
        self._is_directory_there = recovered.is_directory_there
        self.gaps = recovered.gaps
        self._topic_id = recovered.topic_id
        self._unsynced_metadata = recovered.unsynced_metadata  # partition.metadata, until the first flush
        self._hints: dict[int, tuple[Segment, int]] = {}  # offset a reader will ask for -> where it lies
        self._lookups = 0
        self.cleaned_offset = recovered.cleaned_offset  # everything below was compacted; 0: never
        # durability
        self.stable_offset = recovered.stable_offset
        self.first_unflushed_ms: int | None = None
        self._flush_begun_offset = self.stable_offset
        self._is_flushing = False
        self.is_flushed_by_owner = False
        """Whoever appends flushes soon when `wants_flush` says so: a roll may wait for that, and syncs nothing."""
        self._is_roll_put_off = False
        self.is_being_cut = False  # its files are with a worker: see `storage.cut`
        self._generation = 0  # a flush or slice of before a truncation says nothing about what came after
        self._unsynced = Unsynced(
            disk, directory, recovered.unsynced_segments, recovered.unsynced_directories, recovered.unsynced_paths
        )
        self._checkpoints = CheckpointBuilder(
            disk, directory, self._segments, self.epochs, recovered.snapshots, self._unsynced
        )
        self.config = recovered.config

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._index_interval_bytes = config.index_interval_bytes
        self._segments.active.limit_bytes = 0  # look closer at the next append

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def _may_have_gaps(self) -> bool:
        """Compaction here or at a leader leaves them, also when the topic is no longer compacted."""
        return not self.gaps.is_contiguous

    def end_position(self) -> Position:
        active = self._segments.active
        return Position(self.log_end_offset, active.base_offset, active.size)

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, header: BatchHeader, data: Buffer, leader_epoch: int, now_ms: int) -> int:
        """Append one validated batch; its base offset. One write call; raises StorageError."""
        base_offset = self.log_end_offset
        last_offset = base_offset + header[6]
        timestamp = header[8]
        size = len(data)
        segment = self._segments.active
        position = segment.size
        if (
            position + size > segment.limit_bytes
            or (timestamp if timestamp >= 0 else now_ms) > segment.roll_after_timestamp
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            segment = self._make_room(size, base_offset, last_offset, timestamp if timestamp >= 0 else now_ms)
            position = segment.size
        assert segment.writer is not None
        try:
            segment.writer.write(
                position,
                (_pack_prefix(base_offset, size - LENGTH_OVERHEAD, leader_epoch), memoryview(data)[PREFIX_SIZE:]),
            )
        except OSError as error:
            self._undo_write(segment, error)
        # Segment.note_batch, inlined.
        if timestamp > segment.max_timestamp:
            segment.max_timestamp = timestamp
            segment.max_timestamp_offset = last_offset
        if segment.bytes_since_index_entry > self._index_interval_bytes:
            segment.add_index_entries(last_offset, position)
            if rolling.is_index_full(segment, self._config):
                segment.limit_bytes = 0
        segment.bytes_since_index_entry += size
        segment.size = position + size
        self.log_end_offset = last_offset + 1
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if header[9] >= 0:
            self.producers.update(header, base_offset, data)
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms
        return base_offset

    def append_replicated(self, data: Buffer, now_ms: int, max_epoch: int = MAX_EPOCH) -> None:
        """Append batches that carry their offsets and epochs already, as fetched from the leader of `max_epoch`.

        Epochs rise, up to that. No checksum covers them, so they are refused (CorruptBatch) if they do not.
        """
        view = memoryview(data)
        headers = list(iterate_headers(data, self.directory))
        if not headers:
            return
        end_offset, epoch, newest, is_gapless = self.log_end_offset, self.epochs.latest, -1, True
        for at, header in headers:
            base_offset, _, batch_epoch, _, _, _, last_offset_delta, _, timestamp, *_ = header
            if base_offset < end_offset or last_offset_delta < 0:
                raise StorageError(f"{self.directory}: offset {base_offset} after {end_offset}")
            if not epoch <= batch_epoch <= max_epoch:
                expected = f"expected {epoch} to {max_epoch} at offset {base_offset}"
                raise CorruptBatch(self.directory, at, f"leader epoch {batch_epoch}, {expected}")
            if base_offset > end_offset:
                is_gapless = False
            end_offset, epoch = base_offset + last_offset_delta + 1, batch_epoch
            if timestamp > newest:
                newest = timestamp
        if newest < 0:
            newest = now_ms
        segment = self._segments.active
        if (
            segment.size + len(view) > segment.limit_bytes
            or newest > segment.roll_after_timestamp
            or end_offset - 1 - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            segment = self._make_room(len(view), headers[0][1].base_offset, end_offset - 1, newest)
        if not is_gapless:
            self._mark_gaps()
        start = segment.size
        assert segment.writer is not None
        try:
            segment.writer.write(start, (view,))
        except OSError as error:
            self._undo_write(segment, error)
        for at, header in headers:
            size = header.size_bytes
            segment.note_batch(start + at, size, header.last_offset, header.max_timestamp, self._index_interval_bytes)
            self.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                self.producers.update(header, header.base_offset, view[at : at + size])
        if rolling.is_index_full(segment, self._config):
            segment.limit_bytes = 0
        self.log_end_offset = end_offset
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms

    def _mark_gaps(self) -> None:
        """Stable no later than the gap: with the next flush, or with whatever else syncs the directory."""
        try:
            if self.gaps.found():
                self._unsynced.names_changed()
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot note that offsets are missing: {error}") from error

    def _make_directory(self) -> None:
        self._disk.make_directory(self.directory)
        self.gaps.begin()
        if self._topic_id is not None:
            # Stable with the first batch: without it nobody could tell whose log this is.
            write_partition_metadata(self._disk, self.directory, self._topic_id, sync=False)
            self._unsynced_metadata = [f"{self.directory}/{PARTITION_METADATA}"]
        self._unsynced.directory_made()
        self._is_directory_there = True

    def _make_room(self, size: int, base_offset: int, last_offset: int, timestamp: int) -> Segment:
        """The segment for the next batch, the slow way: the first append, a new setting, a roll."""
        self._check_usable()
        segment = self._segments.active
        try:
            if segment.limit_bytes == 0 or not segment.size:
                rolling.arm(segment, self._config, timestamp)
            if rolling.must_roll(segment, self._config, size, last_offset, timestamp) and not self._puts_off_roll(
                is_full=rolling.is_at_its_end(segment, size, last_offset)
            ):
                # What a leader has compacted comes with gaps. One between two segments would look like a loss after a
                # crash, so a segment begins where the one before it ends.
                is_far = last_offset - self.log_end_offset > MAX_RELATIVE_OFFSET
                segment = self._roll(base_offset if is_far else self.log_end_offset)
                rolling.arm(segment, self._config, timestamp)
            if segment.writer is None:
                if not segment.is_file_there:
                    if not self._is_directory_there:
                        self._make_directory()
                    segment.create_file()
                    self._unsynced.names_changed()
                segment.writer = segment.file()
        except OSError as error:
            segment.limit_bytes = 0
            raise StorageError(f"{self.directory}: cannot prepare a segment: {error}") from error
        return segment

    def _undo_write(self, segment: Segment, error: OSError) -> NoReturn:
        assert segment.writer is not None
        try:
            segment.writer.truncate(segment.size)
        except OSError as worse:
            self._go_offline(worse)
        raise StorageError(f"cannot append to {segment.path}: {error}") from error

    def roll(self, now_ms: int) -> bool:
        """Seal the active segment and start a new one; False when it is empty, or while that is put off."""
        self._check_usable()
        if not self._segments.active.size or self._puts_off_roll(is_full=False):
            return False
        try:
            self._roll(self.log_end_offset)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot roll: {error}") from error
        return True

    def _puts_off_roll(self, *, is_full: bool) -> bool:
        """A segment outgrows its limits rather than have the loop wait for a sync of its name. See `_roll`."""
        is_put_off = self.is_flushed_by_owner and not is_full and not self._segments.active.is_name_stable
        self._is_roll_put_off = is_put_off
        if is_put_off:
            self._unsynced.names_changed()
        return is_put_off

    def _roll(self, base_offset: int) -> Segment:
        """What must be synced goes to the next flush or checkpoint. On OSError nothing has changed.

        Only a name that no flush has made stable yet is synced here: if the next segment survives a crash, so must
        this one, or its batches would be missing in the middle of the log.
        """
        sealed = self._segments.active
        if not sealed.is_name_stable:
            self._sync_names()
        sealed.limit_bytes = 0  # should this fail half way, the next append looks closer
        sealed.seal()
        snapshot = self._checkpoints.plan_snapshot(self.producers, base_offset)
        segment = self._segments.add(base_offset)
        self._unsynced.names_changed()
        self._unsynced.paths += [sealed.index.path, sealed.time_index.path, *snapshot]
        sealed.writer = None
        if self.log_end_offset > self.stable_offset:
            self._unsynced.segments.append(sealed)
        else:
            sealed.release()
        return segment

    def _sync_names(self) -> None:
        """Blocks. The names of all segments are there to stay."""
        self._unsynced.sync_names()
        for segment in self._segments.items:
            segment.is_name_stable = True

    # -- read ------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, up_to: Position | None = None, *, may_wait: bool = True
    ) -> LogSlice | None:
        """Whole batches from the one that holds `offset`, at least one, of one segment, below `up_to`.

        None when there is nothing yet. Check `slice_is_trusted` before serving it. The event loop may not wait for the
        disk: NotCached, then `lookup`.
        """
        if offset >= self.log_end_offset or offset < self.log_start_offset:
            if offset == self.log_end_offset:
                return None
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in {self.log_start_offset} to {self.log_end_offset}",
            )
        if up_to is not None and offset >= up_to.offset:
            return None
        hint = self._hints.get(offset)
        if hint is not None and hint[1] < hint[0].size:
            segment, position = hint
        else:
            segment, position, _ = self._locate(offset, may_wait=may_wait)
        if up_to is None or segment.base_offset < up_to.segment:
            limit = segment.size
            next_offset = self._segments.end_of(segment, self.log_end_offset)
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
        piece.generation = self._generation
        return piece

    def read_below(self, offset: int, max_bytes: int, end_offset: int, *, may_wait: bool = True) -> LogSlice | None:
        """`read` up to a plain offset, which is looked up first."""
        if end_offset <= offset:
            return None
        return self.read(offset, max_bytes, self.position_of(end_offset, may_wait=may_wait), may_wait=may_wait)

    def position_of(self, offset: int, *, may_wait: bool = True) -> Position:
        """Where the batch that holds `offset` starts."""
        if offset >= self.log_end_offset:
            return self.end_position()
        segment, position, header = self._locate(max(offset, self.log_start_offset), may_wait=may_wait)
        return Position(header.base_offset, segment.base_offset, position)

    def timestamp_at(self, offset: int) -> int:
        """The first timestamp of the batch that holds `offset`, by its header; -1 if it has none. Or NotCached."""
        return self._locate(offset, may_wait=False)[2].base_timestamp

    def lookup(self, offset: int, max_bytes: int, end_offset: int | None = None) -> Lookup:
        """What NotCached was raised for, for a worker to run. Then `end_lookup`. The offset is in the log."""
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        self.check_not_being_cut()
        return Lookup(
            self._segments.copy(),
            max(offset, self.log_start_offset),
            max_bytes,
            self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset),
            self.log_end_offset,
            self._may_have_gaps,
            self._generation,
            self._segments.layout,
            self._index_interval_bytes,
            self._next_tag(),
        )

    def _next_tag(self) -> str:
        """For the files of a lookup that finds a damaged index: another may find the same one."""
        self._lookups += 1
        return str(self._lookups)

    def is_stale(self, lookup: Lookup | TimeLookup | SegmentTimes) -> bool:
        """Segments were cut, deleted or swapped while it ran: whatever it found or failed at says nothing."""
        return lookup.generation != self._generation or lookup.layout != self._segments.layout

    def end_lookup(self, lookup: Lookup) -> bool:
        """Take over what it found. False: nothing, as it is stale."""
        if self.is_stale(lookup):
            _discard(lookup.rebuilt)
            return False
        if self.offline is not None or self.is_closed:
            _discard(lookup.rebuilt)
            return True
        for offset, segment, position in lookup.places:
            if position < segment.size:
                self._remember(offset, segment, position)
        self._adopt(lookup.rebuilt)
        return True

    def _adopt(self, indexes: list[SegmentIndexes]) -> None:
        """An index is an aid: where one cannot be replaced the old one stays, and whoever doubts it reads on."""
        for rebuilt in indexes:
            if rebuilt.segment in self._segments.items and rebuilt.segment.writer is None:
                try:
                    rebuilt.segment.adopt(rebuilt)
                except OSError as error:
                    log.warning("%s: cannot replace an index: %s", self.directory, error)
        _discard(indexes)

    def _locate(self, offset: int, *, may_wait: bool = True) -> tuple[Segment, int, BatchHeader]:
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        self.check_not_being_cut()
        hint = self._hints.get(offset)
        if hint is not None and hint[1] < hint[0].size:
            segment, position = hint
            return segment, *next(segment.walk(position, segment.size, may_wait=may_wait))
        return self._segments.locate(offset, may_have_gaps=self._may_have_gaps, may_wait=may_wait)

    def _remember(self, next_offset: int, segment: Segment, position: int) -> None:
        """A sequential reader comes back for this offset. Only what was checked: a lying header must not lead on."""
        hints = self._hints
        hints[next_offset] = (segment, position)
        if len(hints) > _HINTS:
            del hints[next(iter(hints))]

    def slice_is_trusted(self, piece: LogSlice) -> bool:
        """Whether these bytes were written or checked by this process."""
        return piece.segment.is_trusted(piece.position, piece.position + piece.size)

    def verify_slice(self, piece: LogSlice, epochs: LeaderEpochs | None = None) -> LogSlice:
        """The longest sound prefix, or CorruptBatch when there is none. Blocks; may run in a thread.

        `epochs`: a copy, where batches of other epochs than these count as damaged.
        """
        return slices.verify(piece, may_have_gaps=self._may_have_gaps, epochs=epochs)

    def mark_trusted(self, piece: LogSlice) -> None:
        if piece.generation != self._generation:
            return  # cut off while it was being verified
        end = piece.position + piece.size
        piece.segment.mark_trusted(piece.position, end)
        self._remember(piece.next_offset, piece.segment, end)

    def time_lookup(self, timestamp: int | None) -> TimeLookup:
        """The first record with at least this timestamp; None: the one with the largest. Then `end_time_lookup`."""
        self._check_usable()
        learning = Learning(self._index_interval_bytes, self._next_tag())
        return TimeLookup(
            self._segments.copy(),
            timestamp,
            self.log_start_offset,
            self._generation,
            self._segments.layout,
            learning,
        )

    def times_to_learn(self, young_ms: int) -> SegmentTimes | None:
        """What retention must know of the oldest segments and only the disk can tell. Then `end_time_lookup`."""
        unknown = []
        for segment in self._segments.items:
            if segment.max_timestamp == UNKNOWN_TIMESTAMP:
                unknown.append(segment)
            elif segment.max_timestamp >= young_ms:
                break
        if not unknown or self.offline is not None or self.is_closed or self.is_being_cut:
            return None
        learning = Learning(self._index_interval_bytes, self._next_tag())
        return SegmentTimes(unknown, young_ms, self._generation, self._segments.layout, learning)

    def end_time_lookup(self, lookup: TimeLookup | SegmentTimes) -> bool:
        """Take over what it learned of segments. False: nothing, as it is stale."""
        is_stale = self.is_stale(lookup)
        if is_stale or self.offline is not None or self.is_closed:
            _discard(lookup.learning.rebuilt)
        else:
            self._take_over(lookup.learning)
        return not is_stale

    def _take_over(self, learning: Learning) -> None:
        for segment, largest in learning.largest:
            if segment.max_timestamp == UNKNOWN_TIMESTAMP:
                segment.max_timestamp, segment.max_timestamp_offset = largest
        self._adopt(learning.rebuilt)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Blocks: for tools and tests."""
        return self._find_time(self.time_lookup(timestamp))

    def max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp, the first of them. Blocks."""
        return self._find_time(self.time_lookup(None))

    def _find_time(self, lookup: TimeLookup) -> TimestampOffset | None:
        found = lookup.run()
        self.end_time_lookup(lookup)
        return found

    # -- flush -----------------------------------------------------------------------------------------------

    @property
    def wants_flush(self) -> bool:
        """Whatever the settings say. A sealed segment waits for one: it holds a descriptor and the recovery point back.
        Or a roll does."""
        return bool(self._unsynced.segments) or (self._is_roll_put_off and not self._segments.active.is_name_stable)

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self._flush_begun_offset

    def begin_flush(self) -> Flush | None:
        """What to sync so that everything appended up to now is stable. None: nothing, or one is under way.

        Raises FlushPutOff where the files cannot be opened just now.
        """
        active = self._segments.active
        if self._is_flushing or self.offline is not None or self.is_being_cut or not active.is_file_there:
            return None
        if self.log_end_offset == self.stable_offset and not self._unsynced.has_names:
            return None
        try:
            files: list[File] = [segment.file() for segment in self._unsynced.segments]
            files.append(active.file())
            files += [self._disk.open(path) for path in self._unsynced_metadata]
        except OSError as error:
            if is_passing_at_open(error):
                raise FlushPutOff(error) from error
            self._go_offline(error)
            return None
        self._is_flushing = True
        self._flush_begun_offset = self.log_end_offset
        self.first_unflushed_ms = None
        return Flush(files, self._unsynced.take_directories(), self.end_position(), self._generation)

    def put_off_flush(self, flush: Flush) -> None:
        """It has not made everything stable, and nothing is lost: the next one begins where this one did."""
        self._is_flushing = False
        self._unsynced.put_back_directories()
        self._flush_begun_offset = self.stable_offset

    def end_flush(self, flush: Flush, error: OSError | None) -> None:
        self._is_flushing = False
        if error is not None:
            self._go_offline(error)
            return
        self._unsynced.directories_are_stable()
        self._unsynced_metadata = []
        if flush.generation != self._generation:
            return
        end = flush.end
        self.stable_offset = end.offset
        if flush.directories:
            for segment in self._segments.items:
                if segment.base_offset <= end.segment:
                    segment.is_name_stable = True
        if self._unsynced.segments:
            self._unsynced.flushed_to(end.segment)

    def take_offline(self, error: OSError) -> None:
        """What is on the disk, or will be, is not known."""
        self._go_offline(error)

    def _go_offline(self, error: OSError) -> None:
        self.offline = error
        self._segments.active.limit_bytes = 0

    def _check_usable(self) -> None:
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        if self.is_closed:
            raise StorageError(f"log {self.directory} is closed")
        self.check_not_being_cut()

    def check_not_being_cut(self) -> None:
        """Raises LogBusy: a moment later it can be used again."""
        if self.is_being_cut:
            raise LogBusy(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"log {self.directory} is being cut")


def _discard(indexes: list[SegmentIndexes]) -> None:
    for rebuilt in indexes:
        rebuilt.discard()
