"""Makes a follower's log agree with its leader's: finds where the logs diverge and truncates in a crash-safe order.

A recovery point above the truncation offset must be removed from the disk first. Otherwise recovery would treat later
appends as stable and would not check them. The cut begins in the turn in which that is done, and a worker does it
(`storage.cut`). Until the cut has ended nothing else uses the log, and metadata changes of the partition wait.

Must not know: connections, sessions, how the leader was asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.model.errors import CorruptBatch, NotCached
from penstock.ports.disk import Buffer
from penstock.ports.workers import Workers
from penstock.records.batch import HEADER_SIZE, iterate_headers, read_header
from penstock.replica.partition import Partition
from penstock.replica.set_aside import SetAside
from penstock.storage.cut import Cut

log = logging.getLogger(__name__)

RETRY_S = 1.0
MOST_TRIES = 3  # the time to begin a cut without waiting for the disk


class LeaderLogRange(NamedTuple):
    """The start and end of the leader's log."""

    start_offset: int
    end_offset: int


class RecoveryPoints(Protocol):
    async def least_end_after_cut(self, partition: Partition, offset: int) -> int:
        """The lowest possible end of the log after the cut. A cut removes the whole batch that has the offset, and a
        gap before it.
        """
        ...

    async def deletion_ended(self, partition: Partition) -> None:
        """Wait until no old segments of its log are being deleted: a cut must not overlap with that."""
        ...

    async def lower_recovery_point(self, partition: Partition, offset: int) -> None:
        """The recovery point on disk is at most `offset` when this returns, and is not raised before the caller
        continues.
        """
        ...

    async def persist_offsets(self) -> None:
        """Write the current log start offsets and the other checkpoint files to the disk."""
        ...

    def start_over(self, partition: Partition) -> Cut:
        """Begin to replace a log that could not be opened with an empty one."""
        ...

    @property
    def set_aside(self) -> SetAside: ...


def truncation_point(partition: Partition, epoch: int, end_offset: int) -> int:
    """The offset at which this log diverges from the leader's. `epoch` is the leader's largest epoch up to ours; it
    ends at `end_offset`.
    """
    owner = partition.log
    end = owner.log_end_offset
    if end_offset < 0:  # the leader knows none of our epochs
        return min(partition.high_watermark, end)
    if epoch >= 0:
        own_epoch, own_end = owner.epochs.end_offset_for(epoch, end)
        if own_end >= 0 and own_epoch >= 0:
            return min(own_end, end_offset, end) if own_epoch == epoch else min(own_end, end)
    return min(end_offset, end)


def begin_cut_to_epoch(partition: Partition, epoch: int, end_offset: int, *, may_wait: bool = True) -> Cut | None:
    """Cut the part of the log that the leader does not have."""
    return partition.begin_cut(truncation_point(partition, epoch, end_offset), may_wait=may_wait)


def batch_around_start(partition: Partition, data: Buffer) -> bytes | None:
    """Return the first fetched batch if the start of the empty local log lies inside it. Raises CorruptBatch.

    The leader's records were deleted up to that offset, but it sends the batch whole. `Partition.append_fetched` cannot
    take it, because a segment file is named after its first batch: see `begin_below`.
    """
    owner = partition.log
    if owner.log_start_offset != owner.log_end_offset or len(data) < HEADER_SIZE:
        return None
    header = read_header(data)
    if not owner.begins_inside(header):
        return None
    batch = bytes(memoryview(data)[: header.size_bytes])
    for at, _ in iterate_headers(batch, owner.directory):
        if header.leader_epoch > partition.leader_epoch:
            reason = f"leader epoch {header.leader_epoch}, expected up to {partition.leader_epoch}"
            raise CorruptBatch(owner.directory, at, reason)
    return batch


def begin_below(partition: Partition, batch: bytes, leader_epoch: int, now_ms: int) -> Cut | None:
    """Begin the log with a `batch_around_start` from the leader of `leader_epoch`. The log has the batch when the cut
    has ended, before metadata changes apply. None: the log or the leader has changed meanwhile.
    """
    if leader_epoch != partition.leader_epoch or not partition.log.begins_inside(read_header(batch)):
        return None
    return partition.begin_below(batch, now_ms)


