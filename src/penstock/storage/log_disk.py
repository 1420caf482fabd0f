"""The disk as one log sees it, until the log releases its directory.

A worker may be cutting a log whose topic is deleted. The directory is renamed at once, and a new topic of the same name
may take its place. After `let_go` the worker can change no name, so it cannot touch the new topic's files.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from penstock.ports.disk import Disk, File


class LogDisk:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = disk.new_lock()  # held while one name changes, never during a sync
        self._is_over = False
        self.is_guarded = False
        """Only one worker changes names, and the log may release them meanwhile."""

    def let_go(self) -> None:
        """From now on every operation by name raises OSError. Open files stay open."""
        with self._lock:
            self._is_over = True

    @contextmanager
    def _changing(self, path: str) -> Iterator[None]:
        if self.is_guarded:
            with self._lock:
                self._check(path)
                yield
        else:
            self._check(path)
            yield

    def _check(self, path: str) -> None:
        if self._is_over:
            raise OSError(errno.ESTALE, "the log of this file was closed", path)

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            with self._changing(path):
                return self._disk.open(path, create=True)
        file = self._disk.open(path)
        if self._is_over:  # the file may belong to another log by now
            file.close()
        self._check(path)
        return file

    def list_directory(self, path: str) -> list[str]:
        return self._disk.list_directory(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._disk.is_directory(path)

    def make_directory(self, path: str) -> None:
        with self._changing(path):
            self._disk.make_directory(path)

    def remove(self, path: str) -> None:
        with self._changing(path):
            self._disk.remove(path)

    def remove_directory(self, path: str) -> None:
        with self._changing(path):
            self._disk.remove_directory(path)

    def rename(self, old: str, new: str) -> None:
        with self._changing(old):
            self._disk.rename(old, new)

    def link(self, old: str, new: str) -> None:
        with self._changing(old):
            self._disk.link(old, new)

    def sync_directory(self, path: str) -> None:
        self._check(path)
        self._disk.sync_directory(path)

    def new_lock(self) -> AbstractContextManager[object]:
        return self._disk.new_lock()

    def space(self, path: str) -> tuple[int, int]:
        return self._disk.space(path)
