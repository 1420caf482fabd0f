"""Prepares what recovery from the recovery point needs: index entries, leader epochs, producer snapshots.

The result is a `LogCheckpoint` that others write and make stable; only index entries are written here, without a
sync. Must not know: when a checkpoint is due, where its recovery point is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from penstock.ports.disk import Disk
from penstock.storage.durability import EpochsFile, LogCheckpoint, Unsynced
from penstock.storage.files import write_atomic
from penstock.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.producers.producer_state import ProducerStates
from penstock.storage.producers.snapshots import Snapshots
from penstock.storage.replay import replay_producers
from penstock.storage.segments.segment import Segment
from penstock.storage.segments.segments import Segments

_SNAPSHOT_EVERY_BYTES = 4 << 20  # minimum between snapshots at a checkpoint; less is replayed from the headers as fast


class ProducersBefore:
    """Makes a stable producer snapshot before batches are deleted. Runs in a worker."""

    __slots__ = ("_disk", "_files", "_is_needed", "_needless", "_segments", "_snapshots", "_waiting", "offset")

    def __init__(
        self, disk: Disk, snapshots: Snapshots, doomed: Sequence[Segment], offset: int, *, is_needed: bool
    ) -> None:
        self._disk = disk
        self._snapshots = snapshots
        self.offset = offset
        self._is_needed = is_needed and snapshots.path(offset) not in snapshots.stable_paths
        self._waiting = snapshots.waiting_at(offset)
        self._files = snapshots.copy_of_files()
        self._needless = snapshots.needless_before(offset)
        self._segments = [segment.view() for segment in doomed] if self._is_needed else []

    def make_stable(self) -> None:
        """Blocks; for a worker. Raises OSError, CorruptBatch."""
        if not self._is_needed:
            return
        if self._waiting is not None:
            write_atomic(self._disk, self._waiting.path, self._waiting.producers.encode())
            return
        files, offset = self._files, self.offset
        newest = files.load_newest(offset)
        if newest is None or newest[0] != offset:
            start = self._segments[0].base_offset
            files.take(replay_producers(self._segments, files, start, offset), offset)
        files.make_stable(offset)

    def remove_needless(self) -> None:
        """Remove snapshots of deleted batches. Blocks; for a worker. Raises OSError."""
        for offset in self._needless:
            with suppress(FileNotFoundError):
                self._disk.remove(self._files.path(offset))

    def end(self, *, is_stable: bool, are_removed: bool) -> None:
        """On the loop again: record how far the worker came."""
        self._snapshots.doubt(self._files)
        if is_stable and self._is_needed:
            self._snapshots.is_there(self.offset, self._waiting)
        if are_removed:
            self._snapshots.were_removed(self._needless)


class CheckpointBuilder:
    """Builds the checkpoints of one log."""

    __slots__ = (
        "_directory",
        "_disk",
        "_epochs",
        "_prepared",
        "_segments",
        "_snapshot_bytes",
        "_unsynced",
        "is_deleting",
        "snapshots",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: Segments,
        epochs: LeaderEpochs,
        snapshots: Snapshots,
        unsynced: Unsynced,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._epochs = epochs
        self._unsynced = unsynced
        self.snapshots = snapshots
        self._snapshot_bytes = segments.size_bytes  # size of the log at the last snapshot
        self._prepared = 0
        self.is_deleting = False  # a worker is deleting old segments

    def prepare(
        self, producers: ProducerStates, log_end_offset: int, stable_offset: int, *, closing: bool
    ) -> LogCheckpoint:
        """`closing`: the snapshot is exact. Raises OSError; files written by then are in the next checkpoint."""
        active = self._segments.active
        if len(active.index):  # walking a short segment is as fast as reading its index
            if closing:
                active.add_time_entry()
            for index in (active.index, active.time_index):
                if index.write():
                    self._unsynced.paths.append(index.path)
        if active.transaction_index is not None and active.transaction_index.write():
            self._unsynced.paths.append(active.transaction_index.path)
        if self._is_snapshot_due(producers, log_end_offset, closing):
            self._unsynced.paths += self.plan_snapshot(producers, log_end_offset)
        paths, self._unsynced.paths = self._unsynced.paths, []
        epochs = self._epochs
        path = f"{self._directory}/{LEADER_EPOCHS}"
        file = (
            EpochsFile(epochs, epochs.copy(), epochs.version, path) if epochs.is_dirty else None
        )  # until it is stable
        self._prepared += 1
        return LogCheckpoint(self._disk, self._directory, stable_offset, paths, file, self.snapshots, self._prepared)

    def end(self, checkpoint: LogCheckpoint) -> None:
        """The checkpoint is stable. Raises OSError."""
        if checkpoint.waiting:
            self.snapshots.were_written(checkpoint.waiting)
            if not self.is_deleting:  # the worker may need snapshots of segments being deleted
                self.snapshots.drop_strays(self._segments.bases)

    def put_back(self, checkpoint: LogCheckpoint) -> None:
        """The checkpoint failed: the next one must make its files stable."""
        self._unsynced.paths = list(dict.fromkeys([*checkpoint.paths, *self._unsynced.paths]))

    def _is_snapshot_due(self, producers: ProducerStates, log_end_offset: int, closing: bool) -> bool:
        """Recovery begins with the newest snapshot, or without one at the base of the recovery point's segment."""
        newest = self.snapshots.offsets[-1] if self.snapshots.offsets else 0
        if not len(producers) and not self.snapshots.offsets:
            return False
        if newest < self._segments.active.base_offset:  # the snapshot of the roll was lost in a crash
            return True
        if closing:
            return newest != log_end_offset or producers.is_dirty
        return producers.is_dirty and abs(self._segments.size_bytes - self._snapshot_bytes) > _SNAPSHOT_EVERY_BYTES

    def take_snapshot(self, producers: ProducerStates, log_end_offset: int) -> None:
        """Write the producer state before `log_end_offset`; stable after the next checkpoint."""
        self._unsynced.paths.append(self.snapshots.take(producers, log_end_offset))
        self.snapshots.drop_strays(self._segments.bases)

    def plan_snapshot(self, producers: ProducerStates, offset: int) -> list[str]:
        """Plan a snapshot for the next checkpoint; return its path if it was written at once.

        A roll always plans one if the log ever had producers, so that recovery replays one segment at most.
        """
        if not len(producers) and not self.snapshots.offsets:
            return []
        self._snapshot_bytes = self._segments.size_bytes
        return self.snapshots.take_later(producers, offset)

    def producers_before(self, producers: ProducerStates, doomed: Sequence[Segment], offset: int) -> ProducersBefore:
        """For a worker, before the batches of `doomed`, all below `offset`, are deleted."""
        return ProducersBefore(self._disk, self.snapshots, doomed, offset, is_needed=len(producers) > 0)

    def producers_after_cut(self, producers: ProducerStates, end_offset: int) -> ProducerStates:
        """The state before `end_offset`, where the log was cut. Blocks."""
        if len(producers) or self.snapshots.offsets:
            start = self._segments.bases[0]
            producers = replay_producers(self._segments.items, self.snapshots, start, end_offset)
            self.snapshots.drop_useless(producers, end_offset)
        self._snapshot_bytes = 0
        return producers
