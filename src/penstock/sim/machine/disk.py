"""A disk in memory that behaves as badly as a real one may.

Fair faults, all drawn from the given `Random`:

- Power failure (`crash`): unsynced changes survive in any mixture. Every write since the last sync of its
  file is kept, lost, torn at a byte or a 512-byte sector, or left with any of its sectors (holes read as zeros, and
  a file may have grown by nothing else); a truncation is kept or lost; a new, renamed or removed name is kept or lost
  until its directory is synced. Sometimes only a prefix survives, as on a journalling file system; sometimes
  everything does.
- Process death (`kill`): open files are gone, the page cache stays.
- Crash at the k-th change (`crash_after`): SimCrash, which nothing catches, before or after the change.
- A full disk (`capacity`): a write takes what fits and raises ENOSPC. A new name may need a missing block.
- A failing write (`fail_write`): EIO, with any part of it done.
- A failing sync (`fail_sync`): EIO, and as on Linux the pages count as clean afterwards, whatever the disk has.
- Any other failing call (`fail_call`): with the given errno, and nothing done; for a write, any part.
- Bit rot (`flip_bit`) in stable bytes. A lost disk, replaced by an empty one (`replace`).

Not fair, and not simulated: losing synced bytes, reordering writes across a sync, breaking the atomicity of
a rename. Names obey the same paths as the real disk; there are no links and no permissions.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random

from penstock.ports.disk import Buffer
from penstock.sim.machine.content import Content
from penstock.sim.machine.directory import DiskDirectory

BLOCK = 4096
CALLS = ("write", "truncate", "sync", "open", "list", "make", "rename", "remove", "sync directory")
NEED_A_DESCRIPTOR = ("open", "list", "sync directory")
"""Calls that open something."""


class SimCrash(BaseException):
    """The machine stopped. Not an Exception, because no code may survive it."""


class SimFile:
    __slots__ = ("_content", "_disk", "_generation", "_is_open", "path")

    def __init__(self, disk: SimDisk, path: str, content: Content) -> None:
        self._disk = disk
        self._content = content
        self._generation = disk.generation
        self._is_open = True
        self.path = path

    def _check(self) -> Content:
        if not self._is_open or self._generation != self._disk.generation:
            raise OSError(errno.EBADF, "file is closed", self.path)
        return self._content

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return len(self._check().data)

    def read(self, position: int, size: int) -> bytes:
        data = self.send(position, size)
        return data if self._disk.misread is None else self._disk.misread(self.path, position, data)

    def send(self, position: int, size: int) -> bytes:
        """Like the kernel's sendfile."""
        return bytes(self._check().data[position : position + size])

    def write(self, position: int, parts: Sequence[Buffer]) -> int:
        content = self._check()
        data = b"".join(parts)
        with self._disk.boundary():
            if self._disk.fail_write is not None and self._disk.fail_write(self.path):
                content.change(position, data[: self._disk.random.randint(0, len(data))])
                raise OSError(errno.EIO, "input/output error", self.path)
            code = self._disk.failure("write", self.path)
            if code is not None:
                content.change(position, data[: self._disk.random.randint(0, len(data))])
                raise _error(code, self.path)
            room = self._disk.free_bytes() + max(0, len(content.data) - position)
            content.change(position, data[: max(room, 0)])
            if room < len(data):
                raise OSError(errno.ENOSPC, "no space left on device", self.path)
        return len(data)

    def truncate(self, size: int) -> None:
        content = self._check()
        with self._disk.boundary():
            self._disk.may_fail("truncate", self.path)
            content.change(size, None)

    def sync(self) -> None:
        self.sync_to(None)

    def mark(self) -> int:
        """Everything that a sync starting now must cover."""
        return self._content.mark

    def sync_to(self, mark: int | None) -> None:
        content = self._check()
        with self._disk.boundary():
            if self._disk.fail_sync is not None and self._disk.fail_sync(self.path):
                content.settle(self._disk.random, mark)
                raise OSError(errno.EIO, "input/output error", self.path)
            code = self._disk.failure("sync", self.path)
            if code is not None:
                content.settle(self._disk.random, mark)
                raise _error(code, self.path)
            content.sync(mark)

    def is_cached(self, position: int, size: int) -> bool:
        return not self._disk.is_cold

    def read_cached(self, position: int, size: int) -> bytes | None:
        data = None if self._disk.is_cold else self.read(position, size)
        return data if data is not None and len(data) == size else None

    def close(self) -> None:
        self._is_open = False


