"""A sparse index file: fixed-size entries of two increasing integers, looked up by either.

    .index       (relative offset u32, position u32)     8 bytes
    .timeindex   (timestamp i64, relative offset u32)   12 bytes

Entries of the active segment are in memory and written together when the segment is sealed, closed or checkpointed.
Entries of a sealed segment stay in the file and are found by binary search with positioned reads. So an append costs
no system call here, and a sealed segment no memory.
An index is a hint that can be rebuilt from the log: readers check the place an entry points to.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from struct import Struct

from penstock.model.errors import CorruptBatch
from penstock.ports.disk import Disk, File
from penstock.storage.files import read_at_once

OFFSET_ENTRY = Struct(">II")
TIME_ENTRY = Struct(">qI")
_BLOCK = 512  # entries read at once at the end of a search


class SparseIndex:
    """`_stored` entries are only in the file; then come those in memory, the first `_written` of them also on disk."""

    __slots__ = ("_columns", "_disk", "_entry", "_stored", "_written", "path")

    def __init__(self, disk: Disk, path: str, entry: Struct, *, exists: bool) -> None:
        self._disk = disk
        self.path = path
        self._entry = entry
        self._columns = (array("q"), array("q"))
        self._stored = -1 if exists else 0  # -1: unknown, the file was not read
        self._written = 0

    def __len__(self) -> int:
        return self.stored + len(self._columns[0])

    @property
    def stored(self) -> int:
        if self._stored < 0:
            try:
                file = self._disk.open(self.path)
            except FileNotFoundError:
                self._stored = 0
            else:
                self._stored = file.size() // self._entry.size
                file.close()
        return self._stored

    @property
    def is_on_disk(self) -> bool:
        return self._stored != 0 or self._disk.exists(self.path)

    def assume_empty(self) -> None:
        """There is no file, according to a listing of the directory."""
        self._stored = 0

    def append(self, first: int, second: int) -> None:
        self._columns[0].append(first)
        self._columns[1].append(second)

    def last(self) -> tuple[int, int] | None:
        firsts, seconds = self._columns
        if firsts:
            return firsts[-1], seconds[-1]
        if not self.stored:
            return None
        file = self._disk.open(self.path)
        try:
            return self._read(file, self._stored - 1)
        finally:
            file.close()

    def floor(self, column: int, key: int, *, may_wait: bool = True) -> tuple[int, int] | None:
        """The last entry whose `column` is at most `key`. May run in a thread.

        CorruptBatch: the file is shorter than before. NotCached: it is not in memory and the caller must not wait.
        """
        columns = self._columns
        memory = columns[column]
        if memory and memory[0] <= key:
            at = bisect_right(memory, key) - 1
            return columns[0][at], columns[1][at]
        if not self.stored:
            return None
        file = self._disk.open(self.path)
        try:
            count = self._count_to(file, column, key, may_wait=may_wait)
            return self._read(file, count - 1, may_wait=may_wait) if count else None
        finally:
            file.close()

    def truncate(self, column: int, bound: int) -> None:
        """Drop the entries whose `column` is `bound` or more, in memory and in the file."""
        memory = self._columns[column]
        keep = bisect_right(memory, bound - 1)
        del self._columns[0][keep:], self._columns[1][keep:]
        if not self.stored and not self._written:
            return
        file = self._disk.open(self.path)
        try:
            if not keep:
                try:
                    self._stored = self._count_to(file, column, bound - 1)
                except CorruptBatch:
                    self._stored = 0  # the rest of the file is not trusted
            self._written = min(self._written, keep)
            file.truncate((self._stored + self._written) * self._entry.size)
        finally:
            file.close()

    def clear(self) -> None:
        """Drop every entry, before a rebuild."""
        self._columns = (array("q"), array("q"))
        self._written = 0
        self._stored = 0
        if self._disk.exists(self.path):
            file = self._disk.open(self.path)
            file.truncate(0)
            file.close()

    def write(self) -> bool:
        """Bring the file up to date, not synced; False if it was."""
        firsts, seconds = self._columns
        if self._written == len(firsts):
            return False
        fresh = pack(self._entry, firsts[self._written :], seconds[self._written :])
        file = self._disk.open(self.path, create=True)
        try:
            file.write((self.stored + self._written) * self._entry.size, (fresh,))
        finally:
            file.close()
        self._written = len(firsts)
        return True

    def seal(self) -> None:
        """Write the file, even if empty, and keep nothing in memory."""
        if not self.write() and not len(self):
            self._disk.open(self.path, create=True).close()
        self._stored += self._written
        self._columns = (array("q"), array("q"))
        self._written = 0

    def is_sane(self, column: int, bound: int) -> bool:
        """A cheap check of the file: whole entries, the last two increasing, `column` of the last below `bound`."""
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError:
            return False
        try:
            size = file.size()
            count, rest = divmod(size, self._entry.size)
            if rest:
                return False
            if not count:
                return True
            last = self._read(file, count - 1)
            before = self._read(file, count - 2) if count > 1 else None
            return last[column] < bound and (before is None or before[0] < last[0])
        finally:
            file.close()

    def entries(self) -> list[tuple[int, int]]:
        """All entries; for tools and tests."""
        result: list[tuple[int, int]] = []
        if self.stored:
            file = self._disk.open(self.path)
            data = file.read(0, self._stored * self._entry.size)
            file.close()
            result = [self._entry.unpack_from(data, at) for at in range(0, len(data), self._entry.size)]
        return result + list(zip(*self._columns, strict=True))

    def _read(self, file: File, number: int, *, may_wait: bool = True) -> tuple[int, int]:
        first, second = self._entry.unpack(self._read_raw(file, number, 1, may_wait=may_wait))
        return first, second

    def _read_raw(self, file: File, number: int, count: int, *, may_wait: bool) -> bytes:
        position, size = number * self._entry.size, count * self._entry.size
        data = file.read(position, size) if may_wait else read_at_once(file, position, size)
        if len(data) < size:
            raise CorruptBatch(self.path, position, f"the index ends before entry {number + count}")
        return data

    def _count_to(self, file: File, column: int, key: int, *, may_wait: bool = True) -> int:
        """Number of entries in the file with a `column` of at most `key`."""
        low, high = 0, self._stored
        while high - low > _BLOCK:
            middle = (low + high) // 2
            if self._read(file, middle, may_wait=may_wait)[column] <= key:
                low = middle
            else:
                high = middle
        for entry in self._entry.iter_unpack(self._read_raw(file, low, high - low, may_wait=may_wait)):
            if entry[column] > key:
                break
            low += 1
        return low


def pack(entry: Struct, firsts: array[int], seconds: array[int]) -> bytes:
    """Like `entry.pack` for each entry, but by words: a large segment has 100,000 entries, and a roll blocks the loop.

    The second number of an entry takes one 32-bit word, the first number the rest.
    """
    words = entry.size // 4
    out = array("I", bytes(len(firsts) * entry.size))
    at = 0
    for column, size in (firsts, words - 1), (seconds, 1):
        big = column[:]
        if sys.byteorder == "little":
            big.byteswap()
        halves = array("I", big.tobytes())
        for half in range(2 - size, 2):
            out[at::words] = halves[half::2]
            at += 1
    return out.tobytes()
