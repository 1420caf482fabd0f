"""One segment: a run of batches in a `.log` file, its two sparse indexes, and its aborted transactions if it has any.

Knows positions and headers. Must not know: which offsets are visible, stable or deleted; the log does. Only the active
(last) segment of a log grows, and its file stays open. Files of sealed segments are opened on demand and stay open
while a reader holds them.

Bytes are trusted if this process wrote them or checked their checksum: those from `trusted_from` on, and one range
grown by `mark_trusted`. Headers are walked without a checksum, so their values are checked for plausibility, and a
range is verified before it is served.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import NamedTuple, NoReturn

from penstock.model.errors import CorruptBatch, NotCached
from penstock.ports.disk import Disk, File
from penstock.records.batch import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader
from penstock.storage.files import INDEX, LOG, TEMPORARY, TIME_INDEX, TRANSACTION_INDEX, file_path, read_at_once
from penstock.storage.producers.transaction_index import TransactionIndex
from penstock.storage.producers.transactions import AbortedTransaction
from penstock.storage.segments.scan import checked_batches
from penstock.storage.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex

MAX_RELATIVE_OFFSET = 2**31 - 1
UNKNOWN_TIMESTAMP = -2  # not loaded yet; -1: no batch has one
_LOOKUP_BYTES = 4096
_OPEN_FILES = 2
_SCAN_BYTES = 256 << 10
_MOST_HEADERS = 1024  # limit of a walk on the event loop: a few milliseconds


class OpenFiles:
    """The sealed segments of one log with an open file: the last few read."""

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def add(self, segment: Segment) -> None:
        if segment in self._segments:
            self._segments.remove(segment)
        self._segments.append(segment)
        if len(self._segments) > _OPEN_FILES:
            oldest = self._segments.pop(0)
            if oldest.writer is None:
                oldest.release()


class SegmentIndexes(NamedTuple):
    """Indexes rebuilt from the headers, in temporary files until `Segment.adopt` or `discard`."""

    segment: Segment
    made: Segment

    def discard(self) -> None:
        """Remove those files. A leftover is removed when the log is opened."""
        for index in (self.made.index, self.made.time_index):
            if index.path.endswith(TEMPORARY):
                with suppress(OSError):
                    self.made.remove_index(index)


class Segment:
    __slots__ = (
        "_disk",
        "_file",
        "_open_files",
        "base_offset",
        "bytes_since_index_entry",
        "index",
        "is_file_there",
        "is_name_stable",
        "limit_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "roll_after_timestamp",
        "size",
        "time_index",
        "transaction_index",
        "trusted_from",
        "verified_from",
        "verified_to",
        "writer",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, open_files: OpenFiles, *, is_file_there: bool
    ) -> None:
        self._disk = disk
        self._open_files = open_files
        self._file: File | None = None
        self.base_offset = base_offset
        self.path = file_path(directory, base_offset, LOG)
        self.index = SparseIndex(disk, file_path(directory, base_offset, INDEX), OFFSET_ENTRY, exists=is_file_there)
        self.time_index = SparseIndex(
            disk, file_path(directory, base_offset, TIME_INDEX), TIME_ENTRY, exists=is_file_there
        )
        self.transaction_index: TransactionIndex | None = None  # None: no entries, and no file
        self.size = 0
        self.bytes_since_index_entry = 0
        self.max_timestamp = UNKNOWN_TIMESTAMP if is_file_there else -1
        self.max_timestamp_offset = base_offset
        self.writer: File | None = None  # the file, once the segment is being appended to
        self.limit_bytes = 0  # append only up to here; 0 sends the log to the slow path
        self.roll_after_timestamp = -1
        self.is_file_there = is_file_there
        self.is_name_stable = is_file_there
        self.trusted_from = 0
        self.verified_from = self.verified_to = 0

    def file(self) -> File:
        """The file, open while it is in use or the segment is active."""
        if self._file is None:
            self._file = self._disk.open(self.path)
            self._open_files.add(self)
        return self._file

    def create_file(self) -> File:
        self._file = self._disk.open(self.path, create=True)
        self.is_file_there = True
        return self._file

    def release(self) -> None:
        """Release the file; it closes when its last slice is gone."""
        self._file = self.writer = None

    def view(self) -> Segment:
        """The same bytes and indexes with its own file, for reading in a thread."""
        twin = copy(self)
        twin._open_files = OpenFiles()
        twin._file = twin.writer = None
        return twin

    # -- growing ---------------------------------------------------------------------------------------------

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int, interval_bytes: int) -> None:
        """Account for a batch: indexes, timestamps, size. Inlined in `Log.append`."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index_entry > interval_bytes:
            self.add_index_entries(last_offset, position)
        self.bytes_since_index_entry += size
        self.size = position + size

    def add_index_entries(self, last_offset: int, position: int) -> None:
        """An index is an aid: if its file cannot be opened, the next batch adds the entries."""
        try:
            last = self.time_index.last()
        except OSError:
            return
        self.index.append(last_offset - self.base_offset, position)
        self._add_time_entry(last)
        self.bytes_since_index_entry = 0

    def add_time_entry(self) -> None:
        self._add_time_entry(self.time_index.last())

    def _add_time_entry(self, last: tuple[int, int] | None) -> None:
        if self.max_timestamp > (last[0] if last else -1):
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """Call after the abort marker was appended."""
        if self.transaction_index is None:
            self.transaction_index = TransactionIndex(self._disk, self.transaction_index_path, stored=0)
        self.transaction_index.append(entry)

    @property
    def transaction_index_path(self) -> str:
        return self.path.removesuffix(LOG) + TRANSACTION_INDEX

    @property
    def index_paths(self) -> list[str]:
        paths = [self.index.path, self.time_index.path]
        if self.transaction_index is not None:
            paths.append(self.transaction_index.path)
        return paths

    def seal(self) -> None:
        """End appends: the index files are complete on disk (not synced)."""
        self.load_max_timestamp()
        self.add_time_entry()
        self.index.seal()
        self.time_index.seal()
        if self.transaction_index is not None:
            self.transaction_index.seal()
        self.writer = None

    def load_max_timestamp(self) -> None:
        """In a sealed segment, the last time index entry has it; looked up once, on demand."""
        if self.max_timestamp != UNKNOWN_TIMESTAMP:
            return
        last = self.time_index.last()
        if not self.size:
            self.max_timestamp = -1
        elif last is None or not self.is_time_entry_true(last):  # lost or damaged
            self.rebuild_indexes()
        else:
            self.max_timestamp, self.max_timestamp_offset = last[0], self.base_offset + last[1]

    def is_time_entry_true(self, entry: tuple[int, int]) -> bool:
        """Whether there is a batch with this last offset and largest timestamp."""
        timestamp, relative = entry
        found = self.find(self.base_offset + relative)
        return (
            found is not None
            and found[1].max_timestamp == timestamp
            and found[1].last_offset == self.base_offset + relative
        )

    # -- looking up ------------------------------------------------------------------------------------------

    def walk(
        self, position: int, end: int, chunk_bytes: int = _LOOKUP_BYTES, *, may_wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the batches from `position` to `end`, without checking checksums.

        Raises CorruptBatch at an invalid header; NotCached if it would have to wait and must not.
        """
        file = self.file()
        chunk, chunk_at = b"", position
        while position < end:
            at = position - chunk_at
            if at + HEADER_SIZE > len(chunk):
                size = min(chunk_bytes, end - position)
                chunk = file.read(position, size) if may_wait else read_at_once(file, position, size)
                chunk_at, at = position, 0
                if len(chunk) < HEADER_SIZE:
                    raise CorruptBatch(self.path, position, f"{len(chunk)} bytes are too few for a header")
            header = BatchHeader._make(HEADER.unpack_from(chunk, at))
            size = header.batch_length + LENGTH_OVERHEAD
            if header.magic != MAGIC or size < HEADER_SIZE or header.base_offset < self.base_offset:
                raise CorruptBatch(self.path, position, "no batch header")
            if position + size > end:
                raise CorruptBatch(self.path, position, f"a batch of {size} bytes, only {end - position} remain")
            yield position, header
            position += size

    def find(self, offset: int, *, may_have_gaps: bool = True, may_wait: bool = True) -> tuple[int, BatchHeader] | None:
        """The first batch that ends at `offset` or later: (position, header). None: all end before.

        Walks from the last index entry at or before it, so no further than the distance of index entries. Raises
        CorruptBatch if the headers do not lead from one to the next. On the event loop (without `may_wait`) nothing is
        read from disk and nothing is checked: NotCached if that is needed. Otherwise it blocks.
        """
        try:
            start, last_offset = self._index_entry(offset, may_wait=may_wait)
            return self._find_from(start, last_offset, offset, may_have_gaps, may_wait=may_wait)
        except CorruptBatch:
            if not may_wait:
                raise NotCached(self.path) from None  # the index or the log is wrong: a worker finds out
        # Without the index, because it may be wrong.
        return self._find_from(0, None, offset, may_have_gaps, may_wait=True)

    def index_is_true(self, offset: int) -> bool:
        """Whether the index entry for `offset` names a batch. Blocks."""
        try:
            start, last_offset = self._index_entry(offset, may_wait=True)
            return last_offset is None or next(self.walk(start, self.size))[1].last_offset == last_offset
        except (CorruptBatch, StopIteration):
            return False

    def _index_entry(self, offset: int, *, may_wait: bool) -> tuple[int, int | None]:
        """(position, last offset of the batch there, by the index); (0, None): from the start of the file."""
        entry = self.index.floor(0, offset - self.base_offset, may_wait=may_wait)
        if entry is None:
            return 0, None
        if not 0 < entry[1] < self.size:  # the first batch has no entry, and there is no batch past the end
            raise CorruptBatch(self.index.path, 0, f"an index entry with invalid position {entry[1]}")
        return entry[1], self.base_offset + entry[0]

    def _find_from(
        self, start: int, last_offset: int | None, offset: int, may_have_gaps: bool, *, may_wait: bool
    ) -> tuple[int, BatchHeader] | None:
        """`last_offset` is the index's offset for the batch at `start`."""
        expected = self.base_offset
        left = _MOST_HEADERS
        for position, header in self.walk(start, self.size, may_wait=may_wait):
            base_offset = header.base_offset
            if last_offset is not None:
                fits, last_offset = header.last_offset == last_offset, None
            else:
                fits = base_offset == expected or (base_offset > expected and may_have_gaps)
            if not fits:
                self._check_way(start, position, may_wait=may_wait)  # the previous batch may be wrong instead
                raise CorruptBatch(self.path, position, f"base offset {base_offset}, expected {expected}")
            if header.last_offset >= offset:
                if base_offset > offset and position > start:
                    self._check_way(start, position, may_wait=may_wait)  # compaction, or a wrong header
                return position, header
            expected = header.next_offset
            left -= 1
            if not left and not may_wait:
                raise NotCached(self.path)
        if may_have_gaps:
            self._check_way(start, self.size, may_wait=may_wait)
        return None

    def _check_way(self, start: int, end: int, *, may_wait: bool) -> None:
        """Check the walked range before a gap: the length of a batch is covered only by the checksum at its end."""
        if self.is_trusted(start, end):
            return
        if not may_wait:
            raise NotCached(self.path)
        self.check_checksums(start, end)

    def boundary(self, position: int, limit: int, *, may_wait: bool = True) -> tuple[int, int]:
        """The end of a whole batch between `position` and `limit`, after at least one batch: (end, next offset).

        The last one, unless that needs a long walk on the event loop (without `may_wait`); NotCached as in `find`.
        """
        start, next_offset = position, -1
        try:
            entry = self.index.floor(1, limit, may_wait=may_wait)
        except CorruptBatch:
            entry = None
        if entry is not None and entry[1] > position:
            file = self.file()
            head = file.read(entry[1], HEADER_SIZE) if may_wait else read_at_once(file, entry[1], HEADER_SIZE)
            if len(head) == HEADER_SIZE:
                header = BatchHeader._make(HEADER.unpack(head))
                if header.magic == MAGIC and header.last_offset == self.base_offset + entry[0]:
                    start, next_offset = entry[1], header.base_offset
                    if start + header.batch_length + LENGTH_OVERHEAD > limit:
                        return start, header.base_offset
        end = start
        left = _MOST_HEADERS
        try:
            for at, header in self.walk(start, self.size, may_wait=may_wait):
                if at > position and at + header.batch_length + LENGTH_OVERHEAD > limit:
                    break
                end, next_offset = at + header.batch_length + LENGTH_OVERHEAD, header.next_offset
                left -= 1
                if end >= limit or (not left and not may_wait):
                    break
        except CorruptBatch:
            if end == position:
                raise  # else the batches before it can be served
        return end, next_offset

    def report_missing(self, offset: int) -> NoReturn:
        """The offset should be in this segment and is missing: some header is wrong. Raises CorruptBatch, naming it."""
        entry = self.index.floor(0, offset - self.base_offset)
        self.check_checksums(entry[1] if entry else 0, self.size)
        raise CorruptBatch(self.path, self.size, f"offset {offset} is missing")

    # -- trust -----------------------------------------------------------------------------------------------

    def is_trusted(self, start: int, end: int) -> bool:
        if start >= self.trusted_from:
            return True
        return self.verified_from <= start and (
            end <= self.verified_to or (self.verified_to >= self.trusted_from and end <= self.size)
        )

    def mark_trusted(self, start: int, end: int) -> None:
        if start > self.verified_to or end < self.verified_from or self.verified_from == self.verified_to:
            if end - start > self.verified_to - self.verified_from:  # apart: keep the longer one
                self.verified_from, self.verified_to = start, end
        else:
            self.verified_from = min(self.verified_from, start)
            self.verified_to = max(self.verified_to, end)
        if self.verified_from < self.trusted_from <= self.verified_to:
            self.trusted_from = self.verified_from

    def check_checksums(self, start: int, end: int) -> None:
        """Raises CorruptBatch at the first batch of the range whose checksum does not match."""
        for _ in checked_batches(self.file(), self.path, start, end):
            pass

    # -- indexes ---------------------------------------------------------------------------------------------

    def indexes_are_sane(self) -> bool:
        if not self.index.is_sane(1, max(self.size, 1)) or not self.time_index.is_sane(1, MAX_RELATIVE_OFFSET):
            return False
        return not self.index.stored or bool(self.time_index.stored)

    def rebuild_indexes(self, interval_bytes: int = _LOOKUP_BYTES) -> None:
        """Rebuild from the headers. The time index of a sealed segment ends with its largest timestamp."""
        size = self.size
        self.index.clear()
        self.time_index.clear()
        self.max_timestamp, self.bytes_since_index_entry = -1, 0
        try:
            for position, header in self.walk(0, size, _SCAN_BYTES):
                self.note_batch(position, header.size_bytes, header.last_offset, header.max_timestamp, interval_bytes)
        except CorruptBatch:
            pass  # reported when it is read; the index covers everything before it
        self.size = size
        if self.writer is None:
            self.seal()

    def rebuilt_indexes(self, interval_bytes: int, tag: str) -> SegmentIndexes:
        """Rebuild the indexes of a sealed segment. Blocks; may run in a thread: the segment itself does not change.

        `tag`: part of the file names, because several rebuilds may run at the same time.
        """
        made = self.view()
        end = f".{tag}{TEMPORARY}"
        made.index = SparseIndex(self._disk, self.index.path + end, OFFSET_ENTRY, exists=False)
        made.time_index = SparseIndex(self._disk, self.time_index.path + end, TIME_ENTRY, exists=False)
        rebuilt = SegmentIndexes(self, made)
        try:
            made.rebuild_indexes(interval_bytes)
        except (CorruptBatch, OSError):
            rebuilt.discard()
            raise
        return rebuilt

    def remove_index(self, index: SparseIndex) -> None:
        self._disk.remove(index.path)

    def adopt(self, rebuilt: SegmentIndexes) -> None:
        """Two renames. Raises OSError; then remaining old indexes are still doubtful."""
        made = rebuilt.made
        self._disk.rename(made.index.path, self.index.path)
        made.index.path = self.index.path
        self.index = made.index
        self._disk.rename(made.time_index.path, self.time_index.path)
        made.time_index.path = self.time_index.path
        self.time_index = made.time_index
        self.max_timestamp, self.max_timestamp_offset = made.max_timestamp, made.max_timestamp_offset

    def cut(self, position: int, end_offset: int) -> None:
        """The file was cut at `position`, the start of the batch at `end_offset`; the segment is active again."""
        self.size = position
        self.limit_bytes = 0
        self.trusted_from = min(self.trusted_from, position)
        self.verified_from = min(self.verified_from, position)
        self.verified_to = min(self.verified_to, position)
        self.index.truncate(0, end_offset - self.base_offset)
        self.time_index.truncate(1, end_offset - self.base_offset)
        self.load_tail(position)

    def load_tail(self, end: int) -> int:
        """Learn the state of the batches up to `end` from indexes and later headers; return the next offset.

        Index entries beyond `end` must be removed before.
        """
        entry, newest = self.index.last(), self.time_index.last()
        indexed = entry[1] if entry else 0
        if indexed > end:
            raise CorruptBatch(self.path, end, f"the index points to {indexed}")
        if newest is not None:
            start, self.max_timestamp, self.max_timestamp_offset = indexed, newest[0], self.base_offset + newest[1]
        else:
            start, self.max_timestamp, self.max_timestamp_offset = 0, -1, self.base_offset
        next_offset = self.base_offset
        for _, header in self.walk(start, end):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
            next_offset = header.next_offset
        self.bytes_since_index_entry = end - indexed
        return next_offset
