"""ISR changes that a leader requests from the controller.

Partitions propose changes (`Partition.propose_isr`). All changes of a turn, or of the time in which a request is under
way, travel in one request. The keeper looks for members that fell behind at intervals. A follower that has caught up
shows in its fetches; in idle partitions the keeper looks for it. The keeper also looks for unusable logs
(`PartitionEvents.log_unusable`). Must not know: how the controller is reached, what it decides.

A change stays pending until the controller or the metadata shows its outcome. Meanwhile it counts for the high
watermark, so a lost answer excludes no replica that may be in the ISR.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from penstock.core.metadata.requests import IsrAnswer, IsrChange, ReplicaEpoch
from penstock.model.errors import ApiError, ErrorCode
from penstock.replica.host import Host
from penstock.replica.partition import Partition

log = logging.getLogger(__name__)

Alter: TypeAlias = Callable[[Sequence[IsrChange]], Awaitable[Sequence[IsrAnswer]]]

RETRY_S = 0.05
RETURNS_EVERY_S = 0.5
LOOKED_AT_PER_TURN = 200
SAID_AGAIN_AFTER_S = 30.0

# The controller has decided otherwise; the metadata will show it.
_DECIDED_OTHERWISE = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_REFUSED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})


def consider_shrinking(partition: Partition) -> None:
    """Propose an ISR without members that have been behind for `replica.lag.time.max.ms`."""
    followers, host = partition.followers, partition.host
    if followers is None or followers.pending_isr is not None:
        return
    end = partition.log.log_end_offset
    late = followers.out_of_sync(partition.isr, end, host.now_ms(), host.lag_time_max_ms)
    if late:
        log.warning(
            "%r: not caught up for %d ms: %s; requesting an ISR without them (high watermark %d, end %d)",
            partition,
            host.lag_time_max_ms,
            ", ".join(f"broker {one}" for one in late),
            partition.high_watermark,
            end,
        )
        partition.propose_isr(tuple(one for one in partition.isr if one not in late))


def go_on_without(partition: Partition, broker_id: int, offset: int) -> None:
    """A follower has disowned its log from `offset` on, or cannot store more: propose an ISR without it."""
    followers = partition.followers
    follower = None if followers is None else followers.by_id.get(broker_id)
    if followers is None or follower is None:
        return
    held = follower.end_offset
    follower.disown(offset, partition.log.log_end_offset, partition.host.now_ms())
    if broker_id not in partition.isr or followers.pending_isr is not None:
        return  # `change_of` drops a request for its return; during another change the follower reports again
    if offset < 0:
        what = "cannot use its log"
    elif offset < held:
        what = f"has no intact records from offset {offset} on"
    else:
        what = f"cannot store records from offset {offset} on"
    log.warning("%r: broker %d %s; requesting an ISR without it", partition, broker_id, what)
    partition.propose_isr(tuple(one for one in partition.isr if one != broker_id))


def change_of(partition: Partition) -> IsrChange | None:
    """The change to request from the controller; None: the proposal has been dropped."""
    followers, host = partition.followers, partition.host
    if followers is None or followers.pending_isr is None:
        return None
    members = tuple(ReplicaEpoch(*member) for member in followers.asked_isr(host.now_ms(), host))
    return IsrChange(partition.topic_id, partition.index, partition.leader_epoch, partition.partition_epoch, members)


def take_answer(partition: Partition, change: IsrChange, answer: IsrAnswer) -> bool:
    """Return whether the request is settled; False: it must be sent again."""
    followers = partition.followers
    if (
        followers is None
        or followers.pending_isr is None
        or (change.leader_epoch, change.partition_epoch) != (partition.leader_epoch, partition.partition_epoch)
    ):
        return True  # the metadata arrived first
    if answer.code in _REFUSED:
        log.info("%r: the in-sync replicas stay %s: %s", partition, partition.isr, answer.code.name)
        partition.isr_refused()
    elif answer.code in _DECIDED_OTHERWISE:
        log.info("%r: %s; the metadata will show the in-sync replicas", partition, answer.code.name)
    elif answer.code is not ErrorCode.NONE:
        return False
    elif any(one not in answer.isr for one in partition.isr):
        # A smaller ISR counts for the high watermark only when the metadata shows it. A new `min.insync.replicas` may
        # have been decided before it: then the removed members are still eligible to lead.
        log.info("%r: in-sync replicas will be %s, they are %s now", partition, answer.isr, partition.isr)
    elif answer.leader_epoch == partition.leader_epoch and answer.partition_epoch >= partition.partition_epoch:
        log.info("%r: in-sync replicas are %s, were %s", partition, answer.isr, partition.isr)
        partition.commit_isr(answer.isr, answer.partition_epoch)
    return True


class IsrKeeper:
    def __init__(
        self, partitions: Iterable[Partition], host: Host, alter: Alter, loop: asyncio.AbstractEventLoop
    ) -> None:
        """`partitions`: yields the current partitions of `host` whenever it is iterated."""
        self._partitions = partitions
        self._host = host
        self._alter = alter
        self._loop = loop
        self._queue: dict[Partition, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._shrink_at_s = 0.0
        self._says_waiting_at_s = 0.0
        self._is_stopped = False

    def start(self) -> None:
        self._shrink_at_s = self._loop.time() + self._host.lag_time_max_ms / 2000
        self._look_later()

    def _look_later(self) -> None:
        wait_s = min(RETURNS_EVERY_S, self._host.lag_time_max_ms / 2000)
        self._timer = self._loop.call_later(wait_s, self._tick)

    def stop(self) -> None:
        """Pending changes stay pending: another leader, or the next incarnation of this broker, handles them."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _tick(self) -> None:
        self._look_later()
        now_s = self._loop.time()
        is_shrink_due = now_s >= self._shrink_at_s
        if is_shrink_due:
            self._shrink_at_s = now_s + self._host.lag_time_max_ms / 2000
        self._look_at(list(self._partitions), 0, is_shrink_due=is_shrink_due)

    def _look_at(self, partitions: list[Partition], first: int, *, is_shrink_due: bool) -> None:
        """A limited number each turn: thousands would block the loop for milliseconds, twice a second."""
        if self._is_stopped:
            return
        for partition in partitions[first : first + LOOKED_AT_PER_TURN]:
            if partition.is_deleted:
                continue  # deleted meanwhile
            if is_shrink_due:
                consider_shrinking(partition)
            if len(partition.isr) < len(partition.replicas):
                partition.consider_returns()
            if partition.log.offline is not None or self._host.is_disk_hung:
                self._host.events.log_unusable(partition)
        first += LOOKED_AT_PER_TURN
        if first < len(partitions):
            self._loop.call_soon(partial(self._look_at, partitions, first, is_shrink_due=is_shrink_due))

    def ask_for(self, partition: Partition) -> None:
        self._queue[partition] = None
        self._go_on()

    def _go_on(self) -> None:
        if self._queue and self._asking is None and not self._is_stopped:
            self._asking = self._loop.create_task(self._ask_all())
            self._asking.add_done_callback(self._done)

    async def _ask_all(self) -> None:
        unsettled: dict[Partition, None] = {}
        while self._queue:
            queue, self._queue = self._queue, {}
            changes = [(partition, change) for partition in queue if (change := change_of(partition)) is not None]
            if not changes:
                continue
            _tell_returns([partition for partition, _ in changes if partition not in unsettled])
            unsettled = dict.fromkeys(await self._ask(changes))
            if unsettled:
                self._queue = {**unsettled, **self._queue}
                await asyncio.sleep(RETRY_S)

    async def _ask(self, changes: list[tuple[Partition, IsrChange]]) -> list[Partition]:
        """Return the partitions whose change must be requested again."""
        try:
            answers = await self._alter([change for _, change in changes])
        except ApiError as error:
            self._tell_waiting(len(changes), error)
            return [partition for partition, _ in changes]
        by_key = {(answer.topic_id, answer.index): answer for answer in answers}
        unsettled: list[Partition] = []
        for partition, change in changes:
            answer = by_key.get((change.topic_id, change.index))
            if answer is None or not take_answer(partition, change, answer):
                unsettled.append(partition)
        return unsettled

    def _tell_waiting(self, count: int, error: ApiError) -> None:
        """Log this at intervals only: without a controller the request is repeated twenty times a second."""
        now_s = self._loop.time()
        if now_s >= self._says_waiting_at_s:
            self._says_waiting_at_s = now_s + SAID_AGAIN_AFTER_S
            log.info("%d change%s of in-sync replicas must wait: %s", count, "s" * (count != 1), error)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "requesting in-sync replicas failed", "exception": error, "task": task}
            )
        self._go_on()


def _tell_returns(partitions: Iterable[Partition]) -> None:
    """One line for each broker: after a restart it returns to all its partitions at once."""
    counts: dict[int, int] = {}
    for partition in partitions:
        followers = partition.followers
        if followers is not None and followers.pending_isr is not None:
            for broker_id in followers.pending_isr:
                if broker_id not in partition.isr:
                    counts[broker_id] = counts.get(broker_id, 0) + 1
    for broker_id, count in counts.items():
        what = "1 partition" if count == 1 else f"{count} partitions"
        log.info("broker %d has caught up with %s: requesting its return to the in-sync replicas", broker_id, what)