class _Boundary:
    """Surrounds every change: the machine may stop before or after it."""

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
        self.fail_write: Callable[[str], bool] | None = None
        self.fail_call: Callable[[str, str], int | None] | None = None
        """Called with the name of the call (one of CALLS) and the path; an errno makes it fail."""
        self.misread: Callable[[str, int, bytes], bytes] | None = None
        """Called with path, position and bytes; returns what a reader gets instead. Sent bytes are correct."""
        self.crash_after: int | None = None  # the number of `changes` at which to raise SimCrash
        self.on_crash: Callable[[], None] | None = None  # called before SimCrash is raised
        self.changes = 0
        self.generation = 0
        self._root = DiskDirectory()
        self._boundary = _Boundary(self)

    def boundary(self) -> _Boundary:
        return self._boundary

    # -- the port --------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        parent, name = self._parent(path)
        content = None if parent is None else parent.names.get(name)
        if isinstance(content, DiskDirectory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if content is not None or create:
            self.may_fail("open", path)
        if content is not None:
            return SimFile(self, path, content)
        if not create or parent is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        with self._boundary:
            self._find_room(path)
            content = Content()
            parent.change((parent, name, content))
        return SimFile(self, path, content)

    def list_directory(self, path: str) -> list[str]:
        directory = self._directory(path)
        self.may_fail("list", path)
        return sorted(directory.names)

    def exists(self, path: str) -> bool:
        return self._entry(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._entry(path), DiskDirectory)

    def make_directory(self, path: str) -> None:
        at = self._root
        for name in _names(path):
            entry = at.names.get(name)
            if isinstance(entry, Content):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            if entry is None:
                with self._boundary:
                    self.may_fail("make", path)
                    self._find_room(path)
                    entry = DiskDirectory()
                    at.change((at, name, entry))
            at = entry

    def remove(self, path: str) -> None:
        parent, name = self._parent(path)
        if parent is None or not isinstance(parent.names.get(name), Content):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        with self._boundary:
            self.may_fail("remove", path)
            parent.change((parent, name, None))

    def remove_directory(self, path: str) -> None:
        directory = self._entry(path)
        if not isinstance(directory, DiskDirectory):
            return
        for name in sorted(directory.names, reverse=True):
            if isinstance(directory.names[name], DiskDirectory):
                self.remove_directory(f"{path}/{name}")
            else:
                with self._boundary:
                    self.may_fail("remove", f"{path}/{name}")
                    directory.change((directory, name, None))
        parent, name = self._parent(path)
        assert parent is not None
        with self._boundary:
            parent.change((parent, name, None))

    def rename(self, old: str, new: str) -> None:
        parent, name = self._parent(old)
        target, new_name = self._parent(new)
        entry = None if parent is None else parent.names.get(name)
        if parent is None or target is None or entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        with self._boundary:
            self.may_fail("rename", new)
            self._find_room(new)
            target.change((parent, name, None), (target, new_name, entry))

    def link(self, old: str, new: str) -> None:
        parent, name = self._parent(old)
        target, new_name = self._parent(new)
        entry = None if parent is None else parent.names.get(name)
        if target is None or not isinstance(entry, Content):
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        if new_name in target.names:
            raise FileExistsError(errno.EEXIST, "file exists", new)
        with self._boundary:
            self._find_room(new)
            target.change((target, new_name, entry))

    def sync_directory(self, path: str, mark: int | None = None) -> None:
        """`mark`: from `names_mark`; later changes are left out."""
        directory = self._directory(path)
        with self._boundary:
            if self.fail_sync is not None and self.fail_sync(path):
                raise OSError(errno.EIO, "input/output error", path)
            self.may_fail("sync directory", path)
            directory.sync(mark)

    def new_lock(self) -> threading.Lock:
        return threading.Lock()

    def space(self, path: str) -> tuple[int, int]:
        total = self.capacity if self.capacity is not None else 1 << 40
        return total, self.free_bytes()

    # -- faults ----------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Power failure: from now on the disk holds what survived."""
        self._root.settle(self.random)
        self.kill()

    def stopped(self) -> SimCrash:
        if self.on_crash is not None:
            self.on_crash()
        return SimCrash()

    def kill(self) -> None:
        """Process death: open files are gone, nothing else."""
        self.generation += 1

    def replace(self) -> None:
        """Replace the disk with an empty one."""
        self._root = DiskDirectory()
        self.kill()

    def lose(self, path: str) -> None:
        """Lose a directory with its content, from the platter too. The machine is down."""
        parent, name = self._parent(path)
        assert parent is not None
        parent.sync()
        parent.names.pop(name, None)
        parent.stable.pop(name, None)
        parent.version += 1

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        self._content(path).flip_bit(position, bit)

    def failure(self, call: str, path: str) -> int | None:
        """The errno with which this call fails now."""
        return None if self.fail_call is None else self.fail_call(call, path)

    def may_fail(self, call: str, path: str) -> None:
        code = self.failure(call, path)
        if code is not None:
            raise _error(code, path)

    # -- inspection ------------------------------------------------------------------------------------------

    def names_mark(self, path: str) -> int:
        """Everything that a sync of this directory starting now must cover."""
        return self._directory(path).mark

    def names(self, path: str) -> list[str]:
        """Like `list_directory`, without failures."""
        return sorted(self._directory(path).names)

    def peek(self, path: str, position: int, end: int) -> bytes:
        """The bytes that a reader would see."""
        return bytes(self._content(path).data[position:end])

    def stable_size(self, path: str) -> int:
        content = self._content(path)
        return min(len(content.stable), len(content.data))

    def stable_directory(self, path: str) -> DiskDirectory | None:
        """The directory of this path on the platter."""
        at = self._root
        for name in _names(path):
            entry = at.stable.get(name)
            if not isinstance(entry, DiskDirectory):
                return None
            at = entry
        return at

    def free_bytes(self) -> int:
        if self.capacity is None:
            return 1 << 40
        return self.capacity - sum(len(content.data) for content in self._root.contents())

    def _find_room(self, path: str) -> None:
        """For a name: in an existing block with room, or in a new one."""
        if self.capacity is not None and self.free_bytes() < BLOCK and self.random.random() < 0.5:
            raise OSError(errno.ENOSPC, "no space left on device", path)

    # -- names -----------------------------------------------------------------------------------------------

    def _entry(self, path: str) -> Content | DiskDirectory | None:
        at: Content | DiskDirectory | None = self._root
        for name in _names(path):
            if not isinstance(at, DiskDirectory):
                return None
            at = at.names.get(name)
        return at

    def _directory(self, path: str) -> DiskDirectory:
        entry = self._entry(path)
        if not isinstance(entry, DiskDirectory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return entry

    def _content(self, path: str) -> Content:
        entry = self._entry(path)
        assert isinstance(entry, Content), "a file"
        return entry

    def _parent(self, path: str) -> tuple[DiskDirectory | None, str]:
        parent, _, name = path.rpartition("/")
        entry = self._entry(parent)
        return (entry if isinstance(entry, DiskDirectory) else None), name


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code).lower(), path)


@lru_cache(maxsize=4096)
def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name not in ("", "."))
