"""Opening a log after a clean close or a crash.

Clean: sizes are trusted, nothing is scanned; only the headers after the last index entry are read, to find the end of
the log. Crash: every batch from the recovery point on is checked; the log ends at the first bad one, and what follows
was never stable. Below the recovery point everything is stable, so damage there is not a torn tail: it is never cut but
raised as CorruptBatch, at open if it matters there, else when it is read.

Cuts are permanent: truncations and removals are synced before anything is appended on top. Scanned bytes are written
once more, even if flushing is left to the operating system: a sync may have failed in the previous run, and the next
one would report success. See `files.write_again`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress

from penstock.model.errors import CorruptBatch, ForeignDirectory, RecordsMissing, StorageError
from penstock.ports.disk import Disk
from penstock.records.batch import CONTROL_BIT, BatchHeader
from penstock.storage import replay
from penstock.storage.checkpoints import (
    PARTITION_METADATA,
    read_partition_metadata,
    write_partition_metadata,
    write_partition_metadata_again,
)
from penstock.storage.cleaner.swap import settle_swaps
from penstock.storage.durability import Recovery
from penstock.storage.files import (
    CLEANED,
    INDEX,
    LEFTOVERS,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    file_path,
    parent_of,
    read_whole,
    write_again,
    write_atomic,
)
from penstock.storage.gaps import OffsetGaps
from penstock.storage.last_run import LastRun
from penstock.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.log_config import LogConfig
from penstock.storage.producers.producer_state import ProducerStates
from penstock.storage.producers.snapshots import Snapshots
from penstock.storage.producers.transaction_index import TransactionIndex, encode
from penstock.storage.producers.transactions import AbortedTransaction
from penstock.storage.replay import find_aborted, headers_from, replay_producers
from penstock.storage.segments.scan import checked_batches
from penstock.storage.segments.segment import UNKNOWN_TIMESTAMP, OpenFiles, Segment

_SMALL_BYTES = 64 << 10  # a segment up to here needs no index


class RecoveredLog:
    """The parts of a log while it is opened; afterwards `Log` takes them over."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig, last_run: LastRun, now_ms: int) -> None:
        self.disk = disk
        self.directory = directory
        self.config = config
        self.recovery_point = last_run.recovery_point
        self.now_ms = now_ms
        self.cleaned_offset = last_run.cleaned_offset
        self.report = Recovery()
        self.segments: list[Segment] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.stable_offset = 0
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self.snapshots = Snapshots(disk, directory, [])
        self.is_directory_there = True
        self.topic_id: bytes | None = None
        self.unsynced_directories: list[str] = []
        self.unsynced_segments: list[Segment] = []
        self.unsynced_paths: list[str] = []
        self.unsynced_metadata: list[str] = []
        self.open_files = OpenFiles()
        self.gaps = OffsetGaps(disk, directory)
        self._names: set[str] = set()
        self._scanned_from = -1  # the first offset that was scanned; -1: nothing was
        self._has_markers = False  # in what was scanned

    @classmethod
    def placeholder(cls, disk: Disk, directory: str, config: LogConfig, last_run: LastRun) -> RecoveredLog:
        """An empty placeholder that must not be written to, in place of a damaged log."""
        log = cls(disk, directory, config, last_run, 0)
        start = last_run.log_start_offset
        log.segments = [Segment(disk, directory, start, log.open_files, is_file_there=False)]
        log.log_start_offset = log.log_end_offset = log.stable_offset = start
        return log

    # -- the directory ---------------------------------------------------------------------------------------

    def load_directory(self, topic_id: bytes | None, clean_shutdown: bool) -> None:
        """Sort the files by kind; drop leftovers and files without a segment."""
        try:
            names = self.disk.list_directory(self.directory)
        except FileNotFoundError:
            # The first append creates it: a topic with a thousand partitions costs nothing until it is used.
            self.is_directory_there = False
            self.topic_id = topic_id
            return
        bases: list[int] = []
        for name in self._settle_swaps(names):
            stem, dot, suffix = name.partition(".")
            if name.endswith(LEFTOVERS):
                self.disk.remove(f"{self.directory}/{name}")
            elif len(stem) != 20 or not stem.isdigit():
                self._names.add(name)
            elif dot + suffix == LOG:
                bases.append(int(stem))
                self._names.add(name)
            elif dot + suffix == SNAPSHOT:
                self.snapshots.offsets.append(int(stem))
            else:
                self._names.add(name)
        self.gaps.read(self._names)
        for base in bases:
            segment = Segment(self.disk, self.directory, base, self.open_files, is_file_there=True)
            segment.size = segment.trusted_from = segment.file().size()
            self.segments.append(segment)
        self._drop_orphans(set(bases))
        if topic_id is not None:
            self._check_topic_id(topic_id, clean_shutdown)

    def _settle_swaps(self, names: list[str]) -> list[str]:
        """Settle compactions that a crash interrupted; return the file names afterwards."""
        if not any(name.endswith((CLEANED, SWAP)) for name in names):
            return names
        for base in settle_swaps(self.disk, self.directory, names):
            self.report.messages.append(f"completed the compaction of {file_path(self.directory, base, LOG)}")
        return self.disk.list_directory(self.directory)

    def _drop_orphans(self, bases: set[int]) -> None:
        for name in sorted(self._names):
            if name.endswith((INDEX, TIME_INDEX, TRANSACTION_INDEX)) and int(name.partition(".")[0]) not in bases:
                self.disk.remove(f"{self.directory}/{name}")
        for segment in self.segments:  # an index known to be missing need not be looked for
            for index, suffix in ((segment.index, INDEX), (segment.time_index, TIME_INDEX)):
                if f"{segment.base_offset:020d}{suffix}" not in self._names:
                    index.assume_empty()
        if any(name.endswith(TRANSACTION_INDEX) for name in self._names):
            self._find_transaction_indexes()

    def _find_transaction_indexes(self) -> None:
        for segment in self.segments:
            path = segment.transaction_index_path
            if path.rpartition("/")[2] in self._names:
                index = TransactionIndex(self.disk, path, stored=-1)
                if index.file_size():
                    segment.transaction_index = index
                else:  # compaction left nothing in it
                    self.disk.remove(path)

    def _check_topic_id(self, topic_id: bytes, clean_shutdown: bool) -> None:
        stored = read_partition_metadata(self.disk, self.directory) if PARTITION_METADATA in self._names else None
        if stored is not None and stored != topic_id:
            raise ForeignDirectory(f"{self.directory} belongs to topic id {stored.hex()}, not {topic_id.hex()}")
        has_batches = any(segment.size for segment in self.segments)
        was_flushed = clean_shutdown or (has_batches and self.recovery_point > self.segments[0].base_offset)
        if stored is None and has_batches and was_flushed:
            raise StorageError(
                f"{self.directory}/{PARTITION_METADATA} is missing or damaged. Restore it from a copy, or move the "
                f"directory away; the replica then copies everything from its leader, if another broker leads"
            )
        if stored is None and has_batches:
            # The id becomes stable with the first flush, so nothing here was durable, and it may be an old topic's.
            raise ForeignDirectory(f"{self.directory} has no topic id and was never flushed")
        if stored is None:
            write_partition_metadata(self.disk, self.directory, topic_id, sync=False)
        elif was_flushed:
            return
        else:
            write_partition_metadata_again(self.disk, self.directory, topic_id)
        self.unsynced_metadata = [f"{self.directory}/{PARTITION_METADATA}"]

    # -- segments --------------------------------------------------------------------------------------------

    def load_clean(self) -> None:
        for segment in self.segments[:-1]:
            self._need_indexes(segment)
        if self.segments:
            active = self.segments[-1]
            self._need_indexes(active)
            try:
                self.log_end_offset = active.load_tail(active.size)
            except CorruptBatch:  # the index may be wrong: retry without it
                self._rebuild_indexes(active, "damaged")
                self.log_end_offset = active.load_tail(active.size)
        self.stable_offset = self.log_end_offset

    def load_after_crash(self) -> None:
        """Scan from the recovery point, and cut at the first batch that is invalid or does not follow."""
        if self.is_directory_there:  # its content may never have been synced
            self.unsynced_directories = [self.directory, parent_of(self.directory)]
        if not self.segments:
            return
        self._drop_replaced()
        bases = [segment.base_offset for segment in self.segments]
        first = max(bisect_right(bases, self.recovery_point) - 1, 0)
        for segment, following in zip(self.segments[:first], bases[1:], strict=False):
            self._need_indexes(segment, is_suspect=True)
            self._look_for_hole(segment, following)
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            segment.is_name_stable = False
            is_sound = self._scan(segment)
            is_last = number + 1 == len(self.segments)
            if not is_last and not (is_sound and self._follows(self.segments[number + 1])):
                self._remove_segments_from(number + 1)
                break
            if not is_last:
                segment.seal()
                self.unsynced_paths += [segment.index.path, segment.time_index.path]
                self.unsynced_segments.append(segment)
        if self.log_end_offset < self.recovery_point:
            self.report.messages.append(
                f"the log ends at offset {self.log_end_offset}, before its recovery point {self.recovery_point}"
            )
        self.stable_offset = min(self.recovery_point, self.log_end_offset)

    def _follows(self, segment: Segment) -> bool:
        """Whether the log continues with this segment. A compacted log may have a gap there."""
        base_offset = segment.base_offset
        if self.log_end_offset < base_offset <= self.cleaned_offset:
            self.gaps.found()
            return True
        return base_offset == self.log_end_offset

    @property
    def _was_compacted(self) -> bool:
        """Whether the log was compacted or copied from a compacted one; True if unknown from its mark."""
        return self.gaps.are_known or self.config.compact or self.cleaned_offset > 0

    def _drop_replaced(self) -> None:
        """Drop old segments of a compaction that survived a crash: those that begin before their predecessor ends."""
        if not self._was_compacted:
            return
        number = 0
        while number + 1 < len(self.segments):
            segment, following = self.segments[number], self.segments[number + 1]
            if following.base_offset > self.recovery_point or not self._overlaps(segment, following.base_offset):
                number += 1
                continue
            self.report.messages.append(f"removed {following.path}: compacted into {segment.path}")
            self._remove_files(following)
            del self.segments[number + 1]
            self.disk.sync_directory(self.directory)

    def _overlaps(self, segment: Segment, following: int) -> bool:
        """Whether batches of `segment` reach beyond the start of the next segment."""
        try:
            end = segment.load_tail(segment.size)
        except CorruptBatch:
            end = following + 1  # the index may be wrong
        segment.max_timestamp = UNKNOWN_TIMESTAMP
        if end <= following:
            return False
        end = segment.base_offset  # a header or the index may be wrong: check all batches
        try:
            for _, header in checked_batches(segment.file(), segment.path, 0, segment.size):
                if header.base_offset < end:
                    return False
                end = header.next_offset
        except CorruptBatch:
            return False  # reported when it is read
        return end > following

    def _look_for_hole(self, segment: Segment, following: int) -> None:
        """A crash during a deletion can leave older segments behind a hole: the log then starts after the hole."""
        if self._was_compacted:
            return
        try:
            end = segment.load_tail(segment.size)
            if end == following:
                return
            end = segment.base_offset  # a header may be wrong: check all batches
            for position, header in checked_batches(segment.file(), segment.path, 0, segment.size):
                is_gap = header.base_offset > end and not self.gaps.is_contiguous
                if header.base_offset != end and not is_gap:
                    raise CorruptBatch(segment.path, position, f"base offset {header.base_offset}, expected {end}")
                end = header.next_offset
        except CorruptBatch as damage:
            self.report.messages.append(str(damage))  # and raised when it is read
            return
        if end != following:
            self.report.messages.append(f"{segment.path} ends at {end}, the next segment starts at {following}")
            self.log_start_offset = following

    def _scan(self, segment: Segment) -> bool:
        """Check the segment from the recovery point on; False if it was cut."""
        position, offset = self._scan_start(segment)
        if self._scanned_from < 0:
            self._scanned_from = offset
        segment.index.truncate(0, offset - segment.base_offset)
        segment.time_index.truncate(1, offset - segment.base_offset)
        if segment.index.is_on_disk:
            self.unsynced_paths += [segment.index.path, segment.time_index.path]
        segment.load_tail(position)
        size, file = segment.size, segment.file()
        segment.trusted_from = position
        end = position
        try:
            for at, header in checked_batches(file, segment.path, position, size):
                if header.base_offset < offset:
                    raise CorruptBatch(segment.path, at, f"base offset {header.base_offset} after {offset}")
                if header.base_offset > offset:
                    self.gaps.found()  # the mark did not survive the crash
                if header.attributes & CONTROL_BIT and header.producer_id >= 0:
                    self._has_markers = True
                segment.note_batch(
                    at, header.size_bytes, header.last_offset, header.max_timestamp, self.config.index_interval_bytes
                )
                end, offset = segment.size, header.next_offset
        except CorruptBatch as bad:
            if offset < self.recovery_point:
                raise
            file.truncate(end)
            file.sync()
            self.report.truncated_bytes += size - end
            self.report.messages.append(f"truncated {size - end} bytes at the end: {bad}")
        segment.size = end
        write_again(file, position, end)
        self.report.scanned_bytes += size - position
        self.log_end_offset = offset
        return end == size

    def _scan_start(self, segment: Segment) -> tuple[int, int]:
        """The recovery point in the segment: (position, offset)."""
        relative = self.recovery_point - segment.base_offset
        if relative > 0 and segment.index.is_on_disk and segment.indexes_are_sane():
            entry = segment.index.floor(0, relative)
            try:
                return self._walk_to_recovery_point(segment, entry)
            except CorruptBatch:
                pass  # the index may be wrong: continue without it
        had_index = segment.index.is_on_disk
        segment.index.clear()
        segment.time_index.clear()
        if relative <= 0:
            return 0, segment.base_offset
        if had_index or segment.size > _SMALL_BYTES:
            self.report.rebuilt_indexes += 1
            self.report.messages.append(f"rebuilt the indexes of {segment.path}")
        return self._walk_to_recovery_point(segment, None)

    def _walk_to_recovery_point(self, segment: Segment, entry: tuple[int, int] | None) -> tuple[int, int]:
        """Walk from an index entry, or from the start while filling the index."""
        size, position, offset = segment.size, entry[1] if entry else 0, segment.base_offset
        end = None if entry else offset  # end of the previous batch; unknown after an index entry
        try:
            for at, header in segment.walk(position, size, replay.WALK_BYTES):
                if entry is not None and at == entry[1] and header.last_offset != segment.base_offset + entry[0]:
                    raise CorruptBatch(segment.path, at, "the index entry belongs to another batch")
                if header.base_offset >= self.recovery_point:
                    if end is not None and header.base_offset > end:
                        if self.gaps.is_contiguous and end < self.recovery_point:  # else the mark would be stable
                            raise CorruptBatch(segment.path, at, f"base offset {header.base_offset}, expected {end}")
                        self.gaps.found()  # the mark did not survive the crash
                    return at, header.base_offset
                end = header.next_offset
                if entry is None:
                    segment.note_batch(
                        at,
                        header.size_bytes,
                        header.last_offset,
                        header.max_timestamp,
                        self.config.index_interval_bytes,
                    )
                position, offset = at + header.size_bytes, header.next_offset
        except CorruptBatch:
            if offset < self.recovery_point:
                raise
        finally:
            segment.size = size
        return position, offset

    def _need_indexes(self, segment: Segment, *, is_suspect: bool = False) -> None:
        """Rebuild missing indexes, and suspect ones after a crash. Other damage shows up in use."""
        if segment.size <= _SMALL_BYTES and not is_suspect:
            return
        is_missing = not segment.index.is_on_disk or not segment.time_index.is_on_disk
        if is_missing and segment.size > _SMALL_BYTES:
            reason = "missing"
        elif is_suspect and not is_missing and not segment.indexes_are_sane():
            reason = "damaged"
        else:
            return
        self._rebuild_indexes(segment, reason)

    def _rebuild_indexes(self, segment: Segment, reason: str) -> None:
        segment.rebuild_indexes(self.config.index_interval_bytes)
        if len(segment.index):  # a single large batch has no entry, and no file until the segment is sealed
            self.report.rebuilt_indexes += 1
            self.report.messages.append(f"rebuilt the {reason} indexes of {segment.path}")
        self.unsynced_paths += [segment.index.path, segment.time_index.path]

    def _remove_segments_from(self, number: int) -> None:
        for segment in self.segments[number:]:
            self.report.truncated_bytes += segment.size
            self.report.messages.append(f"removed {segment.path}: the log ends at {self.log_end_offset}")
            self._remove_files(segment)
        del self.segments[number:]
        self.unsynced_segments = [segment for segment in self.unsynced_segments if segment in self.segments]
        self.disk.sync_directory(self.directory)

    def _remove_files(self, segment: Segment) -> None:
        segment.release()
        for suffix in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX):
            path = file_path(self.directory, segment.base_offset, suffix)
            if self.disk.exists(path):
                self.disk.remove(path)

    # -- bounds, epochs, producers ---------------------------------------------------------------------------

    def refuse_loss(self, log_start_offset: int) -> None:
        """Records below the recovery point were stable. If the log ends before it, files are missing or cut off.

        Except if all of it was deleted: a follower may have started its log again a little before its start.
        """
        if max(self.log_end_offset, log_start_offset) < self.recovery_point:
            raise RecordsMissing(
                f"{self.directory} ends at offset {self.log_end_offset}, but everything below "
                f"{self.recovery_point} was on disk: files are missing or shortened; restore them, "
                "or delete and recreate the topic"
            )

    def settle_bounds(self, log_start_offset: int) -> None:
        """Ensure that there is a segment and that the log start is within the log."""
        if self.segments and log_start_offset > self.log_end_offset:
            # Records were deleted up to an end that did not survive: nothing is left; offsets continue from there.
            self.report.messages.append(f"log start {log_start_offset} is beyond the end {self.log_end_offset}")
            self._remove_segments_from(0)
        if not self.segments:
            self.log_end_offset = self.stable_offset = log_start_offset
            segment = Segment(self.disk, self.directory, log_start_offset, self.open_files, is_file_there=False)
            if log_start_offset:  # only a file name stores it; a log from 0 gets its file with the first batch
                self.disk.make_directory(self.directory)
                if not self.is_directory_there and self.topic_id is not None:
                    write_partition_metadata(self.disk, self.directory, self.topic_id)
                self.is_directory_there = True
                segment.create_file()
                self.gaps.begin()
                self.disk.sync_directory(self.directory)
                self.disk.sync_directory(parent_of(self.directory))
            elif self.is_directory_there:
                self.gaps.begin()
            self.segments = [segment]
        self.log_start_offset = max(log_start_offset, self.log_start_offset, self.segments[0].base_offset)

    def load_epochs(self, *, clean: bool) -> None:
        path = f"{self.directory}/{LEADER_EPOCHS}"
        data = read_whole(self.disk, path) if LEADER_EPOCHS in self._names else None
        start = self.log_end_offset if clean else self.stable_offset
        if data is not None:
            try:
                self.epochs = LeaderEpochs.decode(data, path)
            except StorageError as error:
                self.report.messages.append(f"{error}; rebuilt from the batches")
                start = self.log_start_offset
        self.epochs.truncate_from_end(start)
        is_trusted = True
        for _, _, header in headers_from(self.segments, start, self.log_end_offset):
            if is_trusted and header.leader_epoch < self.epochs.latest and header.base_offset >= start:
                is_trusted = False
                self._distrust(header)
            self.epochs.assign(header.leader_epoch, header.base_offset)
        self.epochs.truncate_from_start(self.log_start_offset)

    def _distrust(self, header: BatchHeader) -> None:
        """Epochs never decrease, so one of the batches is damaged: scanned batches are checked again when read."""
        self.report.messages.append(
            f"leader epoch {header.leader_epoch} at offset {header.base_offset}, after {self.epochs.latest}"
        )
        for segment in self.segments:
            segment.trusted_from = segment.size

    def load_producers(self, *, clean: bool) -> None:
        if self.snapshots.offsets:
            start = self.segments[0].base_offset
        elif clean:
            start = self.log_end_offset  # a clean close leaves a snapshot if there are producers
        else:
            # A roll leaves a snapshot if there are producers; it is stable before the recovery point passes it.
            at = bisect_left([segment.base_offset for segment in self.segments], self.stable_offset) - 1
            start = self.segments[max(at, 0)].base_offset
        self.producers = replay_producers(self.segments, self.snapshots, start, self.log_end_offset)
        self.producers.expire(self.now_ms, self.config.producer_id_expiration_ms)
        self.snapshots.drop_useless(self.producers, self.log_end_offset)

    def load_aborted(self) -> None:
        """Load the transaction indexes: rebuilt for the scanned part, checked for plausibility elsewhere.

        Call before `load_producers`, which drops snapshots.
        """
        if self._scanned_from < 0:  # nothing was scanned: the indexes are trusted like the other files
            active = self.segments[-1]
            if active.transaction_index is not None:
                with suppress(CorruptBatch):  # raised when the index is used
                    active.transaction_index.keep(active.transaction_index.entries())
            return
        found: list[AbortedTransaction] = []
        if self._has_markers:
            found = find_aborted(self.segments, self.snapshots, self._scanned_from, self.log_end_offset)
        ends = [segment.base_offset for segment in self.segments[1:]] + [self.log_end_offset]
        for segment, end in zip(self.segments, ends, strict=True):
            fresh = [entry for entry in found if segment.base_offset <= entry.last_offset < end] if found else []
            if segment.transaction_index is not None or fresh:
                self._load_aborted_of(segment, end, fresh)

    def _load_aborted_of(self, segment: Segment, end: int, fresh: list[AbortedTransaction]) -> None:
        """`fresh`: the aborted transactions of the scanned part."""
        index = segment.transaction_index
        is_active = segment is self.segments[-1]
        if index is not None:
            try:
                kept = index.sound_entries(segment.base_offset, end, self._scanned_from)
                if kept and end > self._scanned_from:
                    self._check_marker(segment, kept[-1])
            except CorruptBatch as damage:
                kept = self._recount(segment, min(end, self._scanned_from), damage)
            if not is_active and end <= self._scanned_from:
                index.were_written(len(kept))
                return
            index.keep(kept)
            self.unsynced_paths.append(index.path)
            if not kept and not fresh:
                segment.transaction_index = None
        for entry in fresh:
            segment.add_aborted(entry)
        index = segment.transaction_index
        if index is not None and not is_active:
            index.seal()
            self.unsynced_paths.append(index.path)

    def _check_marker(self, segment: Segment, entry: AbortedTransaction) -> None:
        """Beyond the stable part an entry may be torn and still look plausible."""
        found = segment.find(entry.last_offset)
        header = found[1] if found is not None else None
        if header is None or (header.is_control, header.base_offset, header.producer_id) != (
            True,
            entry.last_offset,
            entry.producer_id,
        ):
            raise CorruptBatch(segment.transaction_index_path, 0, f"no marker at offset {entry.last_offset}")

    def _recount(self, segment: Segment, end: int, damage: CorruptBatch) -> list[AbortedTransaction]:
        """Rebuild a damaged index up to `end`. Stable on return: the recovery point may already be beyond these
        entries.
        """
        self.report.messages.append(f"{damage}; rebuilt from the batches")
        self.report.rebuilt_indexes += 1
        kept = find_aborted(self.segments, self.snapshots, segment.base_offset, end)
        write_atomic(self.disk, segment.transaction_index_path, encode(kept))
        return kept


def recover(
    disk: Disk, directory: str, config: LogConfig, last_run: LastRun, *, now_ms: int, topic_id: bytes | None
) -> RecoveredLog:
    log = RecoveredLog(disk, directory, config, last_run, now_ms)
    log.load_directory(topic_id, last_run.was_clean)
    if last_run.was_clean:
        log.load_clean()
    else:
        log.load_after_crash()
    log.refuse_loss(last_run.log_start_offset)
    log.settle_bounds(last_run.log_start_offset)
    log.load_epochs(clean=last_run.was_clean)
    log.load_aborted()
    log.load_producers(clean=last_run.was_clean)
    return log
