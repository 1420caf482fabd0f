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
  before it is. Whoever truncates writes a lowered recovery point first.
- The name of a segment is stable before the next segment is created, and segments go oldest first: after a crash
  there is no hole in what lies beyond the recovery point, except where its content was lost.
- What was cut or deleted does not come back behind what is appended afterwards: see `truncate_to`.
- Compaction replaces sealed segments below the persisted recovery point, in two steps (`begin_swap`, `end_swap`);
  whoever deletes or truncates in between cancels it. See `cleaner/swap.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NoReturn

from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, LogOffline, StorageError
from penstock.ports.disk import Buffer, Disk, File
from penstock.records.batch import LENGTH_OVERHEAD, PREFIX, PREFIX_SIZE, BatchHeader, iterate_headers
from penstock.storage import rolling, slices, timestamps
from penstock.storage.checkpoints import PARTITION_METADATA, write_partition_metadata
from penstock.storage.cleaner.plan import RewrittenSegment
from penstock.storage.cleaner.swap import Swap
from penstock.storage.durability import Flush, LogCheckpoint, Position, Recovery, Unsynced
from penstock.storage.files import write_whole
from penstock.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.log_config import LogConfig
from penstock.storage.producer_state import ProducerStates
from penstock.storage.recovery import RecoveredLog, recover, replay_producers
from penstock.storage.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.storage.segments import Segments
from penstock.storage.slices import LogSlice
from penstock.storage.timestamps import Decompress, TimestampOffset

__all__ = ["Flush", "Log", "LogCheckpoint", "LogSlice", "Position", "Recovery"]

MAX_EPOCH = 0x7FFFFFFF
_HINTS = 64
_SNAPSHOT_EVERY_BYTES = 4 << 20  # at a checkpoint; less is replayed from the headers as fast
_pack_prefix = PREFIX.pack


class Log:
    def __init__(self, recovered: RecoveredLog) -> None:
        disk, directory = recovered.disk, recovered.directory
        self._disk = disk
        self.directory = directory
        self._segments = Segments(disk, directory, recovered.segments, recovered.open_files)
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.log_end_offset
        self.epochs = recovered.epochs
        self.producers = recovered.producers
        self.snapshots = recovered.snapshots
        self.recovery = recovered.report
        self.offline: OSError | None = None
        self.is_closed = False
        self._is_directory_there = recovered.is_directory_there
        self._topic_id = recovered.topic_id
        self._unsynced_metadata: list[str] = []  # partition.metadata, until the first flush
        self._hints: dict[int, tuple[Segment, int]] = {}  # offset a reader will ask for -> where it lies
        self._snapshot_bytes = self.size_bytes  # what the log held at the last snapshot
        self._checkpoints = 0
        # durability
        self.stable_offset = recovered.stable_offset
        self.persisted_recovery_point = recovered.recovery_point  # whoever persists one may raise it
        self.first_unflushed_ms: int | None = None
        self._flush_begun_offset = self.stable_offset
        self._is_flushing = False
        self._generation = 0  # a flush or slice of before a truncation says nothing about what came after
        self._unsynced = Unsynced(
            disk, directory, recovered.unsynced_segments, recovered.unsynced_directories, recovered.unsynced_paths
        )
        # compaction
        self.cleaned_offset = recovered.cleaned_offset  # everything below was compacted; 0: never
        self.is_being_cleaned = False  # retention waits, as its segments may be replaced at any moment
        self._swap: Swap | None = None
        self.config = recovered.config

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
                disk,
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
        log = cls(RecoveredLog.placeholder(disk, directory, config, recovery_point, log_start_offset))
        log._go_offline(error)
        return log

    def __repr__(self) -> str:
        return f"Log({self.directory}, {self.log_start_offset} to {self.log_end_offset})"

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

    @property
    def _may_have_gaps(self) -> bool:
        """Compaction leaves them, also when the topic is no longer compacted."""
        return self._config.compact or self.cleaned_offset > 0

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
        end_offset, epoch, newest = self.log_end_offset, self.epochs.latest, -1
        for at, header in headers:
            base_offset, _, batch_epoch, _, _, _, last_offset_delta, _, timestamp, *_ = header
            if base_offset < end_offset or last_offset_delta < 0:
                raise StorageError(f"{self.directory}: offset {base_offset} after {end_offset}")
            if not epoch <= batch_epoch <= max_epoch:
                expected = f"expected {epoch} to {max_epoch} at offset {base_offset}"
                raise CorruptBatch(self.directory, at, f"leader epoch {batch_epoch}, {expected}")
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

    def _make_directory(self) -> None:
        self._disk.make_directory(self.directory)
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
            if rolling.must_roll(segment, self._config, size, last_offset, timestamp):
                segment = self._roll(base_offset)
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
        """Seal the active segment and start a new one; False when it is empty."""
        self._check_usable()
        if not self._segments.active.size:
            return False
        try:
            self._roll(self.log_end_offset)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot roll: {error}") from error
        return True

    def _roll(self, base_offset: int) -> Segment:
        """What must be synced goes to the next flush or checkpoint. On OSError nothing has changed.

        Only a name that no flush has made stable yet is synced here: if the next segment survives a crash, so must
        this one, or its batches would be missing in the middle of the log.
        """
        sealed = self._segments.active
        if not sealed.is_name_stable:
            self._sync_names()
        sealed.seal()
        snapshot = self._take_snapshot(base_offset)
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

    def read(self, offset: int, max_bytes: int, up_to: Position | None = None) -> LogSlice | None:
        """Whole batches from the one that holds `offset`, at least one, of one segment, below `up_to`.

        None when there is nothing yet. Check `slice_is_trusted` before serving it.
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
            segment, position, _ = self._locate(offset)
        if up_to is None or segment.base_offset < up_to.segment:
            limit = segment.size
            next_offset = self._segments.end_of(segment, self.log_end_offset)
        else:
            limit = up_to.position if segment.base_offset == up_to.segment else 0
            next_offset = up_to.offset
        end_offset = next_offset
        if limit - position > max_bytes:
            limit, next_offset = segment.boundary(position, position + max_bytes)
        if limit <= position:
            return None
        if segment.is_trusted(position, limit):
            self._remember(next_offset, segment, limit)
        piece = LogSlice(segment, segment.file(), position, limit - position, offset, next_offset)
        piece.end_offset = end_offset
        piece.generation = self._generation
        return piece

    def read_below(self, offset: int, max_bytes: int, end_offset: int) -> LogSlice | None:
        """`read` up to a plain offset, which is looked up first."""
        if end_offset <= offset:
            return None
        return self.read(offset, max_bytes, self.position_of(end_offset))

    def position_of(self, offset: int) -> Position:
        """Where the batch that holds `offset` starts."""
        if offset >= self.log_end_offset:
            return self.end_position()
        segment, position, header = self._locate(max(offset, self.log_start_offset))
        return Position(header.base_offset, segment.base_offset, position)

    def timestamp_at(self, offset: int) -> int:
        """The first timestamp of the batch that holds `offset`, by its header; -1 if it has none."""
        return self._locate(offset)[2].base_timestamp

    def _locate(self, offset: int) -> tuple[Segment, int, BatchHeader]:
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        return self._segments.locate(offset, may_have_gaps=self._may_have_gaps)

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

    def offset_for_timestamp(self, timestamp: int, decompress: Decompress) -> TimestampOffset | None:
        """The first record with at least this timestamp."""
        self._check_usable()
        return timestamps.first_at_or_after(self._segments.items, timestamp, self.log_start_offset, decompress)

    def max_timestamp(self, decompress: Decompress) -> TimestampOffset | None:
        """The record with the largest timestamp, the first of them."""
        self._check_usable()
        return timestamps.largest(self._segments.items, decompress)

    # -- trimming: both ends of the log ----------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop `offset` and all after it, whole batches; False when there is nothing to drop.

        Blocks: the cut is stable on return, so that nothing cut can come back behind what is appended next. The
        caller has persisted a recovery point of at most `offset` before.
        """
        self._check_usable()
        if offset >= self.log_end_offset:
            return False
        if offset <= self.log_start_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        segment, position, header = self._locate(offset)
        end_offset = header.base_offset
        try:
            self._cancel_swap()
            self._drop_segments(self._segments.items.index(segment) + 1, len(self._segments))
            self._unsynced.forget([segment])
            file = segment.file()
            file.truncate(position)
            file.sync()
            segment.cut(position, end_offset)
            self._unsynced.paths += [segment.index.path, segment.time_index.path]
            self._unsynced.names_changed()
            self._sync_names()
            self._ends_at(end_offset)
            self.epochs.truncate_from_end(end_offset)
            if len(self.producers) or self.snapshots.offsets:
                start = self._segments.bases[0]
                self.producers = replay_producers(self._segments.items, self.snapshots, start, end_offset)
                self.snapshots.drop_useless(self.producers, end_offset)
            self._snapshot_bytes = 0
        except OSError as error:
            self._go_offline(error)
            raise LogOffline(self.directory, error) from error
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next batch gets `offset`. Blocks; see `truncate_to`."""
        self._check_usable()
        try:
            self._cancel_swap()
            if not self._is_directory_there:
                self._make_directory()
            self._drop_segments(0, len(self._segments))
            self.snapshots.drop_all()
            self._segments.add(offset)
            self._unsynced.names_changed()
            self._sync_names()
        except OSError as error:
            self._go_offline(error)
            raise LogOffline(self.directory, error) from error
        self._ends_at(offset)
        self.log_start_offset = self.stable_offset = offset
        self.epochs.truncate_from_end(0)
        self.producers = ProducerStates()

    def _ends_at(self, end_offset: int) -> None:
        self._generation += 1
        self._hints.clear()
        self.log_end_offset = end_offset
        self.stable_offset = min(self.stable_offset, end_offset)
        self.persisted_recovery_point = min(self.persisted_recovery_point, end_offset)
        self._flush_begun_offset = min(self._flush_begun_offset, end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)

    def advance_log_start(self, offset: int) -> bool:
        """Records below `offset` are deleted: whole segments below it go. False when they were gone before."""
        self._check_usable()
        if offset > self.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is beyond the end {self.log_end_offset}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self._delete_oldest(bisect_right(self._segments.bases, offset) - 1)
        return True

    def apply_retention(self, now_ms: int, high_watermark: int) -> list[int]:
        """Delete the segments that are too old or too many, below the high watermark; their base offsets.

        May block for a moment: a segment is deleted only when the one after it is there to stay. If all have
        expired, a new one is rolled first.
        """
        self._check_usable()
        config = self._config
        self.producers.expire(now_ms, config.producer_id_expiration_ms)
        count = rolling.count_expired(
            self._segments, config, now_ms, high_watermark, self.log_start_offset, self.log_end_offset
        )
        if count == len(self._segments):
            self.roll(now_ms)
        return self._delete_oldest(count)

    def _delete_oldest(self, count: int) -> list[int]:
        if count <= 0:
            return []
        segments = self._segments
        deleted: list[int] = []
        try:
            self._cancel_swap()
            self._secure_producers(segments.bases[count])
            if not segments.items[count].is_name_stable:
                self._sync_names()
            if segments.bases[count] > self.persisted_recovery_point:
                # Recovery would scan these segments, and take a hole among them, or one that comes back without
                # its content, for the end of the log: so they go one by one, oldest first, and the last one for
                # good with the next flush.
                self._unsynced.names_changed()
                while count > 1:
                    deleted += self._drop_segments(0, 1)
                    self._disk.sync_directory(self.directory)
                    count -= 1
            deleted += self._drop_segments(0, count)
            self.snapshots.drop_before(segments.bases[0])
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot delete segments: {error}") from error
        self.log_start_offset = max(self.log_start_offset, segments.bases[0])
        self.epochs.truncate_from_start(self.log_start_offset)
        return deleted

    def _drop_segments(self, first: int, last: int) -> list[int]:
        self._hints.clear()
        doomed = self._segments.set_aside(first, last)
        self._unsynced.forget(doomed)
        return [segment.base_offset for segment in doomed]

    def _secure_producers(self, offset: int) -> None:
        """Before the batches below `offset` go, a stable snapshot knows what they said of producers.

        Blocks only when no checkpoint has made it stable yet.
        """
        snapshots, segments = self.snapshots, self._segments
        if not len(self.producers) or snapshots.path(offset) in snapshots.stable_paths:
            return
        newest = snapshots.load_newest(offset)
        if newest is None or newest[0] != offset:
            snapshots.take(replay_producers(segments.items, snapshots, segments.bases[0], offset), offset)
        snapshots.make_stable(offset)

    @property
    def has_deleted_files(self) -> bool:
        return self._segments.has_deleted_files

    def remove_deleted(self) -> None:
        """Unlink what was deleted, due `file.delete.delay.ms` after. May block; may run in a thread."""
        self._segments.remove_deleted()

    # -- compaction ------------------------------------------------------------------------------------------

    def begin_swap(self, swap: Swap, generation: int) -> bool:
        """Before `swap` is committed. False: the log is no longer what it was made from."""
        if self.offline is not None or self.is_closed or self._swap is not None or generation != self._generation:
            return False
        if self._segments.run_of(swap.bases) is None:
            return False
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
        if self._swap is not None:
            swap, self._swap = self._swap, None
            swap.cancel()

    # -- flush -----------------------------------------------------------------------------------------------

    @property
    def has_unsynced_segments(self) -> bool:
        """Whether a sealed segment waits for a flush: it holds a descriptor and the recovery point back."""
        return bool(self._unsynced.segments)

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self._flush_begun_offset

    def begin_flush(self) -> Flush | None:
        """What to sync so that everything appended up to now is stable. None: nothing, or one is under way."""
        active = self._segments.active
        if self._is_flushing or self.offline is not None or not active.is_file_there:
            return None
        if self.log_end_offset == self.stable_offset and not self._unsynced.has_names:
            return None
        try:
            files: list[File] = [segment.file() for segment in self._unsynced.segments]
            files.append(active.file())
            files += [self._disk.open(path) for path in self._unsynced_metadata]
        except OSError as error:  # no descriptor left, say: then nothing can be made stable either
            self._go_offline(error)
            return None
        self._is_flushing = True
        self._flush_begun_offset = self.log_end_offset
        self.first_unflushed_ms = None
        return Flush(files, self._unsynced.take_directories(), self.end_position(), self._generation)

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

    def _go_offline(self, error: OSError) -> None:
        self.offline = error
        self._segments.active.limit_bytes = 0

    def _check_usable(self) -> None:
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        if self.is_closed:
            raise StorageError(f"log {self.directory} is closed")

    # -- checkpoint, close -----------------------------------------------------------------------------------

    def prepare_checkpoint(self, *, closing: bool = False) -> LogCheckpoint:
        """Write (unsynced) what recovery from here needs, and hand out the files to make stable.

        Afterwards `recovery_point` may be persisted: recovery from it finds the index entries, leader epochs and a
        producer snapshot from which at most a few MB of headers are replayed. `closing`: the snapshot is exact.
        """
        self._check_usable()
        renames: list[tuple[str, str]] = []
        paths = self._unsynced.paths
        try:
            active = self._segments.active
            if len(active.index):  # a short segment is walked as fast as its index is read
                if closing:
                    active.add_time_entry()
                paths += [index.path for index in (active.index, active.time_index) if index.write()]
            if self.epochs.is_dirty:
                self._checkpoints += 1
                path = f"{self.directory}/{LEADER_EPOCHS}"
                temporary = f"{path}.{self._checkpoints}.tmp"
                write_whole(self._disk, temporary, self.epochs.encode(), sync=False)
                paths.append(temporary)
                renames.append((temporary, path))
                self.epochs.is_dirty = False
            if self._is_snapshot_due(closing):
                self.take_snapshot()
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot write a checkpoint: {error}") from error
        self._unsynced.paths = []
        return LogCheckpoint(
            self._disk, self.directory, self.stable_offset, paths, renames, self.snapshots.stable_paths
        )

    def put_back(self, checkpoint: LogCheckpoint) -> None:
        """It could not be made stable: the next one has to."""
        self._unsynced.paths = [path for path in checkpoint.paths if not path.endswith(".tmp")] + self._unsynced.paths
        self.epochs.is_dirty = True

    def _is_snapshot_due(self, closing: bool) -> bool:
        """Recovery begins with the newest snapshot, or with nothing at the base of the recovery point's segment."""
        newest = self.snapshots.offsets[-1] if self.snapshots.offsets else 0
        if not len(self.producers) and not self.snapshots.offsets:
            return False
        if newest < self._segments.active.base_offset:  # the one of the roll was lost in a crash
            return True
        if closing:
            return newest != self.log_end_offset or self.producers.is_dirty
        return self.producers.is_dirty and abs(self.size_bytes - self._snapshot_bytes) > _SNAPSHOT_EVERY_BYTES

    def take_snapshot(self) -> None:
        """Write the producer state before `log_end_offset`; stable after the next checkpoint."""
        self._check_usable()
        self._unsynced.paths += self._take_snapshot(self.log_end_offset)
        self.snapshots.drop_strays(self._segments.bases)

    def _take_snapshot(self, offset: int) -> list[str]:
        """At a roll always, once there ever were producers: so that recovery replays one segment at most."""
        if not len(self.producers) and not self.snapshots.offsets:
            return []
        self._snapshot_bytes = self.size_bytes
        return [self.snapshots.take(self.producers, offset)]

    def checkpoint(self) -> int:
        """Prepare a checkpoint, make it stable in place, and return the recovery point to persist. Blocks."""
        if self.is_closed:
            return self.stable_offset
        checkpoint = self.prepare_checkpoint()
        try:
            checkpoint.make_stable()
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot write a checkpoint: {error}") from error
        return checkpoint.recovery_point

    def close(self, *, clean: bool) -> None:
        """Clean: everything stable, so that the next open need not scan. Otherwise just let go of the files.

        A clean close syncs in place; different logs may be closed in different threads.
        """
        if self.is_closed:
            return
        if clean and self.offline is None:
            self._make_stable_for_good()
        self.remove_deleted()
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
            for directory in flush.directories if flush else ():
                if directory != self.directory or not checkpoint.is_needed:  # else it was synced just now
                    self._disk.sync_directory(directory)
        except OSError as error:
            self._go_offline(error)
            raise LogOffline(self.directory, error) from error
        if flush is not None:
            self.end_flush(flush, None)
