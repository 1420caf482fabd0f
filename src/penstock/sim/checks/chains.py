"""Committed records do not change, and every in-sync replica has them.

The first leader whose high watermark passes a batch defines it: leader epoch, checksum, records. Every later leader and
every in-sync replica must have the same batch, from the start of its log on; equal offsets are not enough. Only
compaction may leave gaps: a record may be missing if a later committed record has its key, or if it was a tombstone. A
replica without a tombstone must not have the records it deleted.

Also, the leader epochs that a replica remembers are those of its batches, because followers cut by them.
Batches are checked only once, unless the log was cut, compacted or reopened. Must not know: brokers, faults.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import NamedTuple, Protocol

from penstock.model.errors import CorruptBatch
from penstock.records.batch import HEADER_SIZE, BatchHeader, iterate_headers, read_header
from penstock.records.builder import Record, iterate_records
from penstock.records.compression import decompress
from penstock.records.control import ABORT, marker_of
from penstock.sim.checks.marked import Markers
from penstock.sim.judges.history import Violation
from penstock.sim.machine.disk import SimDisk

Key = tuple[bytes, int]
HELD = "in-sync replicas hold committed records"
STAYS = "committed records do not change"
DELETED = "a replica with a deleted record has its tombstone"


class SegmentLike(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


class EpochsLike(Protocol):
    def epoch_of(self, offset: int) -> int: ...


class SegmentedLog(Protocol):
    @property
    def segments(self) -> Sequence[SegmentLike]: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def generation(self) -> int:
        """Changes with every cut."""
        ...

    @property
    def epochs(self) -> EpochsLike: ...


@dataclass(slots=True)
class _Walked:
    """How much of a replica was checked against the committed records."""

    log: SegmentedLog
    generation: int
    segments: tuple[SegmentLike, ...] = ()
    """All segments up to the current one of the walk."""
    position: int = 0
    """In the last of them."""
    end: int = 0
    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Start of the first and the last batch of each epoch."""

    def goes_on(self, log: SegmentedLog) -> bool:
        """The same files, perhaps longer and without the oldest ones."""
        if self.log is not log or self.generation != log.generation:
            return False
        segments = log.segments
        kept: Sequence[SegmentLike] = self.segments
        if kept and kept[0] is not segments[0]:
            first = segments[0].base_offset
            kept = [segment for segment in kept if segment.base_offset >= first]
        return all(map(is_, kept, segments))


class _Committed(NamedTuple):
    leader_epoch: int
    crc: int
    data: bytes


class _Chain:
    """The committed batches of one partition."""

    def __init__(self) -> None:
        self.ends: list[int] = []  # ascending
        self.batches: dict[int, _Committed] = {}
        self.is_compacted = False
        self._records: dict[int, list[Record]] = {}  # of batches that a replica lacks
        self._last: dict[bytes, int] = {}  # of each key, in the batches up to the next field
        self._last_end = 0
        self._spent: set[int] = set()  # batches that compaction may remove entirely; they stay so
        self.markers = Markers()
        self._undone: set[int] = set()  # markers, and batches of aborted transactions: compaction may remove them
        self.later: frozenset[bytes | None] = frozenset()
        """Keys beyond the known committed end."""

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    def add(self, end: int, header: BatchHeader, data: bytes) -> None:
        self.ends.append(end)
        self.batches[end] = _Committed(header.leader_epoch, header.crc, data)
        if header.is_control:
            self._end_transaction(end, header, data)
        elif header.is_transactional:
            self.markers.add(end, header)

    def _end_transaction(self, end: int, header: BatchHeader, data: bytes) -> None:
        marker, ended = marker_of(header, data), self.markers.marked(end, header)
        self._undone.add(end)
        if marker is not None and marker.kind == ABORT:
            self._undone.update(ended)
        # Its committed records supersede others from now on.
        self._last.clear()
        self._last_end = 0

    def between(self, after: int, up_to: int) -> list[int]:
        """Ends of batches in (after, up_to]."""
        return self.ends[bisect_right(self.ends, after) : bisect_right(self.ends, up_to)]

    def records(self, end: int) -> list[Record]:
        if end not in self._records:
            self._records[end] = _decode(self.batches[end].data)
        return self._records[end]

    def tombstones(self, limit: int) -> dict[bytes | None, int]:
        """The last tombstone of each key below the limit."""
        found = (record for end in self.between(0, limit) for record in self.records(end))
        return {record.key: record.offset for record in found if record.value is None}

    def is_spent(self, record: Record) -> bool:
        """Whether compaction may remove the record."""
        if record.key is None or record.value is None or record.key in self.later:
            return True
        if self._last_end != self.end:
            undecided = self.markers.undecided
            for end in self.between(self._last_end, self.end):
                if end in self._undone or end in undecided:
                    continue
                self._last.update((found.key, found.offset) for found in self.records(end) if found.key is not None)
            self._last_end = self.end
        return self._last.get(record.key, -1) > record.offset

    def lost_of(self, end: int, held: Sequence[Record] = ()) -> Record | None:
        """A record of this batch that is neither held nor removable. `held` has the same records, or fewer."""
        if end in self._spent or end in self._undone:
            return None
        offsets = {record.offset for record in held}
        for one in self.records(end):
            if one.offset not in offsets and not self.is_spent(one):
                return one
        if not offsets and not self.later:
            self._spent.add(end)
        return None

    def is_same(self, end: int, header: BatchHeader, data: bytes) -> bool:
        """Whether a batch up to there is the committed one, or the committed one after compaction."""
        known = self.batches.get(end)
        if known is None or known.leader_epoch != header.leader_epoch:
            return False
        if known.crc == header.crc:
            return True
        if not self.is_compacted:
            return False
        held, originals = _decode(data), {record.offset: record for record in self.records(end)}
        is_part = all(originals.get(record.offset) == record for record in held)
        return is_part and self.lost_of(end, held) is None


