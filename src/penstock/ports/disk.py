"""The disk port: files with explicit positions, directories, and slices of files.

Two implementations: `runtime.disk.OsDisk` (system calls) and `sim.machine.disk.SimDisk`
(memory; loses what was not synced, tears writes, flips bits, fills up).

What a caller may rely on:
- `File.write` writes every byte or raises OSError; after an error the bytes between
  `position` and the intended end are undefined and the caller must truncate.
- Bytes survive a power failure only after `File.sync` returned, and the name of a new
  or renamed file only after `Disk.sync_directory` of its parent returned.
- After `File.sync` raised, nothing is known about the unsynced bytes, ever.
- An unlinked file stays readable through open `File`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Closed by `close`, or when the last reference goes."""

    @property
    def path(self) -> str: ...

    def fileno(self) -> int:
        """The kernel's descriptor, or -1 when no kernel file stands behind this one."""
        ...

    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; shorter only at the end of the file."""
        ...

    def write(self, position: int, parts: Sequence[Buffer]) -> int:
        """Write all parts one after the other at `position`; returns the byte count."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Block until content and size are stable (fdatasync)."""
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Whether reading this range would be served from memory without waiting."""
        ...

    def read_cached(self, position: int, size: int) -> bytes | None:
        """The whole range if it is in memory; None: it is not, or that cannot be told. Never waits."""
        ...

    def close(self) -> None: ...


class FileSlice:
    """A byte range of an open file: how a fetch payload travels to the socket unread."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def read(self) -> bytes:
        return self.file.read(self.position, self.size)

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path}, {self.position}, {self.size})"


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Missing and not `create`: FileNotFoundError."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Names, sorted."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """With parents; no error when it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """With everything below it; no error when it is gone."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file of the new name."""
        ...

    def link(self, old: str, new: str) -> None:
        """A second name for a file. Raises OSError where there are no such links, or the new name is taken."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def new_lock(self) -> AbstractContextManager[object]:
        """For what the loop and a worker may do to one directory at the same time."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume."""
        ...
