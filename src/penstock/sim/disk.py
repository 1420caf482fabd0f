"""A disk in memory that behaves as badly as a real one may.

Fair faults, all drawn from the `Random` it is given:
- Power failure (`crash`): what was not synced survives in any mixture. Every write since the last sync of its
  file is kept, lost, or torn at a byte or a 512-byte sector (holes read as zeros); a truncation is kept or lost;
  a new, renamed or removed name is kept or lost until its directory is synced. Sometimes a mere prefix survives,
  as on a journalling file system; sometimes everything does.
- Process death (`kill`): open files are gone, the page cache stays.
- Crash at the k-th change (`crash_after`): SimCrash, which nothing catches, before or after the change.
- A full disk (`capacity`): a write takes what fits and raises ENOSPC.
- A failing sync (`fail_sync`): EIO, and as on Linux the pages count as clean afterwards, whatever the disk has.
- Bit rot (`flip_bit`), in what is stable.

Not fair, and not done: losing bytes that were synced, reordering writes across a sync, breaking the atomicity of
a rename. Names obey the same paths as the real disk; there are no links and no permissions.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from penstock.ports.disk import Buffer

SECTOR = 512


class SimCrash(BaseException):
    """The machine stopped. Not an Exception: no code may survive it."""


class _Content:
    """The bytes of one file: what readers see, what is stable, and the changes in between."""

    __slots__ = ("changes", "data", "stable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.stable = bytearray()
        self.changes: list[tuple[int, bytes | None]] = []  # (position, bytes) or (new size, None)

    def change(self, position: int, data: bytes | None) -> None:
        self.changes.append((position, data))
        _apply(self.data, position, data)

    def sync(self) -> None:
        for position, data in self.changes:
            _apply(self.stable, position, data)
        self.changes.clear()

    def settle(self, random: Random) -> None:
        """Decide what reached the platter; the rest never happened."""
        mode = random.randrange(4)
        count = random.randint(0, len(self.changes)) if mode == 0 else len(self.changes)
        for position, data in self.changes[:count]:
            if mode < 2:
                _apply(self.stable, position, data)
                continue
            fate = random.randrange(4)
            if fate == 0:
                continue
            if fate == 1 and data:
                keep = random.randrange(len(data))
                if random.random() < 0.5:
                    keep = max(0, (position + keep) // SECTOR * SECTOR - position)
                data = data[:keep]
            _apply(self.stable, position, data)
        self.changes.clear()


def _apply(target: bytearray, position: int, data: bytes | None) -> None:
    if len(target) < position:
        target += bytes(position - len(target))
    if data is None:
        del target[position:]
    elif data:
        target[position : position + len(data)] = data


_Entry: TypeAlias = _Content | None  # None: a directory
_NameChange: TypeAlias = tuple[list[str], dict[str, _Entry]]  # what goes and what comes, as one


class SimFile:
    __slots__ = ("_content", "_disk", "_generation", "_is_open", "path")

    def __init__(self, disk: SimDisk, path: str, content: _Content) -> None:
        self._disk = disk
        self._content = content
        self._generation = disk.generation
        self._is_open = True
        self.path = path

    def _check(self) -> _Content:
        if not self._is_open or self._generation != self._disk.generation:
            raise OSError(errno.EBADF, "file is closed", self.path)
        return self._content

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return len(self._check().data)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._check().data[position : position + size])

    def write(self, position: int, parts: Sequence[Buffer]) -> int:
        content = self._check()
        data = b"".join(parts)
        with self._disk.boundary():
            room = self._disk.free_bytes() + max(0, len(content.data) - position)
            content.change(position, data[: max(room, 0)])
            if room < len(data):
                raise OSError(errno.ENOSPC, "no space left on device", self.path)
        return len(data)

    def truncate(self, size: int) -> None:
        content = self._check()
        with self._disk.boundary():
            content.change(size, None)

    def sync(self) -> None:
        content = self._check()
        with self._disk.boundary():
            if self._disk.fail_sync is not None and self._disk.fail_sync(self.path):
                content.settle(self._disk.random)
                raise OSError(errno.EIO, "input/output error", self.path)
            content.sync()

    def is_cached(self, position: int, size: int) -> bool:
        return not self._disk.is_cold

    def read_cached(self, position: int, size: int) -> bytes | None:
        data = None if self._disk.is_cold else self.read(position, size)
        return data if data is not None and len(data) == size else None

    def close(self) -> None:
        self._is_open = False


class _Boundary:
    """Around every change: the place where the machine may stop, before it or after it."""

    __slots__ = ("_disk",)

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def __enter__(self) -> None:
        disk = self._disk
        disk.changes += 1
        if disk.crash_after is not None and disk.changes > disk.crash_after:
            raise disk.stopped()
        if disk.crash_after is not None and disk.changes == disk.crash_after and disk.random.random() < 0.5:
            raise disk.stopped()

    def __exit__(self, *_: object) -> None:
        if self._disk.crash_after is not None and self._disk.changes >= self._disk.crash_after:
            raise self._disk.stopped()


class SimDisk:
    def __init__(self, random: Random, *, capacity: int | None = None) -> None:
        self.random = random
        self.capacity = capacity
        self.is_cold = False
        self.fail_sync: Callable[[str], bool] | None = None
        self.crash_after: int | None = None  # the number of `changes` at which to raise SimCrash
        self.on_crash: Callable[[], None] | None = None  # told before SimCrash is raised
        self.changes = 0
        self.generation = 0
        self._names: dict[str, _Entry] = {}
        self._stable_names: dict[str, _Entry] = {}
        self._name_changes: dict[str, list[_NameChange]] = {}  # by directory
        self._boundary = _Boundary(self)

    def boundary(self) -> _Boundary:
        return self._boundary

    # -- the port --------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if path in self._names:
            content = self._names[path]
            if content is None:
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            return SimFile(self, path, content)
        if not create or not self.is_directory(_parent(path)):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        with self._boundary:
            content = _Content()
            self._change_names(path, [], {path: content})
        return SimFile(self, path, content)

    def list_directory(self, path: str) -> list[str]:
        if not self.is_directory(path):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return sorted(name.rpartition("/")[2] for name in self._names if _parent(name) == path)

    def exists(self, path: str) -> bool:
        return path in self._names or self.is_directory(path)

    def is_directory(self, path: str) -> bool:
        return path in ("", "/", ".") or (path in self._names and self._names[path] is None)

    def make_directory(self, path: str) -> None:
        if self.is_directory(path):
            return
        self.make_directory(_parent(path))
        with self._boundary:
            self._change_names(path, [], {path: None})

    def remove(self, path: str) -> None:
        if self._names.get(path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        with self._boundary:
            self._change_names(path, [path], {})

    def remove_directory(self, path: str) -> None:
        for name in sorted(self._names, reverse=True):
            if name == path or name.startswith(path + "/"):
                with self._boundary:
                    self._change_names(name, [name], {})

    def rename(self, old: str, new: str) -> None:
        if old not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        with self._boundary:
            gone = [old]
            if self._names[old] is None:
                gone += [name for name in sorted(self._names) if name.startswith(old + "/")]
            for name in gone:  # a directory takes along what is in it, settled for simplicity
                for change in self._name_changes.pop(name, []):
                    self._settle_name(change)
            self._change_names(new, gone, {new + name[len(old) :]: self._names[name] for name in gone})

    def sync_directory(self, path: str) -> None:
        if not self.is_directory(path):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        with self._boundary:
            if self.fail_sync is not None and self.fail_sync(path):
                raise OSError(errno.EIO, "input/output error", path)
            for change in self._name_changes.pop(path, []):
                self._settle_name(change)

    def space(self, path: str) -> tuple[int, int]:
        total = self.capacity if self.capacity is not None else 1 << 40
        return total, self.free_bytes()

    # -- faults ----------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Power failure: from now on the disk holds what survived."""
        for directory in sorted(self._name_changes):
            changes = self._name_changes[directory]
            mode = self.random.randrange(3)
            count = self.random.randint(0, len(changes)) if mode == 0 else len(changes)
            for change in changes[:count]:
                if mode < 2 or self.random.random() < 0.5:
                    self._settle_name(change)
        self._name_changes.clear()
        self._drop_orphans()
        self._names = dict(self._stable_names)
        for path in sorted(self._names):
            content = self._names[path]
            if content is not None:
                content.settle(self.random)
                content.data = bytearray(content.stable)
        self.kill()

    def stopped(self) -> SimCrash:
        if self.on_crash is not None:
            self.on_crash()
        return SimCrash()

    def kill(self) -> None:
        """Process death: open files are gone, nothing else."""
        self.generation += 1

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        content = self._names[path]
        assert content is not None, "a file"
        content.data[position] ^= 1 << bit
        if position < len(content.stable):
            content.stable[position] ^= 1 << bit

    def stable_size(self, path: str) -> int:
        content = self._names[path]
        assert content is not None, "a file"
        return min(len(content.stable), len(content.data))

    def free_bytes(self) -> int:
        if self.capacity is None:
            return 1 << 40
        return self.capacity - sum(len(content.data) for content in self._names.values() if content is not None)

    # -- names -----------------------------------------------------------------------------------------------

    def _change_names(self, path: str, gone: list[str], come: dict[str, _Entry]) -> None:
        self._name_changes.setdefault(_parent(path), []).append((gone, come))
        for name in gone:
            del self._names[name]
        self._names.update(come)

    def _settle_name(self, change: _NameChange) -> None:
        for name in change[0]:
            self._stable_names.pop(name, None)
        self._stable_names.update(change[1])

    def _drop_orphans(self) -> None:
        """What lies in a directory that did not survive is lost with it."""
        for path in sorted(self._stable_names):
            parent = _parent(path)
            if parent not in ("", "/", ".") and self._stable_names.get(parent, 0) is not None:
                del self._stable_names[path]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