class ChainChecker:
    def __init__(self) -> None:
        self._chains: dict[Key, _Chain] = {}
        self._walked: dict[tuple[int, Key], _Walked] = {}
        self._unseen: dict[Key, None] = {}
        self.on_committed: Callable[[object, BatchHeader, bytes], None] = lambda name, header, batch: None
        """Called with every batch when it is committed, in order."""

    def compacts(self, key: Key) -> None:
        """Call when a partition becomes compacted; it stays so."""
        self._chain(key).is_compacted = True

    def lose_sight(self, key: Key) -> None:
        """Records were committed that cannot be read. In a compacted partition neither they nor their successors can be
        read later: this partition is no longer judged."""
        if self._chain(key).is_compacted:
            self._unseen[key] = None

    def is_compacted(self, key: Key) -> bool:
        return self._chain(key).is_compacted

    def _chain(self, key: Key) -> _Chain:
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = _Chain()
        return chain

    def committed(
        self, node: int, name: object, key: Key, log: SegmentedLog, high_watermark: int, disk: SimDisk
    ) -> None:
        """The leader's high watermark has reached this point. `name` is converted to text only if needed."""
        self._walk(node, name, key, log, high_watermark, disk, is_first=True)

    def holds(
        self,
        node: int,
        name: object,
        key: Key,
        log: SegmentedLog,
        high_watermark: int,
        disk: SimDisk,
        *,
        is_excused: bool = False,
    ) -> None:
        """Check that this in-sync replica has everything up to there. `is_excused`: damage is allowed, gaps are not."""
        limit = min(high_watermark, self._chain(key).end)
        if not is_excused:
            self._walk(node, name, key, log, limit, disk, is_first=False)
            return
        try:
            self._walk(node, name, key, log, limit, disk, is_first=False)
        except Violation as violation:
            if violation.what == HELD:
                raise

    def forget(self, node: int) -> None:
        """Check everything on this node again."""
        self._walked = {known: walked for known, walked in self._walked.items() if known[0] != node}

    def _walk(
        self, node: int, name: object, key: Key, log: SegmentedLog, limit: int, disk: SimDisk, *, is_first: bool
    ) -> None:
        if key in self._unseen:
            return
        chain, walked = self._chain(key), self._walked.get((node, key))
        is_new = walked is None or not walked.goes_on(log)
        if walked is None or is_new:
            walked = _Walked(log, log.generation)
        elif walked.end < limit:
            first_offset = log.segments[0].base_offset
            walked.segments = tuple(s for s in walked.segments if s.base_offset >= first_offset)
        else:
            if is_first:
                _check_epochs(node, name, log, walked)
            return
        who, start = f"{name} on {node}", log.log_start_offset
        # Judged at the end of the walk, because later records may supersede earlier ones.
        before, held, odd = max(walked.end, start), set[int](), list[tuple[BatchHeader, bytes]]()
        segments = log.segments
        for number, segment in enumerate(segments):
            if number + 1 < len(walked.segments) or segment.base_offset >= limit:
                continue
            position = walked.position if number + 1 == len(walked.segments) else 0
            data = disk.peek(segment.path, position, segment.size)
            walked.segments, walked.position = tuple(segments[: number + 1]), position
            for at, header in _batches(who, data, segment.path):
                end = header.next_offset
                if end > limit:
                    break
                walked.position = position + at + header.size_bytes
                if end <= start:
                    continue  # deleted, so not compared
                batch = data[at : at + header.size_bytes]
                if is_first and end > chain.end:
                    chain.add(end, header, batch)
                    self.on_committed(name, header, batch)
                elif (known := chain.batches.get(end)) is None or known[:2] != (header.leader_epoch, header.crc):
                    odd.append((header, batch))
                held.add(end)
                first, _ = walked.epochs.get(header.leader_epoch, (header.base_offset, 0))
                walked.epochs[header.leader_epoch] = first, header.base_offset
        missing = [end for end in chain.between(before, limit) if end not in held]
        try:
            _judge(who, chain, odd, missing)
        except Violation:
            # A superseding record may be further up, committed by a leader that was not observed.
            chain.later = _keys_after(chain.end, log, disk) if chain.is_compacted else frozenset()
            _judge(who, chain, odd, missing)
        finally:
            chain.later = frozenset()
        walked.end = max(before, limit)
        self._walked[node, key] = walked
        _check_epochs(node, name, log, walked)
        if is_new and chain.is_compacted and not is_first:
            _check_compacted(who, chain, log, limit, disk)

    def is_sound(self, key: Key, disk: SimDisk, paths: Sequence[str], offsets: range, max_epoch: int) -> bool:
        """Whether the files of a log hold exactly what is committed, from the start of `offsets` at least to their end.
        `max_epoch`: no later epoch had a leader."""
        if key in self._unseen:
            return False
        chain, reached, epoch = self._chain(key), offsets.start, -1
        for path in paths:
            data = disk.peek(path, 0, 1 << 62)
            try:
                for at, header in iterate_headers(data, path):
                    end = header.next_offset
                    if end <= offsets.start:
                        continue
                    is_known = end > chain.end or chain.is_same(end, header, data[at : at + header.size_bytes])
                    is_lost = not all(_may_lack(chain, gap) for gap in chain.between(reached, end - 1))
                    if is_lost or not is_known or end <= reached or not epoch <= header.leader_epoch <= max_epoch:
                        return False
                    reached, epoch = end, header.leader_epoch
            except CorruptBatch:
                return False
        return reached >= offsets.stop


