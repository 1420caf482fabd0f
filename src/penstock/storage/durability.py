"""Values passed between a log and the code that makes it durable.

A log never syncs on the append path. It hands out what must become stable; a flusher syncs it in threads and reports
back. Order is data: a `Flush` moves the stable offset only when it returns without error, and a `LogCheckpoint` is
stable before its recovery point may be written.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from penstock.model.errors import StorageError
from penstock.ports.disk import Disk, File
from penstock.storage.files import parent_of, write_whole
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.producers.snapshots import Snapshots
from penstock.storage.segments.segment import Segment

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_PASSING_AT_OPEN = (*NO_DESCRIPTOR, errno.ENOMEM, errno.EAGAIN, errno.EINTR)


class FlushPutOff(StorageError):
    """A flush could not begin, for example because no descriptor was free. Nothing is lost; it may be retried."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"a flush is postponed: {cause}")
        self.cause = cause


def is_passing(error: OSError) -> bool:
    """Whether a failed flush may be retried. No sync reports missing descriptors, so no sync was tried, and dirty
    pages are still dirty."""
    return error.errno in NO_DESCRIPTOR


def is_passing_at_open(error: OSError) -> bool:
    """The same for a file that could not be opened, before any sync."""
    return error.errno in _PASSING_AT_OPEN


class Position(NamedTuple):
    """An offset and its place: the base offset of the segment and the byte in its file."""

    offset: int
    segment: int
    position: int


class Flush:
    """Everything below `end` is stable once `files` and then `directories` are synced."""

    __slots__ = ("directories", "end", "files", "generation")

    def __init__(self, files: list[File], directories: list[str], end: Position, generation: int) -> None:
        self.files = files
        self.directories = directories
        self.end = end
        self.generation = generation


class Unsynced:
    """The unstable parts of one log, apart from its active segment."""

    __slots__ = ("_directories", "_directory", "_disk", "_flushing", "metadata", "paths", "segments")

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: list[Segment],
        directories: list[str],
        paths: list[str],
        metadata: list[str],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._directories = directories  # directories with changed names
        self._flushing: list[str] = []  # directories of the current flush
        self.segments = segments  # sealed
        self.paths = paths  # small files for the next checkpoint
        self.metadata = metadata  # partition.metadata, until the first flush

    @property
    def has_names(self) -> bool:
        return bool(self._directories)

    def names_changed(self) -> None:
        if self._directory not in self._directories:
            self._directories.append(self._directory)

    def directory_made(self) -> None:
        """The log's own directory is new, and so is its name in the parent directory."""
        self._directories = [self._directory, parent_of(self._directory)]

    def open_with(self, active: Segment) -> list[File]:
        """The files a flush syncs before directories, in this order. Raises OSError."""
        files = [segment.file() for segment in self.segments]
        files.append(active.file())
        files += [self._disk.open(path) for path in self.metadata]
        return files

    def take_directories(self) -> list[str]:
        self._flushing, self._directories = self._directories, []
        return self._flushing

    def put_back_directories(self) -> None:
        self._directories = list(dict.fromkeys([*self._flushing, *self._directories]))
        self._flushing = []

    def flush_ended(self) -> None:
        """The directories from `take_directories` are stable, and so is the topic id."""
        self._flushing = []
        self.metadata = []

    def sync_names(self) -> None:
        """Blocks. Includes the directories of the current flush, which may not be done."""
        for directory in dict.fromkeys([*self._flushing, *self._directories]):
            self._disk.sync_directory(directory)
        self._directories = []

    def forget(self, segments: list[Segment]) -> None:
        """These segments were deleted."""
        self.segments = [segment for segment in self.segments if segment not in segments]

    def flushed_to(self, segment_base: int) -> None:
        """All segments before this one are stable."""
        for segment in self.segments:
            if segment.base_offset < segment_base:
                segment.release()
        self.segments = [segment for segment in self.segments if segment.base_offset >= segment_base]


class EpochsFile(NamedTuple):
    """A copy of the leader epochs, to be written to `path`."""

    epochs: LeaderEpochs
    frozen: LeaderEpochs
    version: int
    path: str


class LogCheckpoint:
    """The files that recovery from `recovery_point` needs: indexes, leader epochs, producer snapshots.

    Indexes are already written; the rest is a copy of the current state. `make_stable` writes and syncs, so it
    belongs in a thread. Nothing counts as stable before it returns; `Log.end_checkpoint` follows.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_epochs",
        "_number",
        "_snapshots",
        "is_void",
        "paths",
        "recovery_point",
        "waiting",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        recovery_point: int,
        paths: list[str],
        epochs: EpochsFile | None,
        snapshots: Snapshots,
        number: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._epochs = epochs
        self._snapshots = snapshots
        self._number = number  # number of this checkpoint of the log
        self.waiting = snapshots.waiting
        self.paths = paths
        self.recovery_point = recovery_point
        self.is_void: Callable[[], bool] = lambda: False  # closed or cut: the directory may belong to another log

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to make stable."""
        return bool(self.paths) or bool(self.waiting) or self._epochs is not None

    def make_stable(self) -> None:
        """Raises OSError. A file that was deleted meanwhile is no longer needed."""
        if not self.is_needed:
            return
        for path in self.paths:
            with suppress(FileNotFoundError):
                self._snapshots.sync_file(path)
        for snapshot in self.waiting:
            self._put_in_place(snapshot.path, snapshot.producers.encode())
        if self._epochs is not None:
            self._put_in_place(self._epochs.path, self._epochs.frozen.encode())
        self._disk.sync_directory(self._directory)
        self._snapshots.are_stable(self.paths)
        if self._epochs is not None:
            self._epochs.epochs.stable_version = self._epochs.version

    def _put_in_place(self, path: str, data: bytes) -> None:
        """`is_void` also detects a file that was created in the directory of a new log with the same name."""
        temporary = f"{path}.{self._number}.tmp"
        try:
            write_whole(self._disk, temporary, data, sync=True)
            if self.is_void():
                raise FileNotFoundError(errno.ENOENT, "the log was closed or truncated meanwhile", path)
            self._disk.rename(temporary, path)
        except OSError:
            with suppress(OSError):
                self._disk.remove(temporary)
            raise


class Recovery:
    """The findings while a log was opened."""

    __slots__ = ("messages", "rebuilt_indexes", "scanned_bytes", "truncated_bytes")

    def __init__(self) -> None:
        self.scanned_bytes = 0
        self.truncated_bytes = 0
        self.rebuilt_indexes = 0
        self.messages: list[str] = []
