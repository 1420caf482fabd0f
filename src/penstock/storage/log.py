"""The log of one partition: `<log dir>/<topic>-<partition>/`, a row of segments of which the last one grows.

`Log` holds the state: both ends of the log, leader epochs, producers, the stable offset, whether the log is usable. It
appends, and begins and ends everything that takes longer. Its parts:

    Segments             the row of segments, by offset
    LogReader            from an offset or a timestamp to batches. Does not change the log
    LogFiles             the directory: a roll, a cut, a fresh start, in an order that a crash may interrupt
    Unsynced             what is written and not stable yet, apart from the active segment
    CheckpointBuilder    what recovery will need: index entries, leader epochs, producer snapshots
    OffsetGaps           whether offsets are missing
    TransactionIndex     of a segment: the aborted transactions whose markers are in it

Each part gets its dependencies at construction. Only `Log` changes an offset of the log or takes it offline. Cut,
Deletion, Flush, Swap, LogCheckpoint and Lookup are values. The log begins one, a worker or the flusher runs it, the
log ends it.

Append stays one function here: for every produced batch it changes the end of the log, its epochs and its producers
together. Both ends change together with the generation, the stable offset and the epochs, so trimming stays here too.

Must not know: event loops, clocks, randomness. `now_ms` is an argument, and everything that may block for long (sync,
verification) is handed out as a value for others to run.

Invariants

- Offsets below `log_start_offset` are deleted, those from `log_end_offset` on do not exist yet; in between, batches
  follow each other without overlap.
- Everything below `stable_offset` survives a power failure. It moves only in `end_flush` and `close`.
- A failed sync takes the log offline permanently: it is unknown what reached the disk, so nothing is retried on top.
- A failed write leaves the log as it was.
- The recovery point on disk never exceeds `stable_offset`, and the files of a `LogCheckpoint` are stable before it
  is written. Before a truncation, the caller writes a lower recovery point and cleaned offset.
- The name of a segment is stable before the next segment is created (`LogFiles.roll`). Retention drops segments oldest
  first (`storage.deletion`), a cut drops them from the end (`LogFiles.cut`). So after a crash there is no hole above
  the recovery point, unless content was lost.
- Records that were cut or deleted do not reappear behind later appends: see `begin_cut`.
- Compaction replaces sealed segments below the persisted recovery point, in two steps (`begin_swap`, `end_swap`);
  code that deletes or truncates in between cancels it. See `cleaner/swap.py`.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from functools import partial
from typing import NoReturn

from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, LogBusy, LogOffline, NotCached, StorageError
from penstock.ports.disk import Buffer, Disk, File
from penstock.records.batch import LENGTH_OVERHEAD, PREFIX, PREFIX_SIZE, BatchHeader, iterate_headers, read_header
from penstock.storage.aborted_lookup import AbortedLookup
from penstock.storage.checkpoint_builder import CheckpointBuilder
from penstock.storage.cleaner.plan import RewrittenSegment
from penstock.storage.cleaner.swap import Swap
from penstock.storage.cut import Cut, Remainder
from penstock.storage.deletion import Deletion
from penstock.storage.durability import Flush, FlushPutOff, LogCheckpoint, Position, Unsynced, is_passing_at_open
from penstock.storage.last_run import NO_LAST_RUN, LastRun
from penstock.storage.log_config import LogConfig
from penstock.storage.log_disk import LogDisk
from penstock.storage.log_files import LogFiles
from penstock.storage.log_reader import LogReader
from penstock.storage.log_tail import LogTail, SegmentPart
from penstock.storage.producers.transactions import AbortedTransaction
from penstock.storage.recovery import RecoveredLog, recover
from penstock.storage.replay import find_aborted_in
from penstock.storage.segments import rolling
from penstock.storage.segments.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.storage.segments.segments import Segments

MAX_EPOCH = 0x7FFFFFFF
_pack_prefix = PREFIX.pack


class Log:
    def __init__(self, recovered: RecoveredLog) -> None:
        disk, directory = recovered.disk, recovered.directory
        assert isinstance(disk, LogDisk)
        self._disk = disk
        self.directory = directory
        self.recovery = recovered.report
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.log_end_offset
        self.epochs = recovered.epochs
        self.producers = recovered.producers
        self.gaps = recovered.gaps
        self.cleaned_offset = recovered.cleaned_offset  # everything below was compacted; 0: never
        self.persisted_recovery_point = recovered.recovery_point  # raised when a recovery point is persisted
        self.generation = 0
        """Changes with every cut: an older flush or slice says nothing about later batches."""
        # availability
        self.offline: OSError | None = None
        self.is_closed = False
        self.was_opened = True  # False: a placeholder, which has not read the files
        self.is_being_cut = False  # a worker has its files: see `storage.cut`
        self.is_deleting = False  # a worker has the oldest segments: see `storage.deletion`
        self.is_being_cleaned = False  # retention waits, because segments may be replaced at any moment
        self._swap: Swap | None = None
        self._put_off: Cut | None = None
        # durability
        self.stable_offset = recovered.stable_offset
        self.first_unflushed_ms: int | None = None
        self._flush_begun_offset = self.stable_offset
        self._is_flushing = False
        self.is_flushed_by_owner = False
        """The code that appends also flushes when `wants_flush`, so a roll may wait for a flush and syncs nothing."""
        self._is_roll_put_off = False
        # parts
        segments = Segments(disk, directory, recovered.segments, recovered.open_files)
        unsynced = Unsynced(
            disk,
            directory,
            recovered.unsynced_segments,
            recovered.unsynced_directories,
            recovered.unsynced_paths,
            recovered.unsynced_metadata,
        )
        self.snapshots = recovered.snapshots
        checkpoints = CheckpointBuilder(disk, directory, segments, self.epochs, self.snapshots, unsynced)
        self._segments = segments
        self._unsynced = unsynced
        self._checkpoints = checkpoints
        self._files = LogFiles(
            disk,
            directory,
            segments,
            self.gaps,
            unsynced,
            checkpoints,
            recovered.topic_id,
            is_directory_there=recovered.is_directory_there,
        )
        self.reader = LogReader(self, segments, recovered.config.index_interval_bytes)
        self.config = recovered.config

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        last_run: LastRun = NO_LAST_RUN,
        *,
        now_ms: int,
        topic_id: bytes | None = None,
    ) -> Log:
        """Open or create. Raises CorruptBatch if stable bytes that opening needs are damaged."""
        try:
            recovered = recover(LogDisk(disk), directory, config, last_run, now_ms=now_ms, topic_id=topic_id)
        except OSError as error:
            raise StorageError(f"cannot open {directory}: {error}") from error
        return cls(recovered)

    @classmethod
    def offline_at(cls, disk: Disk, directory: str, config: LogConfig, error: OSError, last_run: LastRun) -> Log:
        """Placeholder for a log that could not be opened: refuses everything and keeps the checkpoints."""
        log = cls(RecoveredLog.placeholder(LogDisk(disk), directory, config, last_run))
        log.was_opened = False
        log._go_offline(error)
        return log

    def __repr__(self) -> str:
        return f"Log({self.directory}, {self.log_start_offset} to {self.log_end_offset})"

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._index_interval_bytes = self.reader.index_interval_bytes = config.index_interval_bytes
        self._segments.active.limit_bytes = 0  # take the slow path at the next append

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def may_have_gaps(self) -> bool:
        """Compaction, here or on a leader, leaves gaps, which remain when the topic is no longer compacted."""
        return not self.gaps.is_contiguous

    def end_position(self) -> Position:
        active = self._segments.active
        return Position(self.log_end_offset, active.base_offset, active.size)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset below which every transaction is decided, with its marker below `high_watermark`. Not below the
        log start.
        """
        unstable = self.producers.transactions.first_unstable_offset(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def recovery_point(self) -> int:
        return self.stable_offset

    @property
    def segment_bases(self) -> list[int]:
        return list(self._segments.bases)

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments.items)

    @property
    def sealed_segments(self) -> list[Segment]:
        return self._segments.items[:-1]

    def take_offline(self, error: OSError) -> None:
        """The content on disk is unknown."""
        self._go_offline(error)

    def _go_offline(self, error: OSError) -> None:
        self.offline = error
        self._segments.active.limit_bytes = 0

    def check_usable(self) -> None:
        """Raises LogOffline, LogBusy, StorageError."""
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        if self.is_closed:
            raise StorageError(f"log {self.directory} is closed")
        self.check_not_being_cut()

    def check_readable(self) -> None:
        """Raises LogOffline, LogBusy."""
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        if self.is_being_cut:
            self.check_not_being_cut()

    def check_not_being_cut(self) -> None:
        """Raises LogBusy: the log is usable again in a moment."""
        if self.is_being_cut:
            raise LogBusy(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"log {self.directory} is being cut")

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, header: BatchHeader, data: Buffer, leader_epoch: int, now_ms: int) -> int:
        """Append one validated batch and return its base offset. One write call; raises StorageError."""
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
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
        if header.producer_id >= 0:
            aborted = self.producers.update(header, base_offset, data)
            if aborted is not None:
                segment.add_aborted(aborted)
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms
        return base_offset

    def append_replicated(self, data: Buffer, now_ms: int, max_epoch: int = MAX_EPOCH) -> None:
        """Append batches that have their offsets and epochs already, as fetched from the leader of `max_epoch`.

        Epochs must increase, up to `max_epoch`. No checksum covers them, so wrong ones are refused (CorruptBatch).
        """
        view = memoryview(data)
        headers = list(iterate_headers(data, self.directory))
        if not headers:
            return
        end_offset, epoch, newest, is_gapless = self.log_end_offset, self.epochs.latest, -1, True
        for at, header in headers:
            base_offset, _, batch_epoch, _, _, _, last_offset_delta, _, timestamp, *_ = header
            if base_offset < end_offset or last_offset_delta < 0:
                raise StorageError(f"{self.directory}: offset {base_offset} follows {end_offset}")
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
            self._files.mark_gaps()
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
                aborted = self.producers.update(header, header.base_offset, view[at : at + size])
                if aborted is not None:
                    segment.add_aborted(aborted)
        if rolling.is_index_full(segment, self._config):
            segment.limit_bytes = 0
        self.log_end_offset = end_offset
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms

    def _make_room(self, size: int, base_offset: int, last_offset: int, timestamp: int) -> Segment:
        """The segment for the next batch, slow path: the first append, a new setting, a roll."""
        self.check_usable()
        segment = self._segments.active
        try:
            if segment.limit_bytes == 0 or not segment.size:
                rolling.arm(segment, self._config, timestamp)
            if rolling.must_roll(segment, self._config, size, last_offset, timestamp) and not self._puts_off_roll(
                is_full=rolling.is_at_its_end(segment, size, last_offset)
            ):
                # A leader's compacted log has gaps. A gap between two segments would look like a loss after a
                # crash, so a segment begins where the previous one ends.
                is_far = last_offset - self.log_end_offset > MAX_RELATIVE_OFFSET
                segment = self._roll_to(base_offset if is_far else self.log_end_offset)
                rolling.arm(segment, self._config, timestamp)
            if segment.writer is None:
                self._files.open_to_append(segment)
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
        """Seal the active segment and start a new one; False if it is empty or the roll is postponed."""
        self.check_usable()
        if not self._segments.active.size or self._puts_off_roll(is_full=False):
            return False
        try:
            self._roll_to(self.log_end_offset)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot roll: {error}") from error
        return True

    def _puts_off_roll(self, *, is_full: bool) -> bool:
        """A segment exceeds its limits so that the loop need not wait for a sync of its name. See `LogFiles.roll`."""
        is_put_off = self.is_flushed_by_owner and not is_full and not self._segments.active.is_name_stable
        self._is_roll_put_off = is_put_off
        if is_put_off:
            self._unsynced.names_changed()
        return is_put_off

    def _roll_to(self, base_offset: int) -> Segment:
        is_flushed = self.log_end_offset <= self.stable_offset
        return self._files.roll(base_offset, self.producers, is_flushed=is_flushed)

    # -- flush -----------------------------------------------------------------------------------------------

    @property
    def wants_flush(self) -> bool:
        """A sealed segment waits for a flush, because it keeps a descriptor and the recovery point; or a roll waits.
        Independent of the settings."""
        return bool(self._unsynced.segments) or (self._is_roll_put_off and not self._segments.active.is_name_stable)

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self._flush_begun_offset

    def begin_flush(self) -> Flush | None:
        """Return what to sync so that everything appended so far is stable. None: nothing, or a flush is in progress.

        Raises FlushPutOff if the files cannot be opened now.
        """
        active = self._segments.active
        if self._is_flushing or self.offline is not None or self.is_being_cut or not active.is_file_there:
            return None
        if self.log_end_offset == self.stable_offset and not self._unsynced.has_names:
            return None
        try:
            files = self._unsynced.open_with(active)
        except OSError as error:
            if is_passing_at_open(error):
                raise FlushPutOff(error) from error
            self._go_offline(error)
            return None
        self._is_flushing = True
        self._flush_begun_offset = self.log_end_offset
        self.first_unflushed_ms = None
        return Flush(files, self._unsynced.take_directories(), self.end_position(), self.generation)

    def put_off_flush(self, flush: Flush) -> None:
        """The flush did not make everything stable, and nothing is lost: the next one begins at the same place."""
        self._is_flushing = False
        self._unsynced.put_back_directories()
        self._flush_begun_offset = self.stable_offset

    def end_flush(self, flush: Flush, error: OSError | None) -> None:
        self._is_flushing = False
        if error is not None:
            self._go_offline(error)
            return
        self._unsynced.flush_ended()
        if flush.generation != self.generation:
            return
        end = flush.end
        self.stable_offset = end.offset
        if flush.directories:
            for segment in self._segments.items:
                if segment.base_offset <= end.segment:
                    segment.is_name_stable = True
        if self._unsynced.segments:
            self._unsynced.flushed_to(end.segment)

    # -- trimming: both ends of the log ----------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop `offset` and everything after it, in whole batches; False if there is nothing to drop.

        Blocks: the cut is stable on return. See `begin_cut`.
        """
        self._finish_cut()
        return self._cut_here(self.begin_cut(offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next batch gets `offset`. Blocks; see `truncate_to`."""
        self._finish_cut()
        self._cut_here(self.begin_anew(offset))

    def _cut_here(self, cut: Cut | None) -> bool:
        """Raises StorageError if the cut is postponed; the next cut, at any place, finishes it first."""
        if cut is None:
            return False
        cut.run()
        if (want := cut.put_off_by) is not None:
            self._put_off = cut
            raise StorageError(f"{self.directory}: a truncation is postponed: {want}") from want
        self.end_cut(cut)
        return True

    def _finish_cut(self) -> None:
        cut, self._put_off = self._put_off, None
        self._cut_here(cut)

    def begin_cut(self, offset: int, *, may_wait: bool = True) -> Cut | None:
        """From now on the log ends at `offset`, or where its batch begins. None: there is nothing to drop.

        `Cut.run`, which blocks, changes the files. `end_cut` ends the cut: then it is stable, and dropped records
        cannot reappear behind later appends. Before, the caller has persisted a recovery point and a cleaned offset of
        at most `least_end_after_cut`. Without `may_wait`: NotCached if the place must be read from disk first.
        """
        self.check_usable()
        self._check_not_deleting()
        if offset >= self.log_end_offset:
            return None
        if offset < self.log_start_offset:
            return self.begin_anew(offset)
        segment, position, header = self.reader.locate(offset, may_wait=may_wait)
        end_offset = min(header.base_offset, offset)  # compaction may have removed everything there
        if end_offset < self.log_start_offset:
            return self.begin_anew(offset)
        self._ends_at(end_offset)
        self.epochs.truncate_from_end(end_offset)
        files = partial(
            self._files.cut,
            segment,
            position,
            end_offset,
            self.log_start_offset,
            self.producers,
            self._take_swap(),
            may_have_gaps=self.may_have_gaps,
        )
        return self._begin(Cut(end_offset, files))

    def least_end_after_cut(self, offset: int, *, may_wait: bool = True) -> int:
        """The lowest log end that recovery can find after a crash during a cut at `offset` or later.

        With gaps this is not where the cut batch begins: the batch before may end earlier, and recovery knows only the
        end of the last batch. Without `may_wait`: as in `begin_cut`, for the same lookups.
        """
        if offset >= self.log_end_offset:
            return offset
        begin = self.reader.position_of(offset, may_wait=may_wait).offset
        if not self.may_have_gaps:
            return begin
        return min(offset, self._segments.bases[max(bisect_right(self._segments.bases, offset) - 1, 0)])

    def begin_anew(self, offset: int) -> Cut:
        """Drop everything; the next batch gets `offset`. Like `begin_cut`; until the end the log is empty."""
        self.check_usable()
        self._check_not_deleting()
        self._ends_at(self.log_start_offset)
        self.persisted_recovery_point = min(self.persisted_recovery_point, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)
        self.epochs.truncate_from_end(0)
        return self._begin(Cut(offset, partial(self._files.begin_anew, offset, self._take_swap())))

    def hold(self) -> Cut:
        """Reserve the log until `end_cut` without changing it, because something else must be done first."""
        self.check_usable()
        return self._begin(Cut(self.log_end_offset, self._as_it_is))

    def _as_it_is(self, is_again: bool) -> Remainder:
        return Remainder(self.producers, self.log_end_offset, is_anew=False)

    def begins_inside(self, header: BatchHeader) -> bool:
        """Whether the log is empty and begins in the middle of this batch."""
        start = self.log_start_offset
        return start == self.log_end_offset and header.base_offset < start <= header.last_offset

    def begin_below(self, batch: Buffer, now_ms: int, max_epoch: int) -> Cut:
        """For a log that `begins_inside` this valid batch: start its files again at the batch's base offset. In the
        end it has the batch and its old start. Like `begin_anew`; the caller has persisted the log start, too. If the
        batch cannot be written, the log ends up offline, because it would end before its start.
        """
        start = self.log_start_offset
        cut = self.begin_anew(read_header(batch).base_offset)

        def append() -> None:
            try:
                self.append_replicated(batch, now_ms, max_epoch)
            except StorageError as error:
                self.log_start_offset = self.log_end_offset = self.stable_offset = start
                cause = error.__cause__ if isinstance(error.__cause__, OSError) else OSError(errno.EIO, str(error))
                self._go_offline(cause)
                raise LogOffline(self.directory, cause) from error
            self.move_log_start(start)

        cut.append_first = append
        return cut

    def _check_not_deleting(self) -> None:
        """Raises LogBusy: segments that a crash brings back would have a hole behind them."""
        if self.is_deleting:
            raise LogBusy(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"old segments of {self.directory} are being deleted")

    def _begin(self, cut: Cut) -> Cut:
        self.is_being_cut = self._disk.is_guarded = True
        self._segments.active.limit_bytes = 0
        return cut

    def end_cut(self, cut: Cut) -> None:
        """After `Cut.run`: the log is usable again. Raises the error of the run; then the log is offline."""
        self.is_being_cut = self._disk.is_guarded = False
        if self.is_closed:
            return  # closed during the cut: no longer needed
        if cut.remainder is None:
            self._cut_failed(cut)
        self.producers, end_offset, is_anew = cut.remainder
        if is_anew:
            self.log_start_offset = self.log_end_offset = self.stable_offset = end_offset
            self._flush_begun_offset = end_offset
        elif end_offset < self.log_end_offset:
            self._ends_at(end_offset)
        self.epochs.truncate_from_end(self.log_end_offset)
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        if cut.append_first is not None:
            cut.append_first()

    def _cut_failed(self, cut: Cut) -> NoReturn:
        error = cut.failure
        if isinstance(error, OSError):
            self._go_offline(error)
            raise LogOffline(self.directory, error) from error
        # For example, the remaining part is damaged: its producers and its end are unknown.
        cause = OSError(errno.EIO, str(error))
        cause.__cause__ = error
        self._go_offline(cause)
        if error is None:
            raise LogOffline(self.directory, cause)
        raise error

    def _ends_at(self, end_offset: int) -> None:
        self.generation += 1
        self.reader.forget_places()
        self.log_end_offset = end_offset
        self.stable_offset = min(self.stable_offset, end_offset)
        self.persisted_recovery_point = min(self.persisted_recovery_point, end_offset)
        self._flush_begun_offset = min(self._flush_begun_offset, end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)

    def tail_from(self, offset: int) -> LogTail:
        """The tail that a cut at `offset` would remove, to be saved. Raises CorruptBatch if it cannot be looked up."""
        self.check_not_being_cut()
        if offset <= self.log_start_offset:
            first, position, start = 0, 0, self.log_start_offset
        else:
            segment, position, header = self.reader.locate(offset)
            first, start = self._segments.items.index(segment), min(header.base_offset, offset)
        parts = [
            SegmentPart(segment.path, segment.base_offset, 0, segment.size)
            for segment in self._segments.items[first:]
            if segment.size
        ]
        if position:
            parts[0] = parts[0]._replace(base_offset=start, position=position)
        return LogTail(self._files.topic_id, start, tuple(parts))

    def open_file(self, path: str) -> File:
        """Open one of the log's files, even if the log is offline. Raises OSError."""
        return self._disk.open(path)

    def advance_log_start(self, offset: int) -> bool:
        """Delete records below `offset` and whole segments below it. False if they were deleted before. Blocks."""
        if not self.move_log_start(offset):
            return False
        self._delete_here(self.begin_trimming())
        return True

    def move_log_start(self, offset: int) -> bool:
        """Delete records below `offset`. Their segments go with the next retention, or `begin_trimming`."""
        self.check_usable()
        if offset > self.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is beyond the end {self.log_end_offset}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    def begin_trimming(self) -> Deletion | None:
        """Delete the segments below the log start. None: there are none. See `begin_deletion`."""
        self.check_usable()
        return self.begin_deletion(bisect_right(self._segments.bases, self.log_start_offset) - 1)

    def apply_retention(self, now_ms: int, high_watermark: int) -> list[int]:
        """Delete expired and excess segments; return their base offsets. Blocks. See `begin_retention`."""
        return self._delete_here(self.begin_retention(now_ms, high_watermark, may_wait=True))

    def begin_retention(self, now_ms: int, high_watermark: int, *, may_wait: bool = False) -> Deletion | None:
        """Delete expired and excess segments below the high watermark. None: there are none.

        If all have expired, a new segment is rolled first. Without `may_wait`, segments of unknown age are left
        alone.
        """
        self.check_usable()
        config = self._config
        self.producers.expire(now_ms, config.producer_id_expiration_ms)
        # forgets replicated transactions, also in a log that nobody reads
        self.producers.first_unstable_offset(high_watermark)
        count = rolling.count_expired(
            self._segments,
            config,
            now_ms,
            high_watermark,
            self.log_start_offset,
            self.log_end_offset,
            may_wait=may_wait,
        )
        if count == len(self._segments) and not self.roll(now_ms):
            count -= 1
        return self.begin_deletion(count)

    def begin_deletion(self, count: int) -> Deletion | None:
        """From now on the log begins after its oldest `count` segments. None: there is nothing to delete, or another
        deletion is in progress. `Deletion.run`, which blocks, handles the files, and `end_deletion` ends it."""
        segments = self._segments
        if self.is_flushed_by_owner:
            # Unflushed segments stay. A flush that ends before their files are deleted skips them; after a power
            # failure recovery would take the remains for the end of the log.
            count = min(count, bisect_right(segments.bases, self.stable_offset) - 1)
        if count <= 0 or self.is_deleting:
            return None
        start = segments.bases[count]
        producers = self._checkpoints.producers_before(self.producers, segments.items[:count], start)
        doomed = segments.withdraw(count)
        self.reader.forget_places()
        self._unsynced.forget([one.segment for one in doomed])  # segments that are put back are below the log start
        self.log_start_offset = max(self.log_start_offset, start)
        self.epochs.truncate_from_start(self.log_start_offset)
        self.is_deleting = self._disk.is_guarded = self._checkpoints.is_deleting = True
        return Deletion(self._disk, self.directory, doomed, self._take_swap(), producers)

    def end_deletion(self, deletion: Deletion) -> list[int]:
        """After `Deletion.run`: return the base offsets of deleted segments. Raises StorageError if some remain."""
        self.is_deleting = self._disk.is_guarded = self._checkpoints.is_deleting = False
        if self.is_closed:
            return []  # closed during the deletion: the next open handles the rest
        gone, left = deletion.doomed[: deletion.gone], deletion.doomed[deletion.gone :]
        self._segments.were_set_aside(deletion.aside)
        self._unsynced.names_changed()
        if left:
            self._segments.put_back(left)
        deletion.end_snapshots()
        if deletion.failure is not None:
            raise StorageError(f"{self.directory}: cannot delete segments: {deletion.failure}") from deletion.failure
        return [one.segment.base_offset for one in gone]

    def _delete_here(self, deletion: Deletion | None) -> list[int]:
        if deletion is None:
            return []
        deletion.run()
        return self.end_deletion(deletion)

    @property
    def has_deleted_files(self) -> bool:
        return self._segments.has_deleted_files and not self.is_being_cut

    def remove_deleted(self) -> None:
        """Unlink deleted files, due `file.delete.delay.ms` later. May block; may run in a thread."""
        self._segments.remove_deleted()

    # -- compaction ------------------------------------------------------------------------------------------

    def begin_swap(self, swap: Swap, generation: int) -> bool:
        """Before `swap` is committed. False: the log has changed since the rewrite. Raises StorageError."""
        if self.offline is not None or self.is_closed or self._swap is not None or generation != self.generation:
            return False
        if self.is_being_cut or self.is_deleting:  # then a cancelled swap may not have ended yet
            return False
        if self._segments.run_of(swap.bases) is None:
            return False
        self._files.mark_gaps()  # stable with the commit
        self._swap = swap
        return True

    def end_swap(self, swap: Swap, rewritten: RewrittenSegment) -> bool:
        """After `swap` is committed: a few renames. False: it was cancelled, or the log was closed."""
        if self._swap is not swap or self.is_closed:
            return False
        self._swap = None
        run = self._segments.run_of(swap.bases)
        assert run is not None, "code that removes segments cancels the swap"
        self._unsynced.forget(self._segments.items[run[0] : run[1]])
        self.reader.forget_places()
        try:
            segment = self._segments.replace(*run, rewritten.size, rewritten.aborted)
        except OSError as error:
            self._go_offline(error)  # recovery completes it after a restart
            raise LogOffline(self.directory, error) from error
        segment.max_timestamp = rewritten.max_timestamp
        segment.max_timestamp_offset = rewritten.max_timestamp_offset
        self._unsynced.names_changed()
        return True

    def abandon_swap(self, swap: Swap) -> None:
        """The commit failed. Blocks briefly; raises OSError."""
        if self._swap is swap:
            self._cancel_swap()

    def _cancel_swap(self) -> None:
        swap = self._take_swap()
        if swap is not None:
            swap.cancel()

    def _take_swap(self) -> Swap | None:
        swap, self._swap = self._swap, None
        return swap

    # -- aborted transactions --------------------------------------------------------------------------------

    def aborted_between(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """The aborted transactions among the records from `fetch_offset` to `upper_bound`, a last stable offset. Never
        waits for the disk: raises NotCached instead; then use `aborted_lookup`."""
        self.check_readable()
        found: list[AbortedTransaction] = []
        for segment in self._segments.with_aborted(fetch_offset):
            assert segment.transaction_index is not None
            try:
                part = segment.transaction_index.overlapping(fetch_offset, upper_bound, may_wait=False)
            except (CorruptBatch, FileNotFoundError):
                raise NotCached(segment.path) from None  # a worker handles it
            found += part.entries
            if part.is_complete:
                break
        return found

    @property
    def has_aborted(self) -> bool:
        """Whether the log has any aborted transaction."""
        return bool(self._segments.with_aborted(self._segments.bases[0]))

    def aborted_lookup(self, fetch_offset: int, upper_bound: int) -> AbortedLookup:
        """After `aborted_between` raised NotCached: a lookup for a worker to run. Then `end_aborted_lookup`."""
        self.check_readable()
        segments = self._segments.with_aborted(fetch_offset)
        indexes = [(one, one.transaction_index.frozen()) for one in segments if one.transaction_index is not None]
        recount = partial(
            find_aborted_in,
            self._segments.copy(),
            self.snapshots.copy_of_files(),
            log_end_offset=self.log_end_offset,
        )
        return AbortedLookup(
            fetch_offset,
            upper_bound,
            indexes,
            self.generation,
            self._segments.layout,
            recount,
            self._disk,
            self.reader.next_tag(),
        )

    def end_aborted_lookup(self, lookup: AbortedLookup) -> bool:
        """Take over the result. False: segments were cut, deleted or swapped meanwhile, so its result or error is
        stale."""
        is_stale = lookup.generation != self.generation or lookup.layout != self._segments.layout
        if is_stale or self.offline is not None or self.is_closed:
            lookup.discard()
            return not is_stale
        if lookup.adopt():
            self._unsynced.names_changed()
        return True

    # -- checkpoint, close -----------------------------------------------------------------------------------

    def prepare_checkpoint(self, *, closing: bool = False) -> LogCheckpoint:
        """Prepare what recovery from here needs; a worker writes it and makes it stable. Then `end_checkpoint`.

        Afterwards `recovery_point` may be persisted: recovery from it finds index entries, leader epochs and a producer
        snapshot, from which at most a few MB of headers are replayed. `closing`: the snapshot is exact.
        """
        self.check_usable()
        try:
            checkpoint = self._checkpoints.prepare(
                self.producers, self.log_end_offset, self.stable_offset, closing=closing
            )
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot write a checkpoint: {error}") from error
        checkpoint.is_void = partial(self._is_other_than, self.generation)
        return checkpoint

    def _is_other_than(self, generation: int) -> bool:
        return self.is_closed or self.generation != generation

    def end_checkpoint(self, checkpoint: LogCheckpoint) -> None:
        """The checkpoint is stable. Raises StorageError if an old snapshot could not be removed."""
        try:
            self._checkpoints.end(checkpoint)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot remove a snapshot: {error}") from error

    def put_back(self, checkpoint: LogCheckpoint) -> None:
        """The checkpoint failed: the next one must make its files stable."""
        self._checkpoints.put_back(checkpoint)

    def take_snapshot(self) -> None:
        """Write the producer state before `log_end_offset`; stable after the next checkpoint."""
        self.check_usable()
        self._checkpoints.take_snapshot(self.producers, self.log_end_offset)

    def checkpoint(self) -> int:
        """Prepare a checkpoint, make it stable in place, and return the recovery point to persist. Blocks."""
        if self.is_closed:
            return self.stable_offset
        checkpoint = self.prepare_checkpoint()
        try:
            checkpoint.make_stable()
        except OSError as error:
            self.put_back(checkpoint)
            raise StorageError(f"{self.directory}: cannot write a checkpoint: {error}") from error
        self.end_checkpoint(checkpoint)
        return checkpoint.recovery_point

    def close(self, *, clean: bool) -> None:
        """Clean: make everything stable, so that the next open need not scan. Otherwise only release the files.

        A clean close syncs in place; different logs may be closed in different threads.
        """
        if self.is_closed:
            return
        if clean and self.is_being_cut:
            self.close(clean=False)
            raise StorageError(f"log {self.directory} is closed while it is being truncated")
        if clean and self.offline is None:
            self._make_stable_for_good()
        if clean:
            self.remove_deleted()  # else they go with the directory, or at the next open
        if self.is_being_cut or self.is_deleting:
            self._disk.let_go()
        self.is_closed = True
        self._segments.active.limit_bytes = 0
        self.reader.forget_places()
        self._segments.release()

    def _make_stable_for_good(self) -> None:
        if self._is_flushing:  # the flush may not end in time, so it does not count
            self._is_flushing = False
            self._unsynced.put_back_directories()
        flush = self.begin_flush()
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        checkpoint = self.prepare_checkpoint(closing=True)
        try:
            for file in flush.files if flush else ():
                file.sync()
            checkpoint.make_stable()
            self._checkpoints.end(checkpoint)
            for directory in flush.directories if flush else ():
                if directory != self.directory or not checkpoint.is_needed:  # else it was just synced
                    self._disk.sync_directory(directory)
        except OSError as error:
            self._go_offline(error)
            raise LogOffline(self.directory, error) from error
        if flush is not None:
            self.end_flush(flush, None)
