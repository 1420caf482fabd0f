"""The disk port: files with explicit positions, directories, and slices of files.

Two implementations: `runtime.disk.OsDisk` (system calls) and `sim.machine.disk.SimDisk`
(memory; loses unsynced bytes, tears writes, flips bits, fills up).

Guarantees

- `File.write` writes every byte or raises OSError; after an error the bytes between
  `position` and the intended end are undefined and the caller must truncate.
- Bytes survive a power failure only after `File.sync` returned, and the name of a new
  or renamed file only after `Disk.sync_directory` of its parent returned.
- After `File.sync` raised, the state of the unsynced bytes is unknown forever.
- An unlinked file stays readable through open `File`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Closed by `close`, or with the last reference."""

    @property
    def path(self) -> str: ...

    def fileno(self) -> int:
        """The kernel's descriptor, or -1 if this is not a kernel file."""
        ...

    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; shorter only at the end of the file."""
        ...

    def write(self, position: int, parts: Sequence[Buffer]) -> int:
        """Write all parts in order at `position`; return the byte count."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Block until content and size are stable (fdatasync)."""
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Whether this range can be read from memory without waiting."""
        ...

    def read_cached(self, position: int, size: int) -> bytes | None:
        """The whole range if it is in memory; None if it is not, or unknown. Never waits."""
        ...

    def close(self) -> None: ...


class FileSlice:
    """A byte range of an open file, so that a fetch payload goes to the socket without being read."""

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
        """Open for reading and writing. FileNotFoundError if missing and not `create`."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Sorted names."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """With parents; no error if it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """With everything below it; no error if it is missing."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces an existing file of the new name."""
        ...

    def link(self, old: str, new: str) -> None:
        """Add a second name for a file. Raises OSError if links are not supported or the name exists."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def new_lock(self) -> AbstractContextManager[object]:
        """A lock for operations of the loop and a worker on one directory."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume."""
        ...
