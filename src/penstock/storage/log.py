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
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NoReturn

from crc32c import crc32c

from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, LogOffline, StorageError
from penstock.ports.disk import Buffer, Disk, File
from penstock.records.batch import LENGTH_OVERHEAD, PREFIX, PREFIX_SIZE, BatchHeader, iterate_headers
from penstock.storage import slices, timestamps
from penstock.storage.durability import Flush, LogCheckpoint, Position, Recovery
from penstock.storage.files import INDEX, LOG, TIME_INDEX, file_path, write_whole
from penstock.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS
from penstock.storage.log_config import LogConfig
from penstock.storage.producer_state import ProducerStates
from penstock.storage.recovery import RecoveredLog, recover, replay_producers
from penstock.storage.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.storage.slices import LogSlice
from penstock.storage.timestamps import Decompress, TimestampOffset

__all__ = ["Flush", "Log", "LogCheckpoint", "LogSlice", "Position", "Recovery"]

_HINTS = 64
_SNAPSHOT_EVERY_BYTES = 4 << 20  # at a checkpoint; less is replayed from the headers as fast
_pack_prefix = PREFIX.pack


class Log:
    def __init__(self, recovered: RecoveredLog) -> None:
        disk, directory = recovered.disk, recovered.directory
        self._disk = disk
        self.directory = directory
        self._segments = recovered.segments
        self._bases = [segment.base_offset for segment in self._segments]
        self._open_files = recovered.open_files
        self._active = self._segments[-1]
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.log_end_offset
        self.size_bytes = sum(segment.size for segment in self._segments)
        self.offline: OSError | None = None
        self.is_closed = False
        self.epochs = recovered.epochs
        self.producers = recovered.producers
        self.snapshots = recovered.snapshots
        self.recovery = recovered.report
        self._snapshot_bytes = self.size_bytes  # what the log held at the last snapshot
        self._hints: dict[int, tuple[Segment, int]] = {}
        # durability
        self.stable_offset = recovered.stable_offset
        self.persisted_recovery_point = recovered.recovery_point  # whoever persists one may raise it
        self.first_unflushed_ms: int | None = None
        self._flush_begun_offset = self.stable_offset
        self._is_flushing = False
        self._generation = 0  # a flush begun before a truncation says nothing about what came after
        self._unsynced_segments = recovered.unsynced_segments  # sealed
        self._unsynced_directories = recovered.unsynced_directories
        self._unsynced_paths = recovered.unsynced_paths  # small files, due at the next checkpoint
        self._deleted_paths: list[str] = []
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
            )
        except OSError as error:
            raise StorageError(f"cannot open {directory}: {error}") from error
        return cls(recovered)

    def __repr__(self) -> str:
        return f"Log({self.directory}, {self.log_start_offset} to {self.log_end_offset})"

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._index_interval_bytes = config.index_interval_bytes
        self._active.limit_bytes = 0  # look closer at the next append

    @property
    def recovery_point(self) -> int:
        return self.stable_offset

    @property
    def segment_bases(self) -> list[int]:
        return list(self._bases)

    def end_position(self) -> Position:
        active = self._active
        return Position(self.log_end_offset, active.base_offset, active.size)

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, header: BatchHeader, data: Buffer, leader_epoch: int, now_ms: int) -> int:
        """Append one validated batch; its base offset. One write call; raises StorageError."""
        base_offset = self.log_end_offset
        last_offset = base_offset + header[6]
        timestamp = header[8]
        size = len(data)
        segment = self._active
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
            if self._is_index_full(segment):
                segment.limit_bytes = 0
        segment.bytes_since_index_entry += size
        segment.size = position + size
        self.log_end_offset = last_offset + 1
        self.size_bytes += size
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if header[9] >= 0:
            self.producers.update(header, base_offset, data)
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms
        return base_offset

    def append_replicated(self, data: Buffer, now_ms: int) -> None:
        """Append batches that carry their offsets and epochs already, as fetched from a leader."""
        view = memoryview(data)
        headers = list(iterate_headers(data, self.directory))
        if not headers:
            return
        expected = self.log_end_offset
        for _, header in headers:
            if header.base_offset < expected or header.last_offset_delta < 0:
                raise StorageError(f"{self.directory}: offset {header.base_offset} after {expected}")
            expected = header.next_offset
        first = headers[0][1]
        segment = self._active
        if segment.size + len(view) > segment.limit_bytes or (
            max(header.max_timestamp for _, header in headers) > segment.roll_after_timestamp
            or expected - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            timestamp = first.max_timestamp if first.max_timestamp >= 0 else now_ms
            segment = self._make_room(len(view), first.base_offset, expected - 1, timestamp)
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
        if self._is_index_full(segment):
            segment.limit_bytes = 0
        self.log_end_offset = expected
        self.size_bytes += len(view)
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms

    def _make_room(self, size: int, base_offset: int, last_offset: int, timestamp: int) -> Segment:
        """The slow way to the segment for the next batch: the first append, a new setting, a roll."""
        self._check_usable()
        segment = self._active
        try:
            if segment.size:
                if segment.limit_bytes == 0:
                    self._arm(segment, timestamp)
                if (
                    segment.size + size > self._config.segment_bytes
                    or timestamp > segment.roll_after_timestamp
                    or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
                    or self._is_index_full(segment)
                ):
                    segment = self._roll(base_offset)
            if not segment.size:
                segment.roll_after_timestamp = timestamp + self._roll_ms(segment)
                segment.limit_bytes = max(self._config.segment_bytes, 1)
            if segment.writer is None:
                if not segment.is_file_there:
                    segment.create_file()
                    self._names_changed()
                segment.writer = segment.file()
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot prepare a segment: {error}") from error
        return segment

    def _arm(self, segment: Segment, timestamp: int) -> None:
        """Set what `append` compares with, for a segment that has batches already."""
        segment.limit_bytes = max(self._config.segment_bytes, 1)
        try:
            first = next(segment.walk(0, segment.size))[1].max_timestamp
        except CorruptBatch:
            first = -1  # found and reported when it is read
        segment.roll_after_timestamp = (first if first >= 0 else timestamp) + self._roll_ms(segment)

    def _roll_ms(self, segment: Segment) -> int:
        """`segment.ms` less a jitter that is the same whenever it is asked for."""
        config = self._config
        jitter = min(config.segment_jitter_ms, config.segment_ms)
        return config.segment_ms - (crc32c(segment.path.encode()) % jitter if jitter > 0 else 0)

    def _is_index_full(self, segment: Segment) -> bool:
        size = self._config.segment_index_bytes
        return len(segment.index) >= size // 8 or len(segment.time_index) >= size // 12 - 1

    def _undo_write(self, segment: Segment, error: OSError) -> NoReturn:
        assert segment.writer is not None
        try:
            segment.writer.truncate(segment.size)
        except OSError as worse:
            self._go_offline(worse)
        raise StorageError(f"cannot append to {segment.path}: {error}") from error

    # -- segments --------------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> bool:
        """Seal the active segment and start a new one; False when it is empty."""
        self._check_usable()
        if not self._active.size:
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
        sealed = self._active
        if not sealed.is_name_stable:
            self._sync_names()
        sealed.seal()
        snapshot = self._take_snapshot(base_offset)
        segment = Segment(self._disk, self.directory, base_offset, self._open_files, is_file_there=False)
        segment.writer = segment.create_file()
        self._names_changed()
        self._unsynced_paths += [sealed.index.path, sealed.time_index.path, *snapshot]
        if self.log_end_offset > self.stable_offset:
            self._unsynced_segments.append(sealed)
        else:
            sealed.release()
        sealed.writer = None
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._active = segment
        return segment

    def _take_snapshot(self, offset: int) -> list[str]:
        """At a roll always, once there ever were producers: so that recovery replays one segment at most."""
        if not len(self.producers) and not self.snapshots.offsets:
            return []
        self._snapshot_bytes = self.size_bytes
        return [self.snapshots.take(self.producers, offset)]

    def take_snapshot(self) -> None:
        """Write the producer state before `log_end_offset`; stable after the next checkpoint."""
        self._check_usable()
        self._unsynced_paths += self._take_snapshot(self.log_end_offset)
        self.snapshots.drop_strays(self._bases)

    def _names_changed(self) -> None:
        """Or gone: the directory is to be synced."""
        if self.directory not in self._unsynced_directories:
            self._unsynced_directories.append(self.directory)

    def _sync_names(self) -> None:
        """Blocks. Before a file is deleted, the ones that take its place must be there to stay."""
        for directory in self._unsynced_directories:
            self._disk.sync_directory(directory)
        self._unsynced_directories = []
        for segment in self._segments:
            segment.is_name_stable = True

    def _drop_segments(self, first: int, last: int) -> list[int]:
        """Take segments [first:last] out and set their files aside; their base offsets."""
        doomed = self._segments[first:last]
        del self._segments[first:last], self._bases[first:last]
        self._hints.clear()
        for segment in doomed:
            self.size_bytes -= segment.size
            segment.size = 0  # no hint leads here any more
            if segment in self._unsynced_segments:
                self._unsynced_segments.remove(segment)
            segment.release()
            for suffix in (LOG, INDEX, TIME_INDEX):
                path = file_path(self.directory, segment.base_offset, suffix)
                if path in self._unsynced_paths:
                    self._unsynced_paths.remove(path)
                if self._disk.exists(path):
                    self._disk.rename(path, path + ".deleted")
                    self._deleted_paths.append(path + ".deleted")
        return [segment.base_offset for segment in doomed]

    def remove_deleted(self) -> None:
        """Unlink what was set aside, due `file.delete.delay.ms` after. May block; may run in a thread."""
        paths, self._deleted_paths = self._deleted_paths, []
        for path in paths:
            if self._disk.exists(path):
                self._disk.remove(path)

    @property
    def has_deleted_files(self) -> bool:
        return bool(self._deleted_paths)

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
        try:
            segment, position, header = self._locate(offset)
            end_offset = header.base_offset
            self._forget_flush()
            self._drop_segments(self._segments.index(segment) + 1, len(self._segments))
            self._cut_active(segment, position, end_offset)
            self.log_end_offset = end_offset
            self.stable_offset = min(self.stable_offset, end_offset)
            self.persisted_recovery_point = min(self.persisted_recovery_point, end_offset)
            self._flush_begun_offset = min(self._flush_begun_offset, end_offset)
            self.epochs.truncate_from_end(end_offset)
            self.snapshots.drop_after(end_offset)
            self._names_changed()
            self._sync_names()
        except OSError as error:
            self._go_offline(error)
            raise LogOffline(self.directory, error) from error
        self._reload_producers()
        return True

    def _cut_active(self, segment: Segment, position: int, end_offset: int) -> None:
        self._active = segment
        if segment in self._unsynced_segments:
            self._unsynced_segments.remove(segment)
        file = segment.file()
        file.truncate(position)
        file.sync()
        self.size_bytes -= segment.size - position
        segment.size = position
        segment.trusted_from = min(segment.trusted_from, position)
        segment.verified_to = min(segment.verified_to, position)
        segment.verified_from = min(segment.verified_from, position)
        segment.index.truncate(0, end_offset - segment.base_offset)
        segment.time_index.truncate(1, end_offset - segment.base_offset)
        self._unsynced_paths += [segment.index.path, segment.time_index.path]
        segment.load_tail(position)
        segment.limit_bytes = 0

    def _reload_producers(self) -> None:
        if len(self.producers) or self.snapshots.offsets:
            self.producers = replay_producers(self._segments, self.snapshots, self._bases[0], self.log_end_offset)
            self._snapshot_bytes = 0

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next batch gets `offset`. Blocks; see `truncate_to`."""
        self._check_usable()
        try:
            self._forget_flush()
            self._drop_segments(0, len(self._segments))
            self.snapshots.drop_all()
            segment = Segment(self._disk, self.directory, offset, self._open_files, is_file_there=False)
            segment.create_file()
            self._names_changed()
            self._segments.append(segment)
            self._bases.append(offset)
            self._active = segment
            self._sync_names()
        except OSError as error:
            self._go_offline(error)
            raise LogOffline(self.directory, error) from error
        self.log_start_offset = self.log_end_offset = self.stable_offset = self._flush_begun_offset = offset
        self.persisted_recovery_point = min(self.persisted_recovery_point, offset)
        self.epochs.truncate_from_end(0)
        self.producers = ProducerStates()

    def _forget_flush(self) -> None:
        self._generation += 1
        self._hints.clear()

    def advance_log_start(self, offset: int) -> bool:
        """Records below `offset` are deleted: whole segments below it go. False when they were gone before."""
        self._check_usable()
        if offset > self.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is beyond the end {self.log_end_offset}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self._delete_oldest(bisect_right(self._bases, offset) - 1)
        return True

    def apply_retention(self, now_ms: int, high_watermark: int) -> list[int]:
        """Delete the segments that are too old or too many, below the high watermark; their base offsets.

        May block for a moment: a segment is deleted only when the one after it is there to stay.
        """
        self._check_usable()
        config = self._config
        self.producers.expire(now_ms, config.producer_id_expiration_ms)
        if not config.delete:
            return self._delete_oldest(max(bisect_right(self._bases, self.log_start_offset) - 1, 0))
        excess = self.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
        count = 0
        for segment in self._segments:
            end = self._end_of(segment)
            if end > high_watermark or not segment.size:
                break
            segment.load_max_timestamp()
            is_old = 0 <= config.retention_ms < now_ms - segment.max_timestamp and segment.max_timestamp >= 0
            excess -= segment.size
            if not (is_old or excess >= 0 or (end <= self.log_start_offset and segment is not self._active)):
                break
            count += 1
        if count == len(self._segments):
            self.roll(now_ms)
        return self._delete_oldest(count)

    def _delete_oldest(self, count: int) -> list[int]:
        if count <= 0:
            return []
        try:
            self._secure_producers(self._bases[count])
            if not self._segments[count].is_name_stable:
                self._sync_names()
            deleted = []
            if self._bases[count] > self.persisted_recovery_point:
                # Recovery would scan these segments, and take a hole among them, or one that comes back without
                # its content, for the end of the log: so they go one by one, oldest first, and the last one for
                # good with the next flush.
                self._names_changed()
                while count > 1:
                    deleted += self._drop_segments(0, 1)
                    self._disk.sync_directory(self.directory)
                    count -= 1
            deleted += self._drop_segments(0, count)
            self.snapshots.drop_before(self._bases[0])
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot delete segments: {error}") from error
        self.log_start_offset = max(self.log_start_offset, self._bases[0])
        self.epochs.truncate_from_start(self.log_start_offset)
        return deleted

    def _secure_producers(self, offset: int) -> None:
        """Before the batches below `offset` go, a stable snapshot knows what they said of producers.

        Blocks only when no checkpoint has made it stable yet.
        """
        snapshots = self.snapshots
        if not len(self.producers) or snapshots.path(offset) in snapshots.stable_paths:
            return
        newest = snapshots.load_newest(offset)
        if newest is None or newest[0] != offset:
            snapshots.take(replay_producers(self._segments, snapshots, self._bases[0], offset), offset)
        snapshots.make_stable(offset)

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
            next_offset = self._end_of(segment)
        else:
            limit = up_to.position if segment.base_offset == up_to.segment else 0
            next_offset = up_to.offset
        if limit - position > max_bytes:
            limit, next_offset = segment.boundary(position, position + max_bytes)
        if limit <= position:
            return None
        if segment.is_trusted(position, limit):
            self._remember(next_offset, segment, limit)
        return LogSlice(segment, segment.file(), position, limit - position, offset, next_offset, self._generation)

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

    def _locate(self, offset: int) -> tuple[Segment, int, BatchHeader]:
        if self.offline is not None:
            raise LogOffline(self.directory, self.offline)
        at = max(bisect_right(self._bases, offset) - 1, 0)
        segment = self._segments[at]
        may_have_gaps = self._config.compact
        found = segment.find(offset, may_have_gaps=may_have_gaps)
        while found is None:
            if not may_have_gaps or segment is self._active:
                segment.report_missing(offset)
            at += 1  # compacted away at the end of a segment
            segment = self._segments[at]
            found = segment.find(offset, may_have_gaps=may_have_gaps)
        return segment, *found

    def _end_of(self, segment: Segment) -> int:
        if segment is self._active:
            return self.log_end_offset
        return self._bases[bisect_right(self._bases, segment.base_offset)]

    def slice_is_trusted(self, piece: LogSlice) -> bool:
        """Whether these bytes were written or checked by this process."""
        return piece.segment.is_trusted(piece.position, piece.position + piece.size)

    def verify_slice(self, piece: LogSlice) -> LogSlice:
        """The longest sound prefix, or CorruptBatch when there is none. Blocks; may run in a thread."""
        return slices.verify(piece, may_have_gaps=self._config.compact)

    def mark_trusted(self, piece: LogSlice) -> None:
        if piece.generation != self._generation:
            return  # cut off while it was being verified
        end = piece.position + piece.size
        piece.segment.mark_trusted(piece.position, end)
        self._remember(piece.next_offset, piece.segment, end)

    def _remember(self, next_offset: int, segment: Segment, position: int) -> None:
        """A sequential reader comes back for this offset. Only what was checked: a lying header must not lead on."""
        hints = self._hints
        hints[next_offset] = (segment, position)
        if len(hints) > _HINTS:
            del hints[next(iter(hints))]

    def offset_for_timestamp(self, timestamp: int, decompress: Decompress) -> TimestampOffset | None:
        """The first record with at least this timestamp."""
        self._check_usable()
        return timestamps.first_at_or_after(self._segments, timestamp, self.log_start_offset, decompress)

    def max_timestamp(self, decompress: Decompress) -> TimestampOffset | None:
        """The record with the largest timestamp, the first of them."""
        self._check_usable()
        return timestamps.largest(self._segments, self.log_start_offset, decompress)

    # -- flush -----------------------------------------------------------------------------------------------

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self._flush_begun_offset

    def begin_flush(self) -> Flush | None:
        """What to sync so that everything appended up to now is stable. None: nothing, or one is under way."""
        active = self._active
        if self._is_flushing or self.offline is not None or not active.is_file_there:
            return None
        if self.log_end_offset == self.stable_offset and not self._unsynced_directories:
            return None
        files: list[File] = [segment.file() for segment in self._unsynced_segments]
        files.append(active.file())
        self._is_flushing = True
        self._flush_begun_offset = self.log_end_offset
        self.first_unflushed_ms = None
        flush = Flush(files, self._unsynced_directories, self.end_position(), self._generation)
        self._unsynced_directories = []
        return flush

    def end_flush(self, flush: Flush, error: OSError | None) -> None:
        self._is_flushing = False
        if error is not None:
            self._go_offline(error)
            return
        if flush.generation != self._generation:
            return
        end = flush.end
        self.stable_offset = end.offset
        if flush.directories:
            for segment in self._segments:
                if segment.base_offset <= end.segment:
                    segment.is_name_stable = True
        if self._unsynced_segments:
            for segment in self._unsynced_segments:
                if segment.base_offset < end.segment:
                    segment.release()
            self._unsynced_segments = [s for s in self._unsynced_segments if s.base_offset >= end.segment]

    def _go_offline(self, error: OSError) -> None:
        self.offline = error
        self._active.limit_bytes = 0

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
        try:
            active = self._active
            if closing and len(active.index):
                active.add_time_entry()
            if len(active.index):
                self._unsynced_paths += [i.path for i in (active.index, active.time_index) if i.write()]
            if self.epochs.is_dirty:
                path = f"{self.directory}/{LEADER_EPOCHS}"
                write_whole(self._disk, path + ".tmp", self.epochs.encode(), sync=False)
                self._unsynced_paths.append(path + ".tmp")
                renames.append((path + ".tmp", path))
                self.epochs.is_dirty = False
            if self._is_snapshot_due(closing):
                self.take_snapshot()
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot write a checkpoint: {error}") from error
        paths, self._unsynced_paths = self._unsynced_paths, []
        return LogCheckpoint(
            self._disk, self.directory, self.stable_offset, paths, renames, self.snapshots.stable_paths
        )

    def _is_snapshot_due(self, closing: bool) -> bool:
        newest = self.snapshots.offsets[-1] if self.snapshots.offsets else None
        if not closing:
            return self.producers.is_dirty and abs(self.size_bytes - self._snapshot_bytes) > _SNAPSHOT_EVERY_BYTES
        if newest is None:
            return len(self.producers) > 0
        return newest != self.log_end_offset or self.producers.is_dirty

    def checkpoint(self) -> int:
        """Prepare a checkpoint, make it stable in place, and return the recovery point to persist. Blocks."""
        if not self.is_closed:
            self.prepare_checkpoint().make_stable()
        return self.stable_offset

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
        self._active.limit_bytes = 0
        self._hints.clear()
        for segment in self._segments:
            segment.release()

    def _make_stable_for_good(self) -> None:
        flush = self.begin_flush()
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
