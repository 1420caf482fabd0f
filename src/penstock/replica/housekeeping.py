"""Periodic work on the logs of a broker: retention, `flush.ms`, checkpoints, removal of deleted files.

Runs on timers of the node; blocking work is done in workers. Only one task at a time writes the checkpoint files. Must
not know: how partitions come and go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial

from penstock.model.errors import NotCached, StorageError
from penstock.ports.clock import Clock
from penstock.ports.workers import Workers
from penstock.replica.offset_files import Key, OffsetFiles
from penstock.replica.partition import Partition
from penstock.storage.deletion import Deletion
from penstock.storage.durability import LogCheckpoint
from penstock.storage.group_commit import GroupCommit
from penstock.storage.log import Log
from penstock.storage.segments.timestamps import SegmentTimes

log = logging.getLogger(__name__)

PIECE = 64  # partitions handled in one turn
LOOKED_AT_PER_TURN = 200  # partitions that mostly need nothing


class Housekeeping:
    def __init__(
        self,
        partitions: Iterable[Partition],
        offsets: OffsetFiles,
        commit: GroupCommit,
        workers: Workers,
        clock: Clock,
    ) -> None:
        """`partitions`: yields the currently hosted partitions whenever it is iterated."""
        self._partitions = partitions
        self._offsets = offsets
        self._commit = commit
        self._workers = workers
        self._clock = clock
        self._checkpointing = asyncio.Lock()
        self._deleted_since: dict[Partition, int] = {}
        self._deleting: dict[Log, asyncio.Task[int]] = {}
        self._moved: dict[Partition, None] = {}  # log starts to be written
        self._moving: asyncio.Task[None] | None = None
        self._may_lag_disk = False  # after a failed write, files may differ from the partitions' view

    def forget(self, partition: Partition) -> None:
        """The partition is no longer hosted."""
        self._deleted_since.pop(partition, None)

    # -- logs ---------------------------------------------------------------------------

    async def _in_pieces(self) -> AsyncIterator[Partition]:
        """All partitions. Yields to the loop after some of them: thousands take milliseconds."""
        for number, partition in enumerate(list(self._partitions), 1):
            if not partition.is_deleted and not partition.log.is_closed:  # both may change meanwhile
                yield partition
            if number % LOOKED_AT_PER_TURN == 0:
                await asyncio.sleep(0)

    async def flush_overdue(self) -> None:
        """`flush.ms`: logs whose oldest unflushed message has waited long enough."""
        now_ms = self._clock.now_ms()
        async for partition in self._in_pieces():
            first = partition.log.first_unflushed_ms
            if first is not None and now_ms - first >= partition.config.flush_ms:
                self._commit.request(partition)

    async def apply_retention(self) -> int:
        """Delete segments beyond the retention limits; returns the number of segments removed.

        After a start the ages of segments are not known: a worker looks them up.
        """
        hosted = list(self._partitions)
        removed = 0
        for first in range(0, len(hosted), PIECE):
            piece = hosted[first : first + PIECE]
            await self._learn_times(piece)
            removed += await self._apply_retention(piece)
            await asyncio.sleep(0)
        return removed

    async def _learn_times(self, partitions: Sequence[Partition]) -> None:
        jobs: list[tuple[Partition, SegmentTimes]] = []
        for partition in partitions:
            config = partition.log.config
            if config.delete and config.retention_ms >= 0:
                times = partition.log.reader.times_to_learn(self._clock.now_ms() - config.retention_ms)
                if times is not None:
                    jobs.append((partition, times))
        if jobs:
            failures = await self._workers.run(partial(_run_all, [times for _, times in jobs]))
            for (partition, times), failure in zip(jobs, failures, strict=True):
                if not partition.log.reader.is_stale(times) and failure is not None:
                    log.error("retention of %r failed: %s", partition, failure)
                partition.log.reader.end_time_lookup(times)

    async def _apply_retention(self, partitions: Sequence[Partition]) -> int:
        removed = 0
        for partition in partitions:
            if not partition.log.is_being_cleaned:
                removed += await self._delete(partition, self._begin_retention)
        return removed

    def _begin_retention(self, partition: Partition) -> Deletion | None:
        return partition.log.begin_retention(self._clock.now_ms(), partition.high_watermark)

    async def delete_below_start(self, partitions: Iterable[Partition]) -> None:
        """After DeleteRecords: delete whole segments below the log start."""
        for partition in partitions:
            await self._delete(partition, lambda one: one.log.begin_trimming())

    def log_start_moved(self, partition: Partition) -> None:
        """For a follower: write the log start soon, or a crash would bring back records that are deleted everywhere."""
        self._moved[partition] = None
        if self._moving is None:
            self._moving = asyncio.ensure_future(self._settle_log_starts())

    async def _settle_log_starts(self) -> None:
        try:
            while self._moved:
                moved, self._moved = list(self._moved), {}
                await self.persist_offsets()
                await self.delete_below_start(moved)
        except StorageError as error:
            log.error("log start offsets are not on the disk yet; the next checkpoint writes them: %s", error)
        finally:
            self._moving = None

    async def _delete(self, partition: Partition, begin: Callable[[Partition], Deletion | None]) -> int:
        """Return the number of deleted segments. Runs in a task of its own: the caller may be cancelled, the worker is
        not.
        """
        owner = partition.log
        if partition.is_deleted or owner.offline is not None or owner.is_being_cut or owner in self._deleting:
            return 0
        try:
            deletion = begin(partition)
        except (StorageError, OSError) as error:
            log.error("retention of %r failed: %s", partition, error)
            return 0
        if owner.wants_flush:  # segments are deleted after a flush; the last one needs a new segment first
            self._commit.request(partition)
        if deletion is None:
            return 0
        partition.log_start_moved()
        task = self._deleting[owner] = asyncio.ensure_future(self._finish_deletion(partition, owner, deletion))
        task.add_done_callback(lambda _: self._deleting.pop(owner, None))
        return await asyncio.shield(task)

    async def _finish_deletion(self, partition: Partition, owner: Log, deletion: Deletion) -> int:
        await self._workers.run(deletion.run)
        try:
            bases = owner.end_deletion(deletion)
        except StorageError as error:
            log.error("retention of %r failed: %s", partition, error)
            return deletion.gone
        if bases:
            log.info(
                "%r: retention removed %d segment(s), log start is %d", partition, len(bases), owner.log_start_offset
            )
        return len(bases)

    async def deletion_ended(self, partition: Partition) -> None:
        """Wait until no segments of its log are being deleted."""
        while (task := self._deleting.get(partition.log)) is not None:
            await asyncio.wait([task])

    async def remove_deleted_files(self) -> None:
        """Remove segments that were set aside `file.delete.delay.ms` ago, in a worker."""
        now_ms = self._clock.now_ms()
        due: list[Log] = []
        async for partition in self._in_pieces():
            if not partition.log.has_deleted_files:
                self._deleted_since.pop(partition, None)
            elif now_ms - self._deleted_since.setdefault(partition, now_ms) >= partition.config.file_delete_delay_ms:
                del self._deleted_since[partition]
                due.append(partition.log)

        def remove() -> None:
            for owner in due:
                owner.remove_deleted()

        if due:
            await self._workers.run(remove)

    # # -- checkpoint files ---------------------------------------------------------------

    async def checkpoint(self, only: Sequence[Partition] | None = None) -> None:
        """Persist recovery points and log starts, after making the log stable up to them.

        Gathered on the loop, written and made stable in a worker. `only`: limits it to these partitions.
        """
        async with self._checkpointing:
            prepared = await self._prepare_checkpoints(list(self._partitions) if only is None else only)

            def make_stable() -> list[OSError | None]:
                outcomes: list[OSError | None] = []
                for _, checkpoint in prepared:
                    try:
                        checkpoint.make_stable()
                    except OSError as error:
                        outcomes.append(error)
                    else:
                        outcomes.append(None)
                return outcomes

            try:
                outcomes = await self._workers.run(make_stable)
            except BaseException:  # cancelled, for example: the progress is unknown
                for partition, checkpoint in prepared:
                    partition.log.put_back(checkpoint)
                raise
            risen: list[tuple[Partition, int]] = []
            for (partition, checkpoint), failure in zip(prepared, outcomes, strict=True):
                if checkpoint.is_void():
                    if not partition.is_deleted:
                        partition.log.put_back(checkpoint)
                elif failure is None:
                    risen.append((partition, checkpoint.recovery_point))
                    self._end_checkpoint(partition, checkpoint)
                else:
                    partition.log.put_back(checkpoint)
                    log.error("checkpoint of %r failed: %s", partition, failure)
            await self._persist_offsets(risen)
            for partition, recovery_point in risen:
                partition.log.persisted_recovery_point = recovery_point

    async def _prepare_checkpoints(self, partitions: Sequence[Partition]) -> list[tuple[Partition, LogCheckpoint]]:
        prepared: list[tuple[Partition, LogCheckpoint]] = []
        for number, partition in enumerate(partitions, 1):
            if number % PIECE == 0:
                await asyncio.sleep(0)
            if partition.log.offline is not None or partition.log.is_being_cut or partition.is_deleted:
                continue
            try:
                prepared.append((partition, partition.log.prepare_checkpoint()))
            except StorageError as error:
                log.error("checkpoint of %r failed: %s", partition, error)
        return prepared

    @staticmethod
    def _end_checkpoint(partition: Partition, checkpoint: LogCheckpoint) -> None:
        try:
            partition.log.end_checkpoint(checkpoint)
        except StorageError as error:
            log.error("checkpoint of %r failed: %s", partition, error)

    async def least_end_after_cut(self, partition: Partition, offset: int) -> int:
        """The recovery point before a cut at the offset. Raises StorageError."""
        owner = partition.log
        try:
            return owner.least_end_after_cut(offset, may_wait=False)
        except NotCached:
            lookup = owner.reader.lookup(offset, 0)
        try:
            await self._workers.run(lookup.run)
        except OSError as error:
            raise StorageError(f"cannot read {partition!r} at offset {offset}: {error}") from error
        owner.reader.end_lookup(lookup)
        return owner.least_end_after_cut(offset)

    async def lower_recovery_point(self, partition: Partition, offset: int) -> None:
        """Call before a log is cut to `offset`. The cut must begin in the same turn: a checkpoint may come next.

        The cleaned offset is lowered too: otherwise recovery would take a hole below it for a result of compaction.
        """
        async with self._checkpointing:
            owner = partition.log
            if max(owner.persisted_recovery_point, owner.cleaned_offset) > offset or self._may_lag_disk:
                owner.persisted_recovery_point = min(owner.persisted_recovery_point, offset)
                owner.cleaned_offset = min(owner.cleaned_offset, offset)
                await self._persist_offsets()

    async def checkpoint_high_watermarks(self) -> None:
        """Write the high watermark of each partition, for the next start of this broker."""
        async with self._checkpointing:
            await self._workers.run(self._offsets.prepare_high_watermarks(self._partitions))

    async def persist_offsets(self) -> None:
        """Write the checkpoint files after DeleteRecords, so that deleted records stay deleted."""
        async with self._checkpointing:
            await self._persist_offsets()

    async def erase(self, keys: Iterable[Key]) -> None:
        """Remove former partitions of these names from all checkpoint files. Raises StorageError."""
        async with self._checkpointing:
            if any(self._offsets.speaks_of_former(key) for key in keys):  # else an earlier write has removed them
                await self._persist_offsets()

    async def _persist_offsets(self, risen: Sequence[tuple[Partition, int]] = ()) -> None:
        turn = self._offsets.turn
        self._may_lag_disk = True
        await self._workers.run(self._offsets.prepare(self._partitions, risen))
        self._may_lag_disk = False
        self._offsets.written_since(turn)


def _run_all(jobs: Sequence[SegmentTimes]) -> list[StorageError | OSError | None]:
    """Runs in a worker."""
    failures: list[StorageError | OSError | None] = []
    for job in jobs:
        try:
            job.run()
            failures.append(None)
        except (StorageError, OSError) as error:
            failures.append(error)
    return failures
