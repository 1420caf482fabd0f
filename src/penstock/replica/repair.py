"""Repairs a replica that finds damage on its own disk: it fetches the damaged part again from its leader.

Readers (a fetch, compaction, a verification) report damage. A log that could not be opened is found when its role is
known. Until it is repaired the replica must not count as complete, so the order is

    leading          ask the controller for an ISR without this replica, and so for another leader
    following        compare with the leader's copy (`replica.second_opinion`): one reader's report is not enough
    in sync          stop fetching and tell the leader that only the intact part is here: it asks the controller for an
                     ISR without this replica
    out of sync      tell the leader the same: if it has asked for this replica's return, it withdraws the request. Five
                     seconds later, if still out of sync, compare with the leader's copy again and check the damage
                     again: a read may have gone wrong. Keep the part to cut (`replica.set_aside`), truncate right
                     before the damage, durably, and fetch again from there. Once in sync, remove the kept part

Each step begins when the metadata confirms the one before (`role_changed`), and only while at least
`min.insync.replicas` others are in sync. With fewer, the controller would keep this replica eligible (KIP-966), and its
sound part may be the only copy: the repair waits until enough others are back.

A log that could not be opened is offline until it is repaired. A failed repair is tried again, with growing pauses.

Must not know: the readers. Blocks nothing: files are read in workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.model.errors import ApiError, CorruptBatch, RecordsMissing, StorageError
from penstock.ports.disk import File
from penstock.ports.workers import Workers
from penstock.replica.divergence import Recovering
from penstock.replica.partition import Partition
from penstock.replica.second_opinion import Damage, Judgement, LeaderCopy, ask
from penstock.storage.files import LOG
from penstock.storage.leader_epochs import UNDEFINED_EPOCH, LeaderEpochs
from penstock.storage.log import MAX_EPOCH, Log
from penstock.storage.segments.scan import checked_batches

log = logging.getLogger(__name__)

REPEAT_AFTER_S = 5.0
TRUSTED_FOR_S = 60.0
RESIGN_AGAIN_AFTER_S = 60.0
LONGEST_PAUSE_S = 60.0


class RepairFetchers(LeaderCopy, Protocol):
    """The part of `replica.fetchers.ReplicaFetchers` that a repair uses."""

    node_id: int

    def hold(self, partition: Partition) -> None: ...

    def release(self, partition: Partition) -> None: ...

    def disown(self, partition: Partition, offset: int) -> None: ...


class Scan(NamedTuple):
    last_sound_base: int | None
    """The base offset of the last batch before the damage, or of the last batch if there is no damage."""
    is_damaged: bool
    sound_at: int = 0
    """The position of that batch."""
    damage_at: int = 0
    """The position where the damage shows."""


class FoundDamage(NamedTuple):
    """Damage in a log, to be replaced from `offset` on."""

    offset: int
    place: Damage | None
    """None: files are missing."""
    generation: int
    is_unreadable: bool
    """The log could not even be opened."""


class Expected(NamedTuple):
    """What batches must agree with, as checksums do not cover it."""

    offsets: range
    may_have_gaps: bool
    epochs: LeaderEpochs | None = None
    max_epoch: int = MAX_EPOCH


def scan(
    file: File,
    path: str,
    size: int,
    expected: Expected,
) -> Scan:
    """Read a segment and verify every checksum. Blocks; may run in a thread.

    Checksums do not cover offsets and leader epochs. If two neighbouring batches do not fit, either may be wrong.
    """
    last: tuple[int | None, int] = (None, 0)  # base offset, position
    before_last = last
    offsets, epochs = expected.offsets, expected.epochs
    next_offset, epoch = offsets.start, UNDEFINED_EPOCH
    try:
        for at, header in checked_batches(file, path, 0, size):
            base = header.base_offset
            if header.leader_epoch > expected.max_epoch:
                return Scan(last[0], True, last[1], at)
            if (
                header.next_offset > offsets.stop
                or base < next_offset
                or (base > next_offset and not expected.may_have_gaps)
                or header.leader_epoch < epoch
                or (epochs is not None and epochs.contradicts(header.leader_epoch, header.last_offset))
            ):
                return Scan(before_last[0], True, before_last[1], at)
            before_last, last, next_offset, epoch = last, (base, at), header.next_offset, header.leader_epoch
    except CorruptBatch as error:
        return Scan(last[0], True, last[1], error.position)
    return Scan(last[0], False, last[1])


class Repairs:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, following: RepairFetchers, recovering: Recovering, workers: Workers
    ) -> None:
        self._loop = loop
        self._following = following
        self._recovering = recovering
        self._workers = workers
        self._under_way: dict[Partition, asyncio.Event] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._trusted: dict[Partition, float] = {}  # until when the leader is known to have the same bytes
        self._said: dict[Partition, str] = {}
        self._resigned: dict[Partition, tuple[int, float]] = {}  # in which leader epoch, and when
        self._pauses: dict[Partition, float] = {}  # after a failed open: the pause before the next attempt
        self._timers: dict[Partition, asyncio.TimerHandle] = {}
        self.repaired = 0
        self.refused = 0
        """False reports: the leader had the same bytes."""

    @property
    def under_way(self) -> list[Partition]:
        return list(self._under_way)

    def found(self, partition: Partition, path: str | None = None) -> None:
        """The partition's log is damaged: in the segment at `path`, or in an unknown place. Cheap to repeat."""
        if partition in self._under_way or partition.is_deleted or len(partition.replicas) < 2:
            return
        if self._trusted.get(partition, 0.0) > self._loop.time():
            return
        self._trusted.pop(partition, None)
        self._under_way[partition] = asyncio.Event()
        self._run(self._repair(partition, path))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    @property
    def set_aside_count(self) -> int:
        return self._recovering.set_aside.count

    def role_changed(self, partition: Partition) -> None:
        event = self._under_way.get(partition)
        if event is not None:
            event.set()
            return
        if self._recovering.set_aside.holds(partition) and (partition.is_deleted or self._is_in_sync(partition)):
            self._run(self._drop_set_aside(partition))
        if partition.is_deleted:
            self._trusted.pop(partition, None)
            self._resigned.pop(partition, None)
        elif could_not_be_opened(partition) or partition.log.epochs.latest > partition.leader_epoch:
            self.found(partition)  # no checksum covers a batch's epoch; only a later leader writes it

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()

    def _is_in_sync(self, partition: Partition) -> bool:
        """Whether this follower is in sync. A leader does not count: it may have been elected only because no better
        replica was available.
        """
        return self._following.node_id in partition.isr and not partition.is_leader and partition.leader >= 0

    async def _drop_set_aside(self, partition: Partition) -> None:
        try:
            await self._recovering.set_aside.remove(partition)
        except OSError as error:
            log.error("%r: the set-aside files are no longer needed, but cannot be removed: %s", partition, error)

    async def _repair(self, partition: Partition, path: str | None) -> None:
        try:
            if could_not_be_opened(partition):
                found: FoundDamage | None = await self._find_in_unreadable(partition)
            else:
                found = await self._find(partition, path)
            if found is not None:
                await self._replace(partition, found)
        except (ApiError, StorageError, OSError) as error:
            when = "later" if could_not_be_opened(partition) else "when the damage is reported again"
            log.error("%r cannot be repaired: %s; repair is tried again %s", partition, error, when)
        finally:
            self._under_way.pop(partition, None)
            self._said.pop(partition, None)
            self._following.release(partition)
            if partition.is_deleted or self._is_in_sync(partition):
                self.role_changed(partition)
        self._try_later(partition)

    def _try_later(self, partition: Partition) -> None:
        """A log that could not be opened is not read, so its damage is not reported again. Pauses grow."""
        if partition.is_deleted or not could_not_be_opened(partition):
            self._pauses.pop(partition, None)
        elif partition not in self._timers:
            pause_s = self._pauses.get(partition, REPEAT_AFTER_S)
            self._pauses[partition] = min(2 * pause_s, LONGEST_PAUSE_S)
            self._timers[partition] = self._loop.call_later(pause_s, self._try_again, partition)

    def _try_again(self, partition: Partition) -> None:
        del self._timers[partition]
        if could_not_be_opened(partition):
            self.found(partition)
        if partition not in self._under_way:  # the same-bytes verdict still holds
            self._try_later(partition)

    async def _find_in_unreadable(self, partition: Partition) -> FoundDamage:
        owner = partition.log
        cause = owner.offline.__cause__ if owner.offline is not None else None
        place: Damage | None = None
        if isinstance(cause, CorruptBatch) and cause.path.endswith(LOG):
            with suppress(FileNotFoundError):  # an earlier attempt has moved it out of the way
                place = await self._workers.run(lambda: _damage_in(owner, cause))
        return FoundDamage(owner.log_start_offset, place, owner.generation, is_unreadable=True)

    async def _find(self, partition: Partition, path: str | None) -> FoundDamage | None:
        """Find the end of the intact part. The segment before is read, too: the damage may be in the very first
        batch.
        """
        owner = partition.log
        owner.check_not_being_cut()
        may_have_gaps = not owner.gaps.is_contiguous
        epochs, max_epoch = owner.epochs.copy(), partition.leader_epoch
        last: int | None = None
        segments = owner.segments
        at = next((index for index, segment in enumerate(segments) if segment.path == path), 1)
        ends = [*(segment.base_offset for segment in segments[1:]), owner.log_end_offset]
        # A snapshot of the sizes: the log may grow while it is read. A cut changes the generation.
        sizes, generation = [segment.size for segment in segments], owner.generation
        for segment, end, size in list(zip(segments, ends, sizes, strict=True))[max(0, at - 1) :]:
            if not size:
                continue
            file, where = segment.file(), segment.path
            expected = Expected(range(segment.base_offset, end), may_have_gaps, epochs, max_epoch)
            found = await self._workers.run(partial(scan, file, where, size, expected))
            if partition.log is not owner or owner.generation != generation:
                return None  # if the cut did not remove the damage, a reader will report it again
            last = found.last_sound_base if found.last_sound_base is not None else last
            if found.is_damaged:
                log.warning("%r: damage in %s, intact up to the batch at offset %s", partition, where, last)
                asked_from = segment.base_offset if found.last_sound_base is None else found.last_sound_base
                place = Damage(file, where, size, asked_from, found.sound_at, found.damage_at)
                start = owner.log_start_offset
                # One intact batch is cut, too: the start of a damaged one can no longer be looked up.
                return FoundDamage(start if last is None else max(last, start), place, generation, is_unreadable=False)
        return None

    async def _replace(self, partition: Partition, found: FoundDamage) -> None:
        """Take the partition through the steps, and cut it once the replica no longer counts."""
        changed = self._under_way[partition]
        told: tuple[int, float] | None = None  # while out of sync: the leader epoch, and since when
        confirmed: int | None = partition.leader_epoch if found.is_unreadable else None  # in which leader epoch
        offset, owner = found.offset, partition.log
        while not partition.is_deleted:
            changed.clear()
            if partition.log is not owner or owner.generation != found.generation:
                return  # another cut was made: if it did not remove the damage, a reader will report it again
            if not self._is_dispensable(partition):
                told = None
                self._following.release(partition)
            elif partition.is_leader:
                self._resign(partition)
            elif partition.leader >= 0 and confirmed is None:
                # First of all: if nothing is damaged, no replica need leave the ISR.
                epoch = partition.leader_epoch
                verdict = await self._ask(partition, found)
                if verdict is Judgement.SOUND:
                    return
                if verdict is Judgement.DAMAGED and partition.leader_epoch == epoch:
                    confirmed = epoch
                    continue
            elif partition.leader >= 0:
                self._following.hold(partition)
                self._following.disown(partition, offset)
                now_s, epoch = self._loop.time(), partition.leader_epoch
                if self._following.node_id in partition.isr:
                    told = None
                elif told is None or told[0] != epoch:
                    told = epoch, now_s
                elif now_s >= told[1] + REPEAT_AFTER_S and await self._mend(partition, found):
                    return
            await _set_or_later(changed)

    async def _mend(self, partition: Partition, found: FoundDamage) -> bool:
        """Return False if not done yet. After each wait the partition's standing is checked again before the
        next step.
        """
        epoch, owner = partition.leader_epoch, partition.log
        verdict = await self._ask(partition, found)  # again: the leader or its copy may have changed
        if verdict is not Judgement.DAMAGED:
            return verdict is Judgement.SOUND
        if not await self._is_still_damaged(partition, found):
            return True
        if not self._may_cut(partition, epoch):
            return False
        offset = _cut_from(partition, found.offset)
        if found.is_unreadable:
            await self._recovering.set_aside.move(partition)
        else:
            await self._recovering.set_aside.keep_tail(partition, offset)
        if partition.log is not owner or owner.generation != found.generation:
            return True  # another cut was made: if it did not remove the damage, a reader will report it again
        if not self._may_cut(partition, epoch):
            return False
        await self._cut(partition, offset)
        if not found.is_unreadable and owner.generation != found.generation:
            await self._recovering.set_aside.was_cut(partition)
        await self._leave(partition, offset)
        return True

    async def _is_still_damaged(self, partition: Partition, found: FoundDamage) -> bool:
        """The page cache can be wrong where the disk is right, and the leader of a compacted log has other bytes there
        anyway.
        """
        if found.is_unreadable or found.place is None or await self._find(partition, found.place.path) is not None:
            return True
        log.error("%r is not truncated: the damaged part can be read now", partition)
        return False

    async def _ask(self, partition: Partition, found: FoundDamage) -> Judgement:
        opinion = await ask(self._following, self._workers, partition, found.place)
        if opinion.verdict is Judgement.SOUND:
            self.refused += 1
            self._trusted[partition] = self._loop.time() + TRUSTED_FOR_S
            log.error("%r is not truncated: %s, so nothing is damaged: the report was wrong", partition, opinion.reason)
        elif opinion.verdict is Judgement.UNKNOWN:
            self._say(partition, f"is damaged but not truncated yet: {opinion.reason}")
        return opinion.verdict

    def _say(self, partition: Partition, what: str) -> None:
        """Logs each message once, however often the state is checked."""
        if self._said.get(partition) != what:
            self._said[partition] = what
            log.error("%r %s", partition, what)

    def _may_cut(self, partition: Partition, epoch: int) -> bool:
        is_following = partition.leader_epoch == epoch and not partition.is_leader and not partition.is_deleted
        return is_following and self._following.node_id not in partition.isr and self._is_dispensable(partition)

    async def _leave(self, partition: Partition, offset: int) -> None:
        """After the cut. The replica may have been added to the ISR all the same, but its log is incomplete."""
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
            self._say(
                partition,
                f"is damaged but needed: {len(others)} other(s) in sync, min.insync.replicas is "
                f"{partition.config.min_insync_replicas}; bring other replicas back",
            )
        return len(others) >= needed

    def _resign(self, partition: Partition) -> None:
        """Request an ISR without this leader, and so another leader.

        At most once a minute: if a reader is wrong about all replicas, each would hand over to the next.
        """
        followers = partition.followers
        epoch, now_s = partition.leader_epoch, self._loop.time()
        resigned = self._resigned.get(partition)
        if resigned is not None and resigned[0] != epoch and now_s < resigned[1] + RESIGN_AGAIN_AFTER_S:
            return
        if followers is not None and followers.pending_isr is None:
            self._resigned[partition] = epoch, now_s
            others = tuple(one for one in partition.isr if one != self._following.node_id)
            log.warning(
                "%r is damaged on this broker, its leader: requesting another leader among %s", partition, others
            )
            partition.propose_isr(others)

    async def _cut(self, partition: Partition, offset: int) -> None:
        before = partition.log.log_end_offset
        epoch = partition.leader_epoch
        if could_not_be_opened(partition):
            await self._recovering.start_over(partition)
            if partition.log.offline is None:
                self.repaired += 1
                log.warning(
                    "%r could not be read: the whole log is fetched again from broker %d", partition, partition.leader
                )
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


