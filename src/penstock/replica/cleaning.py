"""Compaction of this broker's logs: chooses the next log and puts its new segments in place as they arrive.

The dirtiest log that is due comes first, until none is due. Then the cleaner rests until the node calls again
(`log.cleaner.backoff.ms`). Reading and rewriting happen in another process (`Rewriter`); the loop only receives the new
segments and renames them. One log is cleaned at a time.

If cleaning finds damage, the log is reported and left alone until it is truncated or the broker restarts. After any
other failure (a full disk, a rewriting process that died, a log that was truncated meanwhile) the next call tries the
log again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import NamedTuple, Protocol

from penstock.model.errors import StorageError
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk
from penstock.ports.workers import Workers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.storage.cleaner.plan import Cleaned, CleanPlan, Outcome, RewrittenSegment, Uncleanable, max_keys
from penstock.storage.cleaner.survey import Survey, make_plan, needs_disk, survey
from penstock.storage.cleaner.swap import Swap, remove_unfinished
from penstock.storage.log import Log
from penstock.storage.producers.transactions import AbortedTransaction

log = logging.getLogger(__name__)


class Rewriter(Protocol):
    def rewrite(self, plan: CleanPlan) -> AsyncGenerator[Outcome, None]:
        """Runs `storage.cleaner.rewrite.clean` elsewhere. Raises StorageError and OSError; closing it ends the work."""
        ...

    async def rest(self) -> None:
        """There is nothing to do for a while: release resources."""
        ...

    def stop(self) -> None:
        """End the work under way permanently; `rewrite` raises."""
        ...


class Due(NamedTuple):
    """A log that is due for cleaning, as it was when surveyed."""

    partition: Partition
    owner: Log
    found: Survey

    @property
    def is_true(self) -> bool:
        """Whether the survey still holds. Other logs were surveyed since, and this one may have been cut or
        reopened.
        """
        partition, owner, found = self
        if partition.is_deleted or partition.log is not owner or owner.is_being_cut:
            return False
        limit = min(partition.last_stable_offset, owner.stable_offset)
        return owner.generation == found.generation and found.end_offset <= limit


class LogCleaning:
    def __init__(
        self, partitions: HostedPartitions, rewriter: Rewriter, disk: Disk, workers: Workers, clock: Clock
    ) -> None:
        self._partitions = partitions
        self._rewriter = rewriter
        self._disk = disk
        self._workers = workers
        self._clock = clock
        self._is_running = False
        self._is_stopping = False
        self._uncleanable: dict[Partition, int] = {}  # with the generation of the log
        self._failed: dict[Partition, None] = {}  # in this run
        self.cleanings = 0
        self.bytes_read = 0
        self.bytes_written = 0

    @property
    def uncleanable_count(self) -> int:
        return len(self._uncleanable)

    def stop(self) -> None:
        self._is_stopping = True
        self._rewriter.stop()

    async def run(self) -> int:
        """Clean the logs that are due and return the number of cleanings. Does nothing while a run is under way."""
        if self._is_running:
            return 0
        self._is_running = True
        self._failed.clear()
        self._uncleanable = {
            partition: generation
            for partition, generation in self._uncleanable.items()
            if not partition.is_deleted and partition.log.generation == generation
        }
        count = 0
        try:
            while not self._is_stopping and (due := await self._dirtiest()) is not None:
                count += await self._clean(due)
            if count:
                await self._rewriter.rest()
        finally:
            self._is_running = False
        return count

    async def _dirtiest(self) -> Due | None:
        now_ms = self._clock.now_ms()
        best: Due | None = None
        for partition in list(self._partitions):
            if partition.is_deleted:
                continue
            owner = partition.log
            if owner.offline is not None or owner.is_being_cut:
                continue
            if not owner.config.compact or len(owner.segment_bases) < 2:
                continue
            if partition in self._uncleanable or partition in self._failed:
                continue
            try:
                look = partial(survey, owner, partition.last_stable_offset, now_ms)
                found = await self._workers.run(look) if needs_disk(owner) else look()
            except (StorageError, OSError) as error:
                log.error("%r: cannot find out what to compact: %s", partition, error)
                self._failed[partition] = None
                continue
            if found.is_due(owner.config.min_cleanable_dirty_ratio) and (
                best is None or found.dirty_ratio > best.found.dirty_ratio
            ):
                best = Due(partition, owner, found)
        return best

    async def _clean(self, due: Due) -> int:
        """Return 1 if the log is cleaner than before. A failure is logged and remembered."""
        partition, owner, _ = due
        owner.is_being_cleaned = True
        try:
            if await self._clean_unguarded(due):
                return 1
            self._failed[partition] = None  # the log has changed meanwhile
        except Uncleanable as error:
            self._uncleanable[partition] = owner.generation
            if not partition.is_deleted:
                log.error(
                    "%r is no longer compacted, until it is repaired or the broker restarts: %s", partition, error
                )
                partition.report_damage()
        except (StorageError, OSError) as error:
            self._failed[partition] = None
            if not partition.is_deleted and not self._is_stopping:
                log.error("%r: compaction failed and will be tried again: %s", partition, error)
        finally:
            owner.is_being_cleaned = False
        if not partition.is_deleted:
            with suppress(OSError):
                await self._workers.run(lambda: remove_unfinished(self._disk, owner.directory))
        return 0

    async def _clean_unguarded(self, due: Due) -> bool:
        partition, owner, found = due
        if not due.is_true:
            return False
        if owner.persisted_recovery_point < found.end_offset:
            await self._partitions.housekeeping.checkpoint([partition])
            if owner.persisted_recovery_point < found.end_offset or not due.is_true:
                return False
        generation = found.generation
        aborted = await self._aborted_below(owner, found.end_offset)
        if aborted is None or not due.is_true:
            return False
        plan = make_plan(
            owner,
            found,
            self._clock.now_ms(),
            self._max_keys(),
            aborted,
            may_drop_tombstones=_may_drop_tombstones(partition),
        )
        async with aclosing(self._rewriter.rewrite(plan)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome, Cleaned):
                    return await self._finish(partition, plan, outcome, generation)
                if outcome.is_changed and not await self._put_in_place(partition, plan, outcome, generation):
                    return False
        raise StorageError("the rewriting process ended without an answer")

    async def _aborted_below(self, owner: Log, end_offset: int) -> tuple[AbortedTransaction, ...] | None:
        """Return None if the log has changed meanwhile. If the list lacked an aborted transaction, its records would
        count as committed and replace committed records. So the list is complete, or this raises StorageError.
        """
        if not owner.has_aborted:
            return ()
        lookup = owner.aborted_lookup(owner.segment_bases[0], end_offset)
        try:
            found = await self._workers.run(lookup.run)
        finally:
            is_true = owner.end_aborted_lookup(lookup)
        return tuple(found) if is_true else None

    def _max_keys(self) -> int:
        broker = self._partitions.broker
        return max_keys(broker.log_cleaner_dedupe_buffer_size, broker.log_cleaner_io_buffer_load_factor)

    async def _put_in_place(
        self, partition: Partition, plan: CleanPlan, rewritten: RewrittenSegment, generation: int
    ) -> bool:
        """Return False if the log or its replicas have changed meanwhile; the work is then discarded."""
        owner = partition.log
        if not _is_still_allowed(partition, plan):
            return False
        swap = Swap(self._disk, owner.directory, rewritten.bases, rewritten.size)
        if not owner.begin_swap(swap, generation):
            return False
        try:
            await self._workers.run(swap.commit)
        except (StorageError, OSError):
            with suppress(OSError):
                owner.abandon_swap(swap)
            raise
        if not _is_still_allowed(partition, plan):
            owner.abandon_swap(swap)
            return False
        if not owner.end_swap(swap, rewritten):
            return False
        bases = owner.segment_bases
        partition.segments_replaced(rewritten.bases, bases[bases.index(swap.base_offset) + 1])
        await self._workers.run(lambda: self._disk.sync_directory(owner.directory))
        return True

    async def _finish(self, partition: Partition, plan: CleanPlan, cleaned: Cleaned, generation: int) -> bool:
        owner = partition.log
        if cleaned.end_offset <= plan.first_dirty_offset:
            raise Uncleanable(f"no batch from offset {plan.first_dirty_offset} on could be read")
        if partition.is_deleted or owner.generation != generation:
            return False
        owner.cleaned_offset = cleaned.end_offset
        self.cleanings += 1
        self.bytes_read += cleaned.bytes_read
        self.bytes_written += cleaned.bytes_written
        await self._partitions.housekeeping.persist_offsets()
        log.info(
            "%r: compacted up to offset %d: kept %d of %d records, %d keys in the dirty part, wrote %d of %d bytes",
            partition,
            cleaned.end_offset,
            cleaned.records_kept,
            cleaned.records_read,
            cleaned.keys,
            cleaned.bytes_written,
            cleaned.bytes_read,
        )
        if cleaned.malformed_batches:
            log.warning(
                "%r: %d batches have no readable records and stay as they are", partition, cleaned.malformed_batches
            )
        return True


def _may_drop_tombstones(partition: Partition) -> bool:
    """A replica out of sync may hold a record but not yet its tombstone. If the tombstone were dropped, the replica
    would keep the record and might become leader with it. A broker that has lost the controller does not know the ISR.
    """
    lease = partition.host.lease
    return len(partition.isr) == len(partition.replicas) and (lease is None or lease())


def _is_still_allowed(partition: Partition, plan: CleanPlan) -> bool:
    """Checked at every swap: rewriting takes minutes, and the ISR may change."""
    return not plan.may_drop_tombstones or _may_drop_tombstones(partition)
