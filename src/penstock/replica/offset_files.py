"""The checkpoint files beside the logs: recovery points, log starts, cleaned offsets and high watermarks by partition.

The files are read once. A partition takes its offsets over when it is opened. The offsets of the others are written
again with every file until all partitions are opened; then `forget_all` drops the rest. Writes are prepared on the loop
and may run in a worker, one at a time: see `Housekeeping.checkpoint`.

The files know topics by name. The offsets of a deleted topic must be off the disk before a new topic of that name takes
records: after a crash the new log would be truncated to the old offsets (`forget`, `speaks_of_former`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import NamedTuple, TypeAlias

from penstock.model.errors import StorageError
from penstock.ports.disk import Disk
from penstock.replica.partition import Partition
from penstock.storage import checkpoints

Key: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Key, int]


class KnownOffsets(NamedTuple):
    """Offsets of a partition from the last run."""

    recovery_point: int = 0
    log_start: int = 0
    cleaned: int = 0
    high_watermark: int = 0


class OffsetFiles:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._recovery_points: Offsets = {}
        self._log_starts: Offsets = {}
        self._cleaned: Offsets = {}
        self._high_watermarks: Offsets = {}
        self._written_cleaned: Offsets | None = {}  # None: a write failed, the content of the file is unknown
        self._written_high_watermarks: Offsets | None = {}
        self._said: dict[Key, None] = {}  # partitions that may be in a file
        self._gone: dict[Key, int] = {}  # when each was forgotten, in `turn`s
        self.turn = 0
        self._is_writing = Lock()

    def read(self) -> None:
        self._recovery_points = self._read(checkpoints.RECOVERY_POINTS)
        self._log_starts = self._read(checkpoints.LOG_START_OFFSETS)
        self._cleaned = self._read(checkpoints.CLEANED_OFFSETS)
        self._high_watermarks = self._read(checkpoints.HIGH_WATERMARKS)
        self._written_cleaned = dict(self._cleaned)
        self._written_high_watermarks = dict(self._high_watermarks)
        files = (self._recovery_points, self._log_starts, self._cleaned, self._high_watermarks)
        self._said = {key: None for file in files for key in file}

    def _read(self, name: str) -> Offsets:
        return checkpoints.read_offsets(self._disk, f"{self._directory}/{name}")

    def take(self, key: Key) -> KnownOffsets:
        """Hand over the offsets; from now on the partition supplies them."""
        return KnownOffsets(
            self._recovery_points.pop(key, 0),
            self._log_starts.pop(key, 0),
            self._cleaned.pop(key, 0),
            self._high_watermarks.pop(key, 0),
        )

    def forget(self, key: Key) -> None:
        """The partition is gone: writes prepared earlier leave it out too."""
        self.take(key)
        self.turn += 1
        self._gone[key] = self.turn

    def speaks_of_former(self, key: Key) -> bool:
        """Whether a file may list a deleted partition of this name. True until all files are written again."""
        return key in self._gone and key in self._said

    def written_since(self, turn: int) -> None:
        """Writes that were prepared before `turn` will no longer happen."""
        self._gone = {key: at for key, at in self._gone.items() if at > turn}

    def forget_all(self, partitions: Iterable[Partition]) -> None:
        """Drop the remaining offsets: they belong to topics deleted just before a crash, for example. Blocks."""
        has_leftovers = bool(self._recovery_points or self._log_starts)
        for left in (self._recovery_points, self._log_starts, self._cleaned, self._high_watermarks):
            left.clear()
        if has_leftovers:
            self.prepare(partitions)()
        else:
            self._write_cleaned(_cleaned_offsets(partitions))

    def prepare(
        self, partitions: Iterable[Partition], risen: Sequence[tuple[Partition, int]] = ()
    ) -> Callable[[], None]:
        """Prepare all files as of now; the returned function writes them. `risen`: new recovery points to include."""
        hosted = list(partitions)
        recovery_points = self._recovery_points | {_key(one): one.log.persisted_recovery_point for one in hosted}
        recovery_points |= {_key(one): offset for one, offset in risen if not one.is_deleted}
        log_starts = self._log_starts | {
            _key(one): one.log.log_start_offset for one in hosted if one.log.log_start_offset
        }
        cleaned = self._cleaned | _cleaned_offsets(hosted)
        high_watermarks = self._high_watermarks | _high_watermarks(hosted)
        turn = self.turn
        self._said = self._said | dict.fromkeys(recovery_points)  # may be written even if forgotten later

        def write() -> None:
            with self._is_writing:
                files = [self._living(one, turn) for one in (recovery_points, log_starts, cleaned, high_watermarks)]
                said = {key: None for file in files for key in file}
                self._said = self._said | said
                self._write(checkpoints.RECOVERY_POINTS, files[0])
                self._write(checkpoints.LOG_START_OFFSETS, files[1])
                self._write_cleaned(files[2])
                self._write_high_watermarks(files[3])
                self._said = said

        return write

    def prepare_high_watermarks(self, partitions: Iterable[Partition]) -> Callable[[], None]:
        high_watermarks = self._high_watermarks | _high_watermarks(partitions)
        turn = self.turn
        self._said = self._said | dict.fromkeys(high_watermarks)

        def write() -> None:
            with self._is_writing:
                living = self._living(high_watermarks, turn)
                self._said = self._said | dict.fromkeys(living)
                self._write_high_watermarks(living)

        return write

    def _living(self, offsets: Offsets, turn: int) -> Offsets:
        gone = self._gone  # of this moment: the loop may replace the dict
        return {key: offset for key, offset in offsets.items() if gone.get(key, 0) <= turn}

    def _write_cleaned(self, cleaned: Offsets) -> None:
        """Writes only changes: most brokers compact little."""
        if cleaned != self._written_cleaned:
            self._written_cleaned = None
            self._write(checkpoints.CLEANED_OFFSETS, cleaned)
            self._written_cleaned = cleaned

    def _write_high_watermarks(self, high_watermarks: Offsets) -> None:
        """Writes only changes: an idle broker, or a sole one, writes nothing."""
        if high_watermarks != self._written_high_watermarks:
            self._written_high_watermarks = None
            self._write(checkpoints.HIGH_WATERMARKS, high_watermarks)
            self._written_high_watermarks = high_watermarks

    def _write(self, name: str, offsets: Offsets) -> None:
        path = f"{self._directory}/{name}"
        try:
            checkpoints.write_offsets(self._disk, path, offsets)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error}") from error


def _key(partition: Partition) -> Key:
    return partition.topic, partition.index


def _cleaned_offsets(partitions: Iterable[Partition]) -> Offsets:
    return {_key(one): one.log.cleaned_offset for one in partitions if one.log.cleaned_offset > 0}


def _high_watermarks(partitions: Iterable[Partition]) -> Offsets:
    """The high watermarks of partitions with several replicas: a sole replica's log is committed to its end."""
    return {_key(one): one.high_watermark for one in partitions if len(one.replicas) > 1}