class Recovering:
    def __init__(self, loop: asyncio.AbstractEventLoop, points: RecoveryPoints, workers: Workers) -> None:
        self._loop = loop
        self._points = points
        self._workers = workers
        self._under_way: dict[Partition, asyncio.Task[None]] = {}
        self._is_stopping = False
        self.truncations = 0

    @property
    def set_aside(self) -> SetAside:
        return self._points.set_aside

    async def truncate_to_leader(self, partition: Partition, epoch: int, end_offset: int) -> None:
        """The leader's log has `epoch`, its largest epoch up to our last one, up to `end_offset`; the rest of ours
        goes.

        We may never have seen that epoch; then the next fetch finds out whether this was enough.
        """
        owner = partition.log
        cut = truncation_point(partition, epoch, end_offset)
        log.info(
            "%r: broker %d has leader epoch %d up to offset %d, but the log here ends at %d: truncating it at %d",
            partition,
            partition.leader,
            epoch,
            end_offset,
            owner.log_end_offset,
            cut,
        )
        await self._cut(
            partition,
            lambda: truncation_point(partition, epoch, end_offset),
            lambda may_wait: begin_cut_to_epoch(partition, epoch, end_offset, may_wait=may_wait),
        )

    async def fit_into(self, partition: Partition, bounds: LeaderLogRange) -> None:
        """Our log end lies outside of the leader's log."""
        own_end = partition.log.log_end_offset
        if bounds.end_offset < own_end:
            log.warning(
                "%r: truncating the log from offset %d to the leader's end %d", partition, own_end, bounds.end_offset
            )
            await self.cut_at(partition, bounds.end_offset)
        elif bounds.start_offset > own_end:
            log.warning(
                "%r ends at offset %d, but the leader's log starts at %d: the log here starts anew at that offset",
                partition,
                own_end,
                bounds.start_offset,
            )
            await self.start_anew(partition, bounds.start_offset)

    async def start_anew(self, partition: Partition, offset: int) -> None:
        """Drop the whole log; the next batch gets `offset`."""
        await self._cut(
            partition,
            lambda: min(offset, partition.log.log_start_offset),
            lambda _: partition.begin_anew(offset),
            is_whole=True,
        )

    async def begin_below(self, partition: Partition, batch: bytes, now_ms: int) -> None:
        """The start of the empty log lies inside this batch of the leader (`batch_around_start`).

        The file name will no longer give the log start, so the log start is written to the disk first. A crash in
        between leaves an empty log with the same start.
        """
        base_offset, leader_epoch = read_header(batch).base_offset, partition.leader_epoch
        await self._points.persist_offsets()
        await self._cut(
            partition,
            lambda: base_offset,
            lambda _: begin_below(partition, batch, leader_epoch, now_ms),
            is_whole=True,
        )

    async def start_over(self, partition: Partition) -> None:
        """The log is unreadable and its files were moved out of the way: start with an empty log."""
        await self._cut(partition, lambda: 0, lambda _: self._points.start_over(partition), is_whole=True)

    async def cut_at(self, partition: Partition, offset: int) -> None:
        await self._cut(partition, lambda: offset, lambda may_wait: partition.begin_cut(offset, may_wait=may_wait))

    async def settled(self) -> None:
        """Wait until no cut is under way. This node stops: a postponed cut is left to recovery."""
        self._is_stopping = True
        while self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    async def _cut(
        self,
        partition: Partition,
        end: Callable[[], int],
        begin: Callable[[bool], Cut | None],
        *,
        is_whole: bool = False,
    ) -> None:
        """The log will end at `end()`, or at the start of the batch there. `is_whole`: none of its batches stays.

        `begin` is passed whether it may wait for the disk.
        """
        leader_epoch = partition.leader_epoch
        tries = 0
        while True:
            while (other := self._under_way.get(partition)) is not None:
                await asyncio.wait([other])
            await self._points.deletion_ended(partition)
            keep = end() if is_whole else await self._points.least_end_after_cut(partition, end())
            # Always lowered: a checkpoint under way may be about to write a higher one.
            await self._points.lower_recovery_point(partition, keep)
            if partition.leader_epoch != leader_epoch or partition.is_leader or partition.is_deleted:
                return  # the role has changed: this cut no longer applies
            if partition in self._under_way:
                continue
            if partition.log.is_deleting:  # a deletion began meanwhile, or its worker ended because this node stops
                await asyncio.sleep(0)
                continue
            try:
                cut = begin(tries == MOST_TRIES)
            except NotCached:  # memory is short, or segments were replaced meanwhile
                tries += 1
                continue
            break
        if cut is not None:
            self.truncations += 1
            # A task of its own: the caller may be cancelled, but the worker is not.
            task = self._under_way[partition] = self._loop.create_task(self._finish(partition, cut))
            task.add_done_callback(lambda _: self._under_way.pop(partition, None))
            await asyncio.shield(task)

    async def _finish(self, partition: Partition, cut: Cut) -> None:
        await self._workers.run(cut.run)
        if (want := cut.put_off_by) is not None:
            log.warning("%r: truncation waits for a free file descriptor and will be tried again: %s", partition, want)
        while cut.put_off_by is not None and not self._is_stopping:
            await asyncio.sleep(RETRY_S)
            await self._workers.run(cut.run)
        # Only when the worker is done with the files. Until then the log stays as it is and is not used.
        partition.end_cut(cut)
