"""The disk port over system calls: positioned reads and vectored writes, fdatasync, no buffering of its own.

Must not know: logs. A file holds exactly one descriptor, closed by `close` or with the last reference, so a slice on
its way to a socket outlives the deletion of its segment.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Sequence

from penstock.ports.disk import Buffer

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class OsFile:
    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        # Short only at the end of the file, or after a signal.
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._fd, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write(self, position: int, parts: Sequence[Buffer]) -> int:
        size = sum(map(len, parts))
        written = os.pwritev(self._fd, parts, position)
        if written != size:
            self._write_rest(position, parts, written)
        return size

    def _write_rest(self, position: int, parts: Sequence[Buffer], written: int) -> None:
        """The kernel wrote less than offered (a signal, or the disk is filling up): continue until it raises."""
        rest = memoryview(b"".join(parts))
        while written < len(rest):
            taken = os.pwrite(self._fd, rest[written:], position + written)
            if taken == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            written += taken

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def is_cached(self, position: int, size: int) -> bool:
        """Probes the first and the last page: the pages between were read ahead or written with them."""
        return self._probe(position) and (size <= 1 or self._probe(position + size - 1))

    def _probe(self, position: int) -> bool:
        try:
            os.preadv(self._fd, [bytearray(1)], position, os.RWF_NOWAIT)
        except OSError as error:
            # The reader, off the loop, reports any other error.
            return error.errno in _UNSUPPORTED
        return True

    def read_cached(self, position: int, size: int) -> bytes | None:
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, (buffer,), position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:  # such file systems count as cached, as in `is_cached`
                return None
            got = os.preadv(self._fd, (buffer,), position)
        return bytes(buffer) if got == size else None

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsDisk:
    """All paths are used as given; relative ones are relative to the process."""

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(path, os.open(path, flags, 0o644))

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def new_lock(self) -> threading.Lock:
        return threading.Lock()

    def space(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
