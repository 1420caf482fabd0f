"""A replica that finds damage on its own disk takes what is damaged again from its leader.

Whoever reads (a fetch, compaction, a verification) reports what it found; a log that could not even be opened is found
when its role is known. Until the replica is whole again it must not count as one that has everything, so the order is

    leading          ask the controller for in-sync replicas without this one, and so for another leader
    in sync          stop fetching and tell the leader that no more than the sound part is here: it asks the
                     controller to go on without this replica
    out of sync      tell the leader the same: it may have asked for this one's return, and withdraws that. Five seconds
                     later, if still out of sync, cut right before the damage, durably, and fetch again from there

each step begun when the metadata says that the one before has taken effect (`role_changed`), and only while the others
in sync are as many as `min.insync.replicas` asks for. With fewer, the controller would keep this replica eligible
(KIP-966), and what is sound in it may exist nowhere else: it goes on as it is until enough others are back.

Must not know: who reports. Blocks nothing: files are read in workers.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import NamedTuple, Protocol

from penstock.model.errors import ApiError, CorruptBatch, RecordsMissing, StorageError
from penstock.ports.disk import File
from penstock.ports.workers import Workers
from penstock.replica.divergence import Recovering
from penstock.replica.partition import Partition
from penstock.storage.growing_log import MAX_EPOCH
from penstock.storage.leader_epochs import UNDEFINED_EPOCH, LeaderEpochs
from penstock.storage.scan import checked_batches

log = logging.getLogger(__name__)

REPEAT_AFTER_S = 5.0


class Following(Protocol):
    """`replica.fetchers.ReplicaFetchers`, of which a repair needs this."""

    node_id: int

    def hold(self, partition: Partition) -> None: ...

    def release(self, partition: Partition) -> None: ...

    def disown(self, partition: Partition, offset: int) -> None: ...


class Scan(NamedTuple):
    last_sound_base: int | None
    """Of the last batch before the damage, or of the last one of all."""
    is_damaged: bool


def scan(
    file: File,
    path: str,
    size: int,
    offsets: range,
    may_have_gaps: bool,
    epochs: LeaderEpochs | None = None,
    max_epoch: int = MAX_EPOCH,
) -> Scan:
    """Walk a segment that holds these offsets, with every checksum. Blocks; may run in a thread.

    Offsets and leader epochs lie outside the checksums. Where two neighbours do not fit, either may be the wrong one.
    """
    last: int | None = None
    before_last: int | None = None
    expected, epoch = offsets.start, UNDEFINED_EPOCH
    try:
        for _, header in checked_batches(file, path, 0, size):
            base = header.base_offset
            if header.next_offset > offsets.stop or base < expected or (base > expected and not may_have_gaps):
                return Scan(before_last, True)
            if header.leader_epoch > max_epoch:
                return Scan(last, True)
            if header.leader_epoch < epoch:
                return Scan(before_last, True)
            if epochs is not None and epochs.contradicts(header.leader_epoch, header.last_offset):
                return Scan(before_last, True)
            before_last, last, expected, epoch = last, base, header.next_offset, header.leader_epoch
    except CorruptBatch:
        return Scan(last, True)
    return Scan(last, False)


class Repairs:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, following: Following, recovering: Recovering, workers: Workers
    ) -> None:
        self._loop = loop
        self._following = following
        self._recovering = recovering
        self._workers = workers
        self._under_way: dict[Partition, asyncio.Event] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.repaired = 0

    @property
    def under_way(self) -> list[Partition]:
        return list(self._under_way)

    def found(self, partition: Partition, path: str | None = None) -> None:
        """Something in the partition's log is damaged: in the segment at `path`, or somewhere. Cheap to repeat."""
        if partition in self._under_way or partition.is_deleted or len(partition.replicas) < 2:
            return
        self._under_way[partition] = asyncio.Event()
        task = self._loop.create_task(self._repair(partition, path))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def role_changed(self, partition: Partition) -> None:
        event = self._under_way.get(partition)
        if event is not None:
            event.set()
        elif could_not_be_opened(partition) or partition.log.epochs.latest > partition.leader_epoch:
            self.found(partition)  # no checksum covers the epoch of a batch: only a later leader would have written it

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _repair(self, partition: Partition, path: str | None) -> None:
        try:
            found = Scan(None, True) if could_not_be_opened(partition) else await self._find(partition, path)
            if found.is_damaged:
                await self._replace(partition, found.last_sound_base)
        except (ApiError, StorageError, OSError) as error:
            log.error("%r cannot be repaired: %s; it is tried again when the damage is met again", partition, error)
        finally:
            self._under_way.pop(partition, None)
            self._following.release(partition)

    async def _find(self, partition: Partition, path: str | None) -> Scan:
        """Where the sound part ends. The segment before is looked at too: the damage may be in the very first batch."""
        owner = partition.log
        may_have_gaps = not owner.gaps.is_contiguous
        epochs, max_epoch = owner.epochs.copy(), partition.leader_epoch
        last: int | None = None
        segments = owner.segments
        at = next((index for index, segment in enumerate(segments) if segment.path == path), 1)
        ends = [*(segment.base_offset for segment in segments[1:]), owner.log_end_offset]
        # As all of it is now: the log may grow while it is read, or be cut, which changes everything.
        sizes, generation = [segment.size for segment in segments], owner.generation
        for segment, end, size in list(zip(segments, ends, sizes, strict=True))[max(0, at - 1) :]:
            if not size:
                continue
            file, where, offsets = segment.file(), segment.path, range(segment.base_offset, end)

            def look(file: File = file, where: str = where, size: int = size, offsets: range = offsets) -> Scan:
                return scan(file, where, size, offsets, may_have_gaps, epochs, max_epoch)

            found = await self._workers.run(look)
            if partition.log is not owner or owner.generation != generation:
                return Scan(last, False)  # if it was not in what was cut, it will be met again
            last = found.last_sound_base if found.last_sound_base is not None else last
            if found.is_damaged:
                log.warning("%r: damage in %s, sound up to the batch at offset %s", partition, where, last)
                return Scan(last, True)
        return Scan(last, False)

    async def _replace(self, partition: Partition, last_sound_base: int | None) -> None:
        """Walk the partition through the steps, and cut it when it no longer counts."""
        changed = self._under_way[partition]
        told: tuple[int, float] | None = None  # while it does not count: the leader epoch, and since when
        start = partition.log.log_start_offset
        # One sound batch goes too: where a damaged one begins cannot be looked up any more.
        offset = start if last_sound_base is None else max(last_sound_base, start)
        while not partition.is_deleted:
            changed.clear()
            if not self._is_dispensable(partition):
                told = None
                self._following.release(partition)
            elif partition.is_leader:
                self._resign(partition)
            elif partition.leader >= 0:
                self._following.hold(partition)
                self._following.disown(partition, offset)
                now_s, epoch = self._loop.time(), partition.leader_epoch
                if self._following.node_id in partition.isr:
                    told = None
                elif told is None or told[0] != epoch:
                    told = epoch, now_s
                elif now_s >= told[1] + REPEAT_AFTER_S:
                    await self._cut(partition, offset)
                    await self._leave(partition, offset)
                    return
            await _set_or_later(changed)

    async def _leave(self, partition: Partition, offset: int) -> None:
        """After the cut. Its return may have been decided in spite of all: it has not what it should have."""
        changed = self._under_way[partition]
        while self._following.node_id in partition.isr and not partition.is_leader and self._is_dispensable(partition):
            changed.clear()
            self._following.hold(partition)
            self._following.disown(partition, offset)
            await _set_or_later(changed)

    def _is_dispensable(self, partition: Partition) -> bool:
        others = [one for one in partition.isr if one != self._following.node_id]
        needed = max(1, min(partition.config.min_insync_replicas, len(partition.replicas)))
        if len(others) < needed:
            log.error(
                "%r is damaged and needed: %d other(s) in sync, min.insync.replicas is %d; bring other replicas back",
                partition,
                len(others),
                partition.config.min_insync_replicas,
            )
        return len(others) >= needed

    def _resign(self, partition: Partition) -> None:
        """A leader that asks for in-sync replicas without itself asks for another leader among them."""
        followers = partition.followers
        if followers is not None and followers.pending_isr is None:
            others = tuple(one for one in followers.isr if one != self._following.node_id)
            log.warning("%r is damaged here, where it is led: asking for another leader among %s", partition, others)
            partition.propose_isr(others)

    async def _cut(self, partition: Partition, offset: int) -> None:
        before = partition.log.log_end_offset
        epoch = partition.leader_epoch
        if could_not_be_opened(partition):
            await self._recovering.start_over(partition)
            if partition.log.offline is None:
                self.repaired += 1
                log.warning("%r could not be read: it is fetched anew from broker %d", partition, partition.leader)
            return
        if offset > partition.log.log_start_offset:
            await self._recovering.cut_at(partition, offset)
        else:
            await self._recovering.start_anew(partition, partition.log.log_start_offset)
        if partition.leader_epoch == epoch and partition.log.log_end_offset < before:
            self.repaired += 1
            log.warning(
                "%r was damaged: offsets %d to %d are fetched again from broker %d",
                partition,
                partition.log.log_end_offset,
                before,
                partition.leader,
            )


async def _set_or_later(event: asyncio.Event) -> None:
    """After a while in any case: nobody may have heard."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REPEAT_AFTER_S):
            await event.wait()


def could_not_be_opened(partition: Partition) -> bool:
    """Because of damage, that is; a disk that fails is not mended by writing more to it."""
    offline = partition.log.offline
    return offline is not None and isinstance(offline.__cause__, (CorruptBatch, RecordsMissing))
