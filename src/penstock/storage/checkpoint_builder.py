"""What is written so that recovery can begin at the recovery point: index entries, leader epochs, producer snapshots.

Handed out as a `LogCheckpoint`, for others to write and make stable; only index entries are written here, without a
sync. Must not know: when a checkpoint is due, where its recovery point is kept.
"""

from __future__ import annotations

from penstock.ports.disk import Disk
from penstock.storage.durability import EpochsFile, LogCheckpoint, Unsynced
from penstock.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.producer_state import ProducerStates
from penstock.storage.recovery import replay_producers
from penstock.storage.segments import Segments
from penstock.storage.snapshots import Snapshots

_SNAPSHOT_EVERY_BYTES = 4 << 20  # at a checkpoint; less is replayed from the headers as fast


class CheckpointBuilder:
    """Of one log."""

    __slots__ = (
        "_directory",
        "_disk",
        "_epochs",
        "_prepared",
        "_segments",
        "_snapshot_bytes",
        "_unsynced",
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
        self._snapshot_bytes = segments.size_bytes  # what the log held at the last snapshot
        self._prepared = 0

    def prepare(
        self, producers: ProducerStates, log_end_offset: int, stable_offset: int, *, closing: bool
    ) -> LogCheckpoint:
        """`closing`: the snapshot is exact. Raises OSError; what was written by then is due at the next one."""
        active = self._segments.active
        if len(active.index):  # a short segment is walked as fast as its index is read
            if closing:
                active.add_time_entry()
            for index in (active.index, active.time_index):
                if index.write():
                    self._unsynced.paths.append(index.path)
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
        """It is stable. Raises OSError."""
        if checkpoint.waiting:
            self.snapshots.were_written(checkpoint.waiting)
            self.snapshots.drop_strays(self._segments.bases)

    def put_back(self, checkpoint: LogCheckpoint) -> None:
        """It could not be made stable: the next one has to."""
        self._unsynced.paths = list(dict.fromkeys([*checkpoint.paths, *self._unsynced.paths]))

    def _is_snapshot_due(self, producers: ProducerStates, log_end_offset: int, closing: bool) -> bool:
        """Recovery begins with the newest snapshot, or with nothing at the base of the recovery point's segment."""
        newest = self.snapshots.offsets[-1] if self.snapshots.offsets else 0
        if not len(producers) and not self.snapshots.offsets:
            return False
        if newest < self._segments.active.base_offset:  # the one of the roll was lost in a crash
            return True
        if closing:
            return newest != log_end_offset or producers.is_dirty
        return producers.is_dirty and abs(self._segments.size_bytes - self._snapshot_bytes) > _SNAPSHOT_EVERY_BYTES

    def take_snapshot(self, producers: ProducerStates, log_end_offset: int) -> None:
        """Write the producer state before `log_end_offset`; stable after the next checkpoint."""
        self._unsynced.paths.append(self.snapshots.take(producers, log_end_offset))
        self.snapshots.drop_strays(self._segments.bases)

    def plan_snapshot(self, producers: ProducerStates, offset: int) -> list[str]:
        """For the next checkpoint; its path if it was written at once.

        At a roll always, once there ever were producers: so that recovery replays one segment at most.
        """
        if not len(producers) and not self.snapshots.offsets:
            return []
        self._snapshot_bytes = self._segments.size_bytes
        return self.snapshots.take_later(producers, offset)

    def secure_producers(self, producers: ProducerStates, offset: int) -> None:
        """Before the batches below `offset` go, a stable snapshot knows what they said of producers.

        Blocks only when no checkpoint has made it stable yet.
        """
        snapshots, segments = self.snapshots, self._segments
        if not len(producers) or snapshots.path(offset) in snapshots.stable_paths:
            return
        newest = snapshots.load_newest(offset)
        if newest is None or newest[0] != offset:
            snapshots.take(replay_producers(segments.items, snapshots, segments.bases[0], offset), offset)
        snapshots.make_stable(offset)

    def producers_after_cut(self, producers: ProducerStates, end_offset: int) -> ProducerStates:
        """The state before `end_offset`, where the log was cut. Blocks."""
        if len(producers) or self.snapshots.offsets:
            start = self._segments.bases[0]
            producers = replay_producers(self._segments.items, self.snapshots, start, end_offset)
            self.snapshots.drop_useless(producers, end_offset)
        self._snapshot_bytes = 0
        return producers
