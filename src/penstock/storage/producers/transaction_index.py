"""The `.txnindex` file of one segment: the transactions whose abort markers are in the segment, in order of the
markers.

    byte  size  field (34 bytes per entry, as in Kafka)
    0     2     version (0)
    2     8     producer id
    10    8     first offset
    18    8     last offset: of the marker
    26    8     last stable offset after the marker

Most segments have none, and no file. Entries of the active segment are in memory and are written together with the
other indexes; entries of a sealed segment are in the file only. Unlike other indexes, this one is not just a hint:
consumers and compaction drop the records of the transactions that it names. So only plausible entries are used, and an
implausible file is rebuilt from the batches (`replay.find_aborted`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from penstock.model.errors import CorruptBatch, NotCached
from penstock.ports.disk import Disk, File
from penstock.storage.files import read_at_once
from penstock.storage.producers.transactions import AbortedTransaction

ENTRY = Struct(">hqqqq")
VERSION = 0
_BLOCK = 512  # entries read at once
_MOST_BLOCKS = 8  # limit for a lookup on the event loop


class Overlapping(NamedTuple):
    entries: list[AbortedTransaction]
    is_complete: bool
    """True if no later entry, and no entry of a later segment, begins below the upper bound."""


class TransactionIndex:
    """`stored` entries are only in the file. Then follow the entries in memory, the first `_written` of them also on
    disk.
    """

    __slots__ = ("_disk", "_entries", "_stored", "_written", "path")

    def __init__(self, disk: Disk, path: str, *, stored: int) -> None:
        """`stored`: the number of entries in the file; -1: unknown, the file has not been read."""
        self._disk = disk
        self.path = path
        self._stored = stored
        self._entries: list[AbortedTransaction] = []
        self._written = 0

    @property
    def stored(self) -> int:
        if self._stored < 0:
            self._stored = self.file_size() // ENTRY.size
        return self._stored

    def file_size(self) -> int:
        """0: no file."""
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def __len__(self) -> int:
        return self.stored + len(self._entries)

    def frozen(self) -> TransactionIndex:
        """A copy of the current state, for a worker."""
        twin = TransactionIndex(self._disk, self.path, stored=self._stored)
        twin._entries = self._entries[:]
        return twin

    # -- growing and shrinking -------------------------------------------------------------------------------

    def append(self, entry: AbortedTransaction) -> None:
        self._entries.append(entry)

    def write(self) -> bool:
        """Bring the file up to date, not synced; False if it was up to date."""
        fresh = self._entries[self._written :]
        if not fresh:
            return False
        file = self._disk.open(self.path, create=True)
        try:
            file.write((self.stored + self._written) * ENTRY.size, (encode(fresh),))
        finally:
            file.close()
        self._written = len(self._entries)
        return True

    def seal(self) -> None:
        """Write the file and keep nothing in memory."""
        self.write()
        self._stored = self.stored + self._written
        self._entries = []
        self._written = 0

    def truncate(self, end_offset: int) -> bool:
        """Drop the entries of markers from `end_offset` on. Returns whether entries are left; without any the file is
        removed. Blocks.
        """
        keep = bisect_left(self._entries, end_offset, key=_last_offset)
        del self._entries[keep:]
        if self.stored and not keep:
            file = self._disk.open(self.path)
            try:
                self._stored = self._first_with(file, end_offset, may_wait=True)
            finally:
                file.close()
        self._written = min(self._written, keep)
        self._cut_file()
        return len(self) > 0

    def keep(self, entries: list[AbortedTransaction]) -> None:
        """The file begins with these entries: keep them in memory, and truncate the rest of the file. Blocks."""
        self._stored, self._entries, self._written = 0, entries[:], len(entries)
        self._cut_file()

    def _cut_file(self) -> None:
        if not len(self):
            if self._disk.exists(self.path):
                self._disk.remove(self.path)
            return
        count = self._stored + self._written
        if count:
            file = self._disk.open(self.path)
            try:
                file.truncate(count * ENTRY.size)
            finally:
                file.close()

    def were_written(self, count: int) -> None:
        """The file was replaced by one with `count` entries."""
        self._stored, self._entries, self._written = count, [], 0

    # -- looking up ------------------------------------------------------------------------------------------

    def overlapping(self, fetch_offset: int, upper_bound: int, *, may_wait: bool = True) -> Overlapping:
        """The transactions whose marker is at `fetch_offset` or later and which begin below `upper_bound`.

        CorruptBatch: the file has changed, or is implausible. NotCached: the file is not in memory and the caller must
        not wait, or would have to read too much.
        """
        found: list[AbortedTransaction] = []
        if self.stored:
            file = self._disk.open(self.path)
            try:
                number = self._first_with(file, fetch_offset, may_wait=may_wait)
                for block in range(number, self._stored, _BLOCK):
                    if not may_wait and block - number >= _MOST_BLOCKS * _BLOCK:
                        raise NotCached(self.path)
                    count = min(_BLOCK, self._stored - block)
                    if _collect(self._read(file, block, count, may_wait=may_wait), upper_bound, found):
                        return Overlapping(found, True)
            finally:
                file.close()
        first = bisect_left(self._entries, fetch_offset, key=_last_offset)
        return Overlapping(found, _collect(self._entries[first:], upper_bound, found))

    def entries(self) -> list[AbortedTransaction]:
        """All entries. Blocks; CorruptBatch as in `overlapping`."""
        if not self.stored:
            return self._entries[:]
        file = self._disk.open(self.path)
        try:
            return self._read(file, 0, self._stored, may_wait=True) + self._entries
        finally:
            file.close()

    def sound_entries(self, base_offset: int, end_offset: int, scanned_from: int) -> list[AbortedTransaction]:
        """For a file that has not been read yet: the entries of markers below `scanned_from`, in a segment from
        `base_offset` to `end_offset`. Later entries may be torn. Blocks; CorruptBatch: the entries are implausible."""
        file = self._disk.open(self.path)
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        found: list[AbortedTransaction] = []
        before = base_offset - 1
        for at in range(0, len(data), ENTRY.size):
            entry = _decode(data[at : at + ENTRY.size])
            if entry is None or not before < entry.last_offset:
                raise CorruptBatch(self.path, at, "invalid entry of an aborted transaction")
            if entry.last_offset >= scanned_from:
                break
            if entry.last_offset >= end_offset:
                raise CorruptBatch(self.path, at, f"an entry of offset {entry.last_offset}, beyond the segment")
            found.append(entry)
            before = entry.last_offset
        return found

    def _first_with(self, file: File, last_offset: int, *, may_wait: bool) -> int:
        """The number of the first entry in the file whose marker is at `last_offset` or later."""
        low, high = 0, self.stored
        while high - low > _BLOCK:
            middle = (low + high) // 2
            if self._read(file, middle, 1, may_wait=may_wait)[0].last_offset < last_offset:
                low = middle + 1
            else:
                high = middle
        return low + bisect_left(self._read(file, low, high - low, may_wait=may_wait), last_offset, key=_last_offset)

    def _read(self, file: File, number: int, count: int, *, may_wait: bool) -> list[AbortedTransaction]:
        position, size = number * ENTRY.size, count * ENTRY.size
        data = file.read(position, size) if may_wait else read_at_once(file, position, size)
        found: list[AbortedTransaction] = []
        for at in range(0, size, ENTRY.size):
            entry = _decode(data[at : at + ENTRY.size])
            if entry is None:
                raise CorruptBatch(self.path, position + at, "invalid entry of an aborted transaction")
            found.append(entry)
        return found


def _last_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset


def _decode(data: bytes) -> AbortedTransaction | None:
    """None: the bytes are implausible."""
    if len(data) < ENTRY.size:
        return None
    version, *fields = ENTRY.unpack(data)
    entry = AbortedTransaction(*fields)
    return entry if version == VERSION and 0 <= entry.first_offset < entry.last_offset else None


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(ENTRY.pack(VERSION, *entry) for entry in entries)


def collect(entries: Iterable[AbortedTransaction], fetch_offset: int, upper_bound: int) -> Overlapping:
    """The same as `TransactionIndex.overlapping`, for these entries."""
    found: list[AbortedTransaction] = []
    is_complete = _collect((entry for entry in entries if entry.last_offset >= fetch_offset), upper_bound, found)
    return Overlapping(found, is_complete)


def _collect(entries: Iterable[AbortedTransaction], upper_bound: int, found: list[AbortedTransaction]) -> bool:
    """Adds to `found`. Returns whether no later entry can begin below the bound."""
    for entry in entries:
        if entry.first_offset < upper_bound:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound:
            return True
    return False