def _batches(who: str, data: bytes, path: str) -> Iterator[tuple[int, BatchHeader]]:
    try:
        yield from iterate_headers(data, path)
    except CorruptBatch as error:
        raise Violation(STAYS, f"{who}: {error}") from error


def _judge(who: str, chain: _Chain, odd: Sequence[tuple[BatchHeader, bytes]], missing: Sequence[int]) -> None:
    for header, batch in odd:
        if not chain.is_same(header.next_offset, header, batch):
            raise _changed(who, chain, header.next_offset, header)
    _check_held(who, chain, missing)


def _keys_after(offset: int, log: SegmentedLog, disk: SimDisk) -> frozenset[bytes | None]:
    keys: set[bytes | None] = set()
    for segment in log.segments:
        data = disk.peek(segment.path, 0, segment.size)
        try:
            for at, header in iterate_headers(data, segment.path):
                if header.next_offset > offset:
                    keys.update(record.key for record in _decode(data[at : at + header.size_bytes]))
        except CorruptBatch:
            continue
    return frozenset(keys)


def _may_lack(chain: _Chain, end: int) -> bool:
    return chain.is_compacted and chain.lost_of(end) is None


def _check_held(who: str, chain: _Chain, missing: Sequence[int]) -> None:
    for end in missing:
        if not _may_lack(chain, end):
            lost = chain.lost_of(end) if chain.is_compacted else chain.records(end)[0]
            assert lost is not None
            raise Violation(
                HELD,
                f"{who} lacks the record at offset {lost.offset} (key {lost.key!r}), which is committed"
                + (" and the last of its key" if chain.is_compacted else ""),
            )


def _check_compacted(who: str, chain: _Chain, log: SegmentedLog, limit: int, disk: SimDisk) -> None:
    """Without its tombstone a deleted record would never be removed from this replica, which may lead one day."""
    last: dict[bytes | None, Record] = {}
    headers: list[BatchHeader] = []
    for segment in log.segments:
        if segment.base_offset >= limit:
            break
        for at, header in _batches(who, data := disk.peek(segment.path, 0, segment.size), segment.path):
            if header.next_offset <= limit:
                headers.append(header)
                last.update((one.key, one) for one in _decode(data[at : at + header.size_bytes]))
    chain.markers.check(who, headers, limit)
    deleted = chain.tombstones(limit)
    for key, record in last.items():
        if record.value is not None and log.log_start_offset <= record.offset < deleted.get(key, -1):
            raise Violation(
                DELETED,
                f"{who} has {key!r} at offset {record.offset}, which was deleted at {deleted[key]}, but not the "
                "tombstone",
            )


def _check_epochs(node: int, name: object, log: SegmentedLog, walked: _Walked) -> None:
    start, epoch_of = log.log_start_offset, log.epochs.epoch_of
    for epoch, offsets in walked.epochs.items():
        for offset in offsets:
            if offset >= start and (known := epoch_of(offset)) != epoch:
                raise Violation(
                    "leader epochs are those of the batches",
                    f"{name} on {node} has a batch of epoch {epoch} at offset {offset}, "
                    f"but its epoch file has epoch {known} there",
                )


def _changed(who: str, chain: _Chain, end: int, header: BatchHeader) -> Violation:
    known = chain.batches.get(end)
    was = "another" if known is None else f"one of epoch {known.leader_epoch} with checksum {known.crc:#x}"
    return Violation(
        STAYS,
        f"{who}: a batch up to {end} of epoch {header.leader_epoch} with checksum {header.crc:#x}; committed was {was}",
    )


def _decode(data: bytes) -> list[Record]:
    header, payload = read_header(data), memoryview(data)[HEADER_SIZE:]
    return list(iterate_records(header, decompress(header.compression, payload) if header.compression else payload))
