"""The log of one partition: `<log dir>/<topic>-<partition>/`, a row of segments of which the last one grows.

Knows offsets, files and their order on disk. Knows no event loop, no clock and no chance: `now_ms` is an
argument, and what may block for long (sync, verification) is handed out as values for others to run.

Invariants
- Offsets below `log_start_offset` are gone, from `log_end_offset` on not yet there; in between batches follow
  each other without overlap.
- Everything below `stable_offset` survives a power failure. It moves only in `end_flush` and `close`.
- A failed sync puts the log offline for good: what reached the disk is unknown, so nothing is retried on top.
- A failed write leaves the log as it was.
- The recovery point written to disk never exceeds `stable_offset`, and the files of a `LogCheckpoint` are stable
  before it is. Whoever truncates writes a lowered recovery point and cleaned offset first.
- The name of a segment is stable before the next segment is created. Retention drops segments oldest first
  (`storage.deletion`), a cut drops them from the end: after a crash there is no hole beyond the recovery point, except
  where content was lost.
- What was cut or deleted does not come back behind what is appended afterwards: see `begin_cut`.
- Compaction replaces sealed segments below the persisted recovery point, in two steps (`begin_swap`, `end_swap`);
  whoever deletes or truncates in between cancels it. See `cleaner/swap.py`.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from functools import partial
from typing import NoReturn

from penstock.model.errors import ApiError, ErrorCode, LogBusy, LogOffline, StorageError
from penstock.ports.disk import Buffer, Disk, File
from penstock.records.batch import BatchHeader, read_header
from penstock.storage import rolling
from penstock.storage.cleaner.plan import RewrittenSegment
from penstock.storage.cleaner.swap import Swap
from penstock.storage.cut import Cut, Remainder
from penstock.storage.deletion import Deletion
from penstock.storage.durability import LogCheckpoint
from penstock.storage.growing_log import GrowingLog
from penstock.storage.log_config import LogConfig
from penstock.storage.log_disk import LogDisk
from penstock.storage.log_tail import LogTail, SegmentPart
from penstock.storage.producer_state import ProducerStates
from penstock.storage.recovery import RecoveredLog, recover
from penstock.storage.segment import Segment


class Log(GrowingLog):
    def __init__(self, recovered: RecoveredLog) -> None:
        super().__init__(recovered)
        assert isinstance(recovered.disk, LogDisk)
        self._log_disk = recovered.disk
        self.recovery = recovered.report
        self.snapshots = recovered.snapshots
        self.persisted_recovery_point = recovered.recovery_point  # whoever persists one may raise it
        self.was_opened = True  # False: a placeholder, which knows nothing of the files
        self.is_deleting = False  # a worker has the oldest segments: see `storage.deletion`
        self.is_being_cleaned = False  # retention waits, as its segments may be replaced at any moment
        self._swap: Swap | None = None
        self._put_off: Cut | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        recovery_point: int,
        log_start_offset: int,
        clean_shutdown: bool,
        now_ms: int,
        topic_id: bytes | None = None,
        cleaned_offset: int = 0,
    ) -> Log:
        """Open or create. Raises CorruptBatch when stable bytes that are needed to open are damaged."""
        try:
            recovered = recover(
                LogDisk(disk),
                directory,
                config,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                clean_shutdown=clean_shutdown,
                now_ms=now_ms,
                topic_id=topic_id,
                cleaned_offset=cleaned_offset,
            )
        except OSError as error:
            raise StorageError(f"cannot open {directory}: {error}") from error
        return cls(recovered)

    @classmethod
    def offline_at(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        error: OSError,
        *,
        recovery_point: int,
        log_start_offset: int,
    ) -> Log:
        """In place of a log that could not be opened: refuses everything, touches nothing, forgets no checkpoint."""
        log = cls(RecoveredLog.placeholder(LogDisk(disk), directory, config, recovery_point, log_start_offset))
        log.was_opened = False
        log._go_offline(error)
        return log

    def __repr__(self) -> str:
        return f"Log({self.directory}, {self.log_start_offset} to {self.log_end_offset})"

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

    @property
    def generation(self) -> int:
        """Changes with every truncation."""
        return self._generation

    # -- trimming: both ends of the log ----------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop `offset` and all after it, whole batches; False when there is nothing to drop.

        Blocks: the cut is stable on return. See `begin_cut`.
        """
        self._finish_cut()
        return self._cut_here(self.begin_cut(offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next batch gets `offset`. Blocks; see `truncate_to`."""
        self._finish_cut()
        self._cut_here(self.begin_anew(offset))

    def _cut_here(self, cut: Cut | None) -> bool:
        """Raises StorageError where it is put off: whoever cuts next, at this place or another, finishes it first."""
        if cut is None:
            return False
        cut.run()
        if cut.is_put_off:
            self._put_off = cut
            raise StorageError(f"{self.directory}: a cut is put off: {cut.failure}") from cut.failure
        self.end_cut(cut)
        return True

    def _finish_cut(self) -> None:
        cut, self._put_off = self._put_off, None
        self._cut_here(cut)

    def begin_cut(self, offset: int, *, may_wait: bool = True) -> Cut | None:
        """From now on the log ends at `offset`, or where its batch begins. None: there is nothing to drop.

        The files follow in `Cut.run`, which blocks, and `end_cut` ends it: then the cut is stable, and nothing cut can
        come back behind what is appended next. The caller has persisted a recovery point and a cleaned offset of at
        most `least_end_after_cut` before. Not `may_wait`: NotCached where the place has to be read first.
        """
        self._check_usable()
        self._check_not_deleting()
        if offset >= self.log_end_offset:
            return None
        if offset < self.log_start_offset:
            return self.begin_anew(offset)
        segment, position, header = self._locate(offset, may_wait=may_wait)
        end_offset = min(header.base_offset, offset)  # compaction may have left nothing there
        if end_offset < self.log_start_offset:
            return self.begin_anew(offset)
        self._ends_at(end_offset)
        self.epochs.truncate_from_end(end_offset)
        return self._begin(Cut(end_offset, partial(self._cut_files, segment, position, end_offset, self._take_swap())))

    def least_end_after_cut(self, offset: int, *, may_wait: bool = True) -> int:
        """Wherever a machine stops in a cut at `offset` or after it, recovery finds the log to end here or later.

        With gaps that is not where the batch begins which is cut: the one before it may end earlier, and recovery
        knows the end of the last batch alone. Not `may_wait`: as in `begin_cut`, with what that will look up.
        """
        if offset >= self.log_end_offset:
            return offset
        begin = self.position_of(offset, may_wait=may_wait).offset
        if not self._may_have_gaps:
            return begin
        return min(offset, self._segments.bases[max(bisect_right(self._segments.bases, offset) - 1, 0)])

    def begin_anew(self, offset: int) -> Cut:
        """Drop everything; the next batch gets `offset`. As `begin_cut`; until the end the log is empty."""
        self._check_usable()
        self._check_not_deleting()
        self._ends_at(self.log_start_offset)
        self.persisted_recovery_point = min(self.persisted_recovery_point, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)
        self.epochs.truncate_from_end(0)
        return self._begin(Cut(offset, partial(self._drop_files, offset, self._take_swap())))

    def hold(self) -> Cut:
        """Nobody uses the log until `end_cut`, and nothing of it changes: something else has to be done first."""
        self._check_usable()
        return self._begin(Cut(self.log_end_offset, self._as_it_is))

    def _as_it_is(self, is_again: bool) -> Remainder:
        return Remainder(self.producers, self.log_end_offset, is_anew=False)

    def begins_inside(self, header: BatchHeader) -> bool:
        """Whether the log is empty and begins in the middle of this batch."""
        start = self.log_start_offset
        return start == self.log_end_offset and header.base_offset < start <= header.last_offset

    def begin_below(self, batch: Buffer, now_ms: int, max_epoch: int) -> Cut:
        """Of a log that `begins_inside` this batch, a sound one: its files begin anew where the batch does, and in the
        end it has the batch, and the start it had. As `begin_anew`; the caller has persisted the log start, too.

        Where the batch cannot be written the log is offline in the end: it would end before its start.
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
        """Raises LogBusy: behind segments that a crash brings back there would be a hole."""
        if self.is_deleting:
            raise LogBusy(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"old segments of {self.directory} are being deleted")

    def _begin(self, cut: Cut) -> Cut:
        self.is_being_cut = self._log_disk.is_guarded = True
        self._segments.active.limit_bytes = 0
        return cut

    def _cut_files(
        self, segment: Segment, position: int, end_offset: int, swap: Swap | None, is_again: bool
    ) -> Remainder:
        """Of `begin_cut`. Blocks."""
        if is_again:
            self._disk.sync_directory(self.directory)  # what was dropped before
        if swap is not None:
            swap.cancel()
        segments = self._segments.items
        first = segments.index(segment) if segment in segments else len(segments)
        if segment.base_offset > end_offset:  # compaction left nothing from there on in the one before
            self._drop_from(first)
            end_offset = self._end_of_last_batch(end_offset)
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
            self._unsynced.paths += [segment.index.path, segment.time_index.path]
            end_offset = self._end_of_last_batch(end_offset)
        if end_offset < self.log_start_offset:  # what was kept was deleted before
            return self._drop_files(self.log_start_offset, None, is_again)
        self._unsynced.names_changed()
        self._sync_names()
        producers = self._checkpoints.producers_after_cut(self.producers, end_offset)
        return Remainder(producers, end_offset, is_anew=False)

    def _end_of_last_batch(self, cut: int) -> int:
        """Where the log ends after the segments behind the cut are gone."""
        if not self._may_have_gaps:
            return cut
        last = self._segments.active
        return min(last.load_tail(last.size), cut)

    def _drop_files(self, offset: int, swap: Swap | None, is_again: bool) -> Remainder:
        """Of `begin_anew`. Blocks."""
        if is_again and self._is_directory_there:
            self._disk.sync_directory(self.directory)
        if swap is not None:
            swap.cancel()
        if not self._is_directory_there:
            self._make_directory()
        self._drop_from(0)
        self.gaps.begin()
        self.snapshots.drop_all()
        self._segments.add(offset)
        self._unsynced.names_changed()
        self._sync_names()
        return Remainder(ProducerStates(), offset, is_anew=True)

    def end_cut(self, cut: Cut) -> None:
        """After `Cut.run`: the log may be used again. Raises what failed there; then the log is offline."""
        self.is_being_cut = self._log_disk.is_guarded = False
        if self.is_closed:
            return  # in the middle of it: nobody needs it any more
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
        # In what is left, say: nobody can tell who wrote it and up to where.
        cause = OSError(errno.EIO, str(error))
        cause.__cause__ = error
        self._go_offline(cause)
        if error is None:
            raise LogOffline(self.directory, cause)
        raise error

    def _ends_at(self, end_offset: int) -> None:
        self._generation += 1
        self._hints.clear()
        self.log_end_offset = end_offset
        self.stable_offset = min(self.stable_offset, end_offset)
        self.persisted_recovery_point = min(self.persisted_recovery_point, end_offset)
        self._flush_begun_offset = min(self._flush_begun_offset, end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)

    def tail_from(self, offset: int) -> LogTail:
        """What a cut at `offset` would take away, to be kept. Raises CorruptBatch where it cannot be looked up."""
        self.check_not_being_cut()
        if offset <= self.log_start_offset:
            first, position, start = 0, 0, self.log_start_offset
        else:
            segment, position, header = self._locate(offset)
            first, start = self._segments.items.index(segment), min(header.base_offset, offset)
        parts = [
            SegmentPart(segment.path, segment.base_offset, 0, segment.size)
            for segment in self._segments.items[first:]
            if segment.size
        ]
        if position:
            parts[0] = parts[0]._replace(base_offset=start, position=position)
        return LogTail(self._topic_id, start, tuple(parts))

    def open_file(self, path: str) -> File:
        """One of the log's, also of a log that is offline. Raises OSError."""
        return self._disk.open(path)

    def advance_log_start(self, offset: int) -> bool:
        """Records below `offset` are deleted: whole segments below it go. False when they were gone before. Blocks."""
        if not self.move_log_start(offset):
            return False
        self._delete_here(self.begin_trimming())
        return True

    def move_log_start(self, offset: int) -> bool:
        """Records below `offset` are gone. Their segments go with the next retention, or `begin_trimming`."""
        self._check_usable()
        if offset > self.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is beyond the end {self.log_end_offset}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    def begin_trimming(self) -> Deletion | None:
        """Of the segments below the log start. None: there are none. See `begin_deletion`."""
        self._check_usable()
        return self.begin_deletion(bisect_right(self._segments.bases, self.log_start_offset) - 1)

    def apply_retention(self, now_ms: int, high_watermark: int) -> list[int]:
        """Delete the segments that are too old or too many; their base offsets. Blocks. See `begin_retention`."""
        return self._delete_here(self.begin_retention(now_ms, high_watermark, may_wait=True))

    def begin_retention(self, now_ms: int, high_watermark: int, *, may_wait: bool = False) -> Deletion | None:
        """Of the segments that are too old or too many, below the high watermark. None: there are none.

        If all have expired, a new one is rolled first. Not `may_wait`: segments whose age nobody has looked up are left
        alone.
        """
        self._check_usable()
        config = self._config
        self.producers.expire(now_ms, config.producer_id_expiration_ms)
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
        """From now on the log begins with the segment after its oldest `count`. None: there is nothing to delete, or
        others are just being deleted. The files follow in `Deletion.run`, which blocks, and `end_deletion` ends it."""
        segments = self._segments
        if self.is_flushed_by_owner:
            # What no flush has covered stays. A flush that ends before its files are gone would leave it out, and after
            # a power failure recovery would take what is left of it for the end of the log.
            count = min(count, bisect_right(segments.bases, self.stable_offset) - 1)
        if count <= 0 or self.is_deleting:
            return None
        start = segments.bases[count]
        producers = self._checkpoints.producers_before(self.producers, segments.items[:count], start)
        doomed = segments.withdraw(count)
        self._hints.clear()
        self._unsynced.forget([one.segment for one in doomed])  # what is put back is below the log start
        self.log_start_offset = max(self.log_start_offset, start)
        self.epochs.truncate_from_start(self.log_start_offset)
        self.is_deleting = self._log_disk.is_guarded = self._checkpoints.is_deleting = True
        return Deletion(self._disk, self.directory, doomed, self._take_swap(), producers)

    def end_deletion(self, deletion: Deletion) -> list[int]:
        """After `Deletion.run`: the base offsets of the segments that are gone. Raises StorageError if some are not."""
        self.is_deleting = self._log_disk.is_guarded = self._checkpoints.is_deleting = False
        if self.is_closed:
            return []  # in the middle of it: whoever opens the log next finds what is left
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

    def _drop_from(self, first: int) -> None:
        """The last segment first, each for good before the next: what a crash leaves has no hole."""
        for number in reversed(range(first, len(self._segments))):
            self._drop_segments(number, number + 1)
            self._disk.sync_directory(self.directory)

    def _drop_segments(self, first: int, last: int) -> list[int]:
        self._hints.clear()
        doomed = self._segments.items[first:last]
        try:
            self._segments.set_aside(first, last)
        finally:  # those that could not be renamed are still there
            left = set(self._segments.items[first:])
            self._unsynced.forget([segment for segment in doomed if segment not in left])
        return [segment.base_offset for segment in doomed]

    @property
    def has_deleted_files(self) -> bool:
        return self._segments.has_deleted_files and not self.is_being_cut

    def remove_deleted(self) -> None:
        """Unlink what was deleted, due `file.delete.delay.ms` after. May block; may run in a thread."""
        self._segments.remove_deleted()

    # -- compaction ------------------------------------------------------------------------------------------

    def begin_swap(self, swap: Swap, generation: int) -> bool:
        """Before `swap` is committed. False: the log is no longer what it was made from. Raises StorageError."""
        if self.offline is not None or self.is_closed or self._swap is not None or generation != self._generation:
            return False
        if self.is_being_cut or self.is_deleting:  # then one that was cancelled may still be on its way out
            return False
        if self._segments.run_of(swap.bases) is None:
            return False
        self._mark_gaps()  # stable with the commit
        self._swap = swap
        return True

    def end_swap(self, swap: Swap, rewritten: RewrittenSegment) -> bool:
        """Once `swap` is committed: a few renames. False: it was cancelled meanwhile, or the log was closed."""
        if self._swap is not swap or self.is_closed:
            return False
        self._swap = None
        run = self._segments.run_of(swap.bases)
        assert run is not None, "whoever removes segments cancels the swap"
        self._unsynced.forget(self._segments.items[run[0] : run[1]])
        self._hints.clear()
        try:
            segment = self._segments.replace(*run, rewritten.size)
        except OSError as error:
            self._go_offline(error)  # after a restart recovery completes it
            raise LogOffline(self.directory, error) from error
        segment.max_timestamp = rewritten.max_timestamp
        segment.max_timestamp_offset = rewritten.max_timestamp_offset
        self._unsynced.names_changed()
        return True

    def abandon_swap(self, swap: Swap) -> None:
        """The commit failed. Blocks for a moment; raises OSError."""
        if self._swap is swap:
            self._cancel_swap()

    def _cancel_swap(self) -> None:
        swap = self._take_swap()
        if swap is not None:
            swap.cancel()

    def _take_swap(self) -> Swap | None:
        swap, self._swap = self._swap, None
        return swap

    # -- checkpoint, close -----------------------------------------------------------------------------------

    def prepare_checkpoint(self, *, closing: bool = False) -> LogCheckpoint:
        """Gather what recovery from here needs; a worker writes it and makes it stable. Then `end_checkpoint`.

        Afterwards `recovery_point` may be persisted: recovery from it finds the index entries, leader epochs and a
        producer snapshot from which at most a few MB of headers are replayed. `closing`: the snapshot is exact.
        """
        self._check_usable()
        try:
            checkpoint = self._checkpoints.prepare(
                self.producers, self.log_end_offset, self.stable_offset, closing=closing
            )
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot write a checkpoint: {error}") from error
        checkpoint.is_void = partial(self._is_other_than, self._generation)
        return checkpoint

    def _is_other_than(self, generation: int) -> bool:
        return self.is_closed or self._generation != generation

    def end_checkpoint(self, checkpoint: LogCheckpoint) -> None:
        """It is stable. Raises StorageError where a snapshot of before could not be removed."""
        try:
            self._checkpoints.end(checkpoint)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot remove a snapshot: {error}") from error

    def put_back(self, checkpoint: LogCheckpoint) -> None:
        """It could not be made stable: the next one has to."""
        self._checkpoints.put_back(checkpoint)

    def take_snapshot(self) -> None:
        """Write the producer state before `log_end_offset`; stable after the next checkpoint."""
        self._check_usable()
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
        """Clean: everything stable, so that the next open need not scan. Otherwise just let go of the files.

        A clean close syncs in place; different logs may be closed in different threads.
        """
        if self.is_closed:
            return
        if clean and self.is_being_cut:
            self.close(clean=False)
            raise StorageError(f"log {self.directory} is closed while it is being cut")
        if clean and self.offline is None:
            self._make_stable_for_good()
        if clean:
            self.remove_deleted()  # else with the directory, or when the log is opened next
        if self.is_being_cut or self.is_deleting:
            self._log_disk.let_go()
        self.is_closed = True
        self._segments.active.limit_bytes = 0
        self._hints.clear()
        self._segments.release()

    def _make_stable_for_good(self) -> None:
        if self._is_flushing:  # it may not end in time, so it does not count
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
                if directory != self.directory or not checkpoint.is_needed:  # else it was synced just now
                    self._disk.sync_directory(directory)
        except OSError as error:
            self._go_offline(error)
            raise LogOffline(self.directory, error) from error
        if flush is not None:
            self.end_flush(flush, None)
