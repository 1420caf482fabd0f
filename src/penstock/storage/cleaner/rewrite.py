"""Rewrites segments without the records that are superseded by a later record of the same key.

Two passes: the first reads the dirty part and notes the last offset of each key; the second filters each batch of all
segments up to there into `.cleaned` files. Several small segments become one. This blocks for a long time, so it runs
in its own process; it changes only `.cleaned` files.

Invariants, as in Kafka unless noted

- Offsets and timestamps of records do not change; neither do base offset, last offset, leader epoch, producer,
  sequence and codec of a batch.
- A batch without remaining records is removed, except the last one of a live producer, which keeps the sequence, and
  the last one of a new segment (in Kafka: of a cleaning), which marks the end of the segment.
- A tombstone stays until `delete.retention.ms` after the first cleaning that met it, which writes the time of
  deletion into the batch (DELETE_HORIZON_BIT, in place of the base timestamp). Not in Kafka: it also stays while the
  plan says that a replica may not have it yet.
- Every checksum is checked before a batch is copied, and its leader epoch, which no checksum covers, against those
  that the log knows: damage is not copied into a new segment, where nobody would find it.
- A batch whose records cannot be read stays as it is, and takes no other record's place.
- An aborted transaction is in the new transaction index as long as its abort marker stays: a reader that gets the entry
  waits for that marker.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator

from crc32c import crc32c

from penstock.model.errors import ApiError, CorruptBatch
from penstock.ports.disk import Buffer, Disk, File
from penstock.records.batch import (
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from penstock.records.builder import MalformedRecords, iterate_records, seal
from penstock.records.compression import compress, decompress
from penstock.storage.cleaner.plan import Cleaned, CleanPlan, Outcome, RewrittenSegment
from penstock.storage.cleaner.transactions import CleanedTransactions
from penstock.storage.cleaner.walk import copy_runs, put_keys, retain
from penstock.storage.files import (
    CLEANED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    TRANSACTION_INDEX,
    file_path,
    write_whole,
)
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.producers.transaction_index import TransactionIndex, encode
from penstock.storage.producers.transactions import AbortedTransaction
from penstock.storage.segments.segment import MAX_RELATIVE_OFFSET, OpenFiles, Segment
from penstock.storage.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex

_CHUNK_BYTES = 1 << 20
_MAX_SOURCES = 16  # per new segment: the broker's loop renames their files in one turn

Spend = Callable[[int], None]  # called with a number of bytes before reading or writing them; may wait


def no_limit(size: int) -> None:
    """Read and write without a limit."""


def clean(disk: Disk, plan: CleanPlan, spend: Spend = no_limit) -> Iterator[Outcome]:
    """Yield every rewritten segment as soon as it is stable on disk, oldest first, and a summary at the end.

    Raises CorruptBatch and OSError; segments yielded by then may be used or not.
    """
    cleaner = _Cleaning(disk, plan, spend)
    cleaner.learn_keys()
    for group in cleaner.groups():
        yield cleaner.rewrite(group)
    yield cleaner.summary()


class _Cleaning:
    def __init__(self, disk: Disk, plan: CleanPlan, spend: Spend) -> None:
        self._disk = disk
        self._plan = plan
        self._spend = spend
        self._offsets: dict[bytes, int] = {}
        self._latest_offset = plan.first_dirty_offset - 1
        self._live = array("q")  # the offsets of the map, ascending
        self._next_live = 0  # index of the first at or after the current batch
        self._knows_all_live = True
        self._transactions = CleanedTransactions(plan.aborted or ())
        self._epochs = LeaderEpochs.of(plan.leader_epochs)
        self._records_read = self._records_kept = self._bytes_read = self._bytes_written = self._malformed = 0

    # -- first pass ------------------------------------------------------------------------------------------

    def learn_keys(self) -> None:
        """Note the last offset of each key from the first dirty offset on, until the map is full.

        At least one batch is read, so that every cleaning makes progress.
        """
        self._learn_until_full()
        if self._knows_all_live:
            self._live.extend(sorted(self._offsets.values()))

    def _learn_until_full(self) -> None:
        plan, offsets = self._plan, self._offsets
        transactions = CleanedTransactions(plan.aborted or ())
        bases = [base for base, _ in plan.segments[1:]] + [plan.end_offset]
        for (base, size), end in zip(plan.segments, bases, strict=True):
            if end <= plan.first_dirty_offset:
                continue
            for data, at, header in self._batches(base, size):
                if header.last_offset < plan.first_dirty_offset:
                    continue
                if len(offsets) >= plan.max_keys and self._latest_offset >= plan.first_dirty_offset:
                    return
                self._learn_batch(data, at, header, transactions)
                self._latest_offset = header.last_offset
            self._latest_offset = end - 1

    def _learn_batch(self, data: bytes, at: int, header: BatchHeader, transactions: CleanedTransactions) -> None:
        if header.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
            if header.is_control:
                transactions.is_spent(header, _marker_kind(header, memoryview(data)[at + HEADER_SIZE :]))
                return
            if self._plan.aborted is None or transactions.is_aborted(header):
                return
        try:
            payload, start, end = _payload(data, at, header)
            count = put_keys(payload, start, end, header.base_offset, self._plan.first_dirty_offset, self._offsets)
            if count != header.record_count:
                raise MalformedRecords(f"{count} records, {header.record_count} announced")
        except (ApiError, MalformedRecords):  # the second pass keeps it, and it supersedes nothing
            self._knows_all_live = False
            base_offset, offsets = header.base_offset, self._offsets
            for key in [key for key, offset in offsets.items() if offset >= base_offset]:
                del offsets[key]

    # -- second pass -----------------------------------------------------------------------------------------

    def groups(self) -> Iterator[list[tuple[int, int]]]:
        """Yield neighbouring segments that fit into one, by size of log and indexes."""
        plan = self._plan
        segments = [segment for segment in plan.segments if segment[0] <= self._latest_offset]
        ends = [base for base, _ in plan.segments[1:]] + [plan.end_offset]
        group: list[tuple[int, int]] = []
        sizes = [0, 0, 0]
        for segment, end in zip(segments, ends, strict=False):
            added = [segment[1], self._file_size(segment[0], INDEX), self._file_size(segment[0], TIME_INDEX)]
            together = [total + size for total, size in zip(sizes, added, strict=True)]
            limits = (plan.segment_bytes, plan.segment_index_bytes, plan.segment_index_bytes)
            if group and (
                len(group) == _MAX_SOURCES
                or any(total > limit for total, limit in zip(together, limits, strict=True))
                or end - 1 - group[0][0] > MAX_RELATIVE_OFFSET
            ):
                yield group
                group, together = [], added
            group.append(segment)
            sizes = together
        if group:
            yield group

    def _file_size(self, base: int, suffix: str) -> int:
        try:
            file = self._disk.open(file_path(self._plan.directory, base, suffix))
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def rewrite(self, group: list[tuple[int, int]]) -> RewrittenSegment:
        target = _NewSegment(self._disk, self._plan, group[0][0], self._spend)
        is_changed = len(group) > 1
        sources = [file_path(self._plan.directory, base, TRANSACTION_INDEX) for base, _ in group]
        sources = [path for path in sources if self._disk.exists(path)]
        self._transactions.kept.clear()
        for data, at, header, is_last in _with_last(self._batches_of(group)):
            batch = self._filter(data, at, header, is_last or self._is_last_of_producer(header))
            if batch is None:
                is_changed = True
                continue
            if isinstance(batch, bytes):
                is_changed = True
                header = BatchHeader._make(HEADER.unpack_from(batch))
            target.add(header, batch)
        aborted = self._transactions.kept
        if self._plan.aborted is None:
            aborted = [one for path in sources for one in TransactionIndex(self._disk, path, stored=-1).entries()]
        if is_changed:
            target.make_stable(aborted if sources or aborted else None)
            self._bytes_written += target.size
        else:
            target.remove()
        bases = tuple(base for base, _ in group)
        segment = target.segment
        return RewrittenSegment(
            bases,
            segment.size,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            is_changed,
            len(aborted) if is_changed and (sources or aborted) else -1,
        )

    def _batches_of(self, group: list[tuple[int, int]]) -> Iterator[tuple[bytes, int, BatchHeader]]:
        for base, size in group:
            self._bytes_read += size
            yield from self._batches(base, size)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether the state of a live producer comes from this batch."""
        if header.producer_id < 0:
            return False
        last = self._plan.last_batches.get(header.producer_id)
        if last is None:
            return False
        offset, epoch = last
        return header.last_offset == offset if offset >= 0 else header.is_control and header.producer_epoch == epoch

    def _filter(self, data: bytes, at: int, header: BatchHeader, keeps_empty: bool) -> Buffer | None:
        """Filter a batch. Return a view if it is unchanged, bytes if it is new, None if nothing remains."""
        self._records_read += header.record_count
        if header.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
            if header.is_control:
                return self._filter_control(data, at, header, keeps_empty)
            if self._plan.aborted is None:
                return self._original(data, at, header)
            if self._transactions.is_aborted(header):
                return _emptied(header) if keeps_empty else None
        if not header.record_count:
            return _emptied_again(data, at, header) if keeps_empty else None
        if self._is_superseded(header):
            return _emptied(header) if keeps_empty else None
        drops_tombstones = bool(header.attributes & DELETE_HORIZON_BIT) and self._is_over(header)
        try:
            payload, start, end = _payload(data, at, header)
            retained = retain(
                payload, start, end, header.base_offset, self._latest_offset, self._offsets, drops_tombstones
            )
            if retained.read != header.record_count:
                raise MalformedRecords(f"{retained.read} records, {header.record_count} announced")
        except (ApiError, MalformedRecords):
            self._malformed += 1
            return self._original(data, at, header)
        if not retained.kept:
            return _emptied(header) if keeps_empty else None
        sets_horizon = retained.has_tombstones and not header.attributes & DELETE_HORIZON_BIT
        if retained.kept == header.record_count and not sets_horizon:
            return self._original(data, at, header)
        self._records_kept += retained.kept
        return self._rebuilt(header, payload, retained.runs, retained.kept, sets_horizon)

    def _is_superseded(self, header: BatchHeader) -> bool:
        """Whether this dirty batch contains no offset of the map, so that its records need not be read."""
        if (
            not self._knows_all_live
            or header.base_offset < self._plan.first_dirty_offset
            or header.last_offset > self._latest_offset
        ):
            return False
        first = bisect_left(self._live, header.base_offset, self._next_live)
        self._next_live = bisect_right(self._live, header.last_offset, first)
        return first == self._next_live

    def _filter_control(self, data: bytes, at: int, header: BatchHeader, keeps_empty: bool) -> Buffer | None:
        if self._plan.aborted is None:
            return self._original(data, at, header)
        start, end = at + HEADER_SIZE, at + header.size_bytes
        is_spent = self._transactions.is_spent(header, _marker_kind(header, memoryview(data)[start:end]))
        if not header.record_count:
            return _emptied_again(data, at, header) if keeps_empty else None
        if not is_spent:
            return self._original(data, at, header)
        if not header.attributes & DELETE_HORIZON_BIT:
            self._records_kept += header.record_count
            return self._rebuilt(header, data, [start, end], header.record_count, True)
        if not self._is_over(header):
            return self._original(data, at, header)
        return _emptied(header) if keeps_empty else None

    def _is_over(self, header: BatchHeader) -> bool:
        """Whether the deletion time of the batch has passed."""
        return self._plan.may_drop_tombstones and header.base_timestamp <= self._plan.now_ms

    def _original(self, data: bytes, at: int, header: BatchHeader) -> memoryview:
        self._records_kept += header.record_count
        return memoryview(data)[at : at + header.size_bytes]

    def _rebuilt(self, header: BatchHeader, payload: bytes, runs: list[int], count: int, sets_horizon: bool) -> bytes:
        horizon = self._plan.now_ms + self._plan.delete_retention_ms
        records, largest = copy_runs(payload, runs, horizon - header.base_timestamp if sets_horizon else 0)
        header = header._replace(record_count=count)
        if not header.attributes & TIMESTAMP_TYPE_BIT:
            header = header._replace(max_timestamp=header.base_timestamp + largest)
        if sets_horizon:
            header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon)
        return seal(header, compress(header.compression, records))

    def summary(self) -> Cleaned:
        return Cleaned(
            self._latest_offset + 1,
            len(self._offsets),
            self._records_read,
            self._records_kept,
            self._bytes_read,
            self._bytes_written,
            self._malformed,
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def _batches(self, base: int, size: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
        """Yield (buffer, position in it, header) for every batch of a segment, with verified checksums."""
        path = file_path(self._plan.directory, base, LOG)
        file = self._disk.open(path)
        position, expected, wanted = 0, base, _CHUNK_BYTES
        try:
            while position < size:
                self._spend(min(wanted, size - position))
                data = file.read(position, min(wanted, size - position))
                at, wanted = 0, _CHUNK_BYTES
                view = memoryview(data)
                while at + HEADER_SIZE <= len(data):
                    header = BatchHeader._make(HEADER.unpack_from(data, at))
                    end = at + header.batch_length + LENGTH_OVERHEAD
                    if (
                        header.magic != MAGIC
                        or end < at + HEADER_SIZE
                        or header.base_offset < expected
                        or header.last_offset_delta < 0
                    ):
                        raise CorruptBatch(path, position + at, "no batch header")
                    if end > len(data):
                        wanted = max(end - at, _CHUNK_BYTES)
                        break
                    if crc32c(view[at + CRC_START : end]) != header.crc:
                        raise CorruptBatch(path, position + at, "checksum does not match")
                    if self._epochs.contradicts(header.leader_epoch, header.last_offset):
                        raise CorruptBatch(
                            path, position + at, f"leader epoch {header.leader_epoch} contradicts the log"
                        )
                    yield data, at, header
                    at, expected = end, header.next_offset
                if not at and (wanted > size - position or len(data) < HEADER_SIZE):
                    raise CorruptBatch(path, position, f"a batch of {wanted} bytes, only {size - position} remain")
                position += at
        finally:
            file.close()


class _NewSegment:
    """The `.cleaned` files of one new segment, with the indexes of a sealed segment."""

    def __init__(self, disk: Disk, plan: CleanPlan, base_offset: int, spend: Spend) -> None:
        self._disk = disk
        self._plan = plan
        self._spend = spend
        self._parts: list[Buffer] = []
        self._written = 0
        self.paths = [file_path(plan.directory, base_offset, suffix) + CLEANED for suffix in SEGMENT_SUFFIXES]
        self.remove()  # leftovers of an interrupted cleaning
        self.segment = segment = Segment(disk, plan.directory, base_offset, OpenFiles(), is_file_there=False)
        segment.path = file_path(plan.directory, base_offset, LOG) + CLEANED
        segment.index = SparseIndex(disk, segment.index.path + CLEANED, OFFSET_ENTRY, exists=False)
        segment.time_index = SparseIndex(disk, segment.time_index.path + CLEANED, TIME_ENTRY, exists=False)
        self._file: File = segment.create_file()

    @property
    def size(self) -> int:
        return self.segment.size

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        segment = self.segment
        segment.note_batch(
            segment.size, len(batch), header.last_offset, header.max_timestamp, self._plan.index_interval_bytes
        )
        self._parts.append(batch)
        if segment.size - self._written >= _CHUNK_BYTES:
            self._write()

    def _write(self) -> None:
        size = self.segment.size - self._written
        if size:
            self._spend(size)
            self._file.write(self._written, [b"".join(self._parts)])
            self._written += size
            self._parts.clear()

    def make_stable(self, aborted: list[AbortedTransaction] | None) -> None:
        """`aborted`: the entries of the transaction index, which may be empty. None: the segment gets no such index.
        See `swap`.
        """
        self._write()
        self.segment.seal()
        for suffix, path in zip(SEGMENT_SUFFIXES, self.paths, strict=True):
            if suffix == TRANSACTION_INDEX:
                if aborted is not None:
                    write_whole(self._disk, path, encode(aborted), sync=True)
                continue
            file = self._disk.open(path)
            try:
                file.sync()
            finally:
                file.close()
        self._disk.sync_directory(self._plan.directory)

    def remove(self) -> None:
        for path in self.paths:
            if self._disk.exists(path):
                self._disk.remove(path)


def _with_last(
    batches: Iterable[tuple[bytes, int, BatchHeader]],
) -> Iterator[tuple[bytes, int, BatchHeader, bool]]:
    held: tuple[bytes, int, BatchHeader] | None = None
    for batch in batches:
        if held is not None:
            yield *held, False
        held = batch
    if held is not None:
        yield *held, True


def _payload(data: bytes, at: int, header: BatchHeader) -> tuple[bytes, int, int]:
    """The uncompressed records: (buffer, start, end)."""
    start, end = at + HEADER_SIZE, at + header.size_bytes
    codec = header.compression
    if not codec:
        return data, start, end
    records = decompress(codec, memoryview(data)[start:end])
    return records, 0, len(records)


def _marker_kind(header: BatchHeader, payload: memoryview) -> int | None:
    """The marker type of a control batch; None if compaction removed the record, -1 if it is unknown."""
    try:
        for record in iterate_records(header, payload[: header.size_bytes - HEADER_SIZE]):
            return int.from_bytes(record.key[2:4], "big") if record.key is not None and len(record.key) >= 4 else -1
    except MalformedRecords:
        return -1
    return None


def _emptied(header: BatchHeader) -> bytes:
    """The header alone, as in Kafka: offsets, sequence and largest timestamp stay."""
    attributes = header.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return seal(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _emptied_again(data: bytes, at: int, header: BatchHeader) -> memoryview:
    return memoryview(data)[at : at + header.size_bytes]