def _cut_from(partition: Partition, damaged: int) -> int:
    """A compacted log is replaced as a whole. The leader has dropped tombstones that every replica had. After a partial
    cut they would be missing here, while the keys that they deleted are in the part before the cut.
    """
    owner = partition.log
    is_compacted = owner.config.compact or owner.gaps.are_known
    return min(damaged, owner.log_start_offset) if is_compacted else damaged


async def _set_or_later(event: asyncio.Event) -> None:
    """Wait for the event, but not for ever: the message to the leader may be lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REPEAT_AFTER_S):
            await event.wait()


def _damage_in(owner: Log, cause: CorruptBatch) -> Damage:
    """Find the damage in a log that could not be opened. Blocks; raises OSError."""
    base_offset = int(cause.path.rpartition("/")[2].removesuffix(LOG))
    file = owner.open_file(cause.path)
    size = file.size()
    found = scan(file, cause.path, size, Expected(range(base_offset, 1 << 63), may_have_gaps=True))
    at = found.damage_at if found.is_damaged else cause.position
    offset = base_offset if found.last_sound_base is None else found.last_sound_base
    return Damage(file, cause.path, size, offset, found.sound_at, max(at, found.sound_at))


def could_not_be_opened(partition: Partition) -> bool:
    """Because of damage. A disk that fails is not repaired by more writes."""
    offline = partition.log.offline
    return offline is not None and isinstance(offline.__cause__, (CorruptBatch, RecordsMissing))
