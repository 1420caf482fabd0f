"""Opens offline logs again when the disk works, without a restart.

Every round begins with a probe: a small file is written and synced. Then each offline log is opened again, as after a
crash. Only the stable part is trusted:

    following        the log is truncated to the stable offset, and fetched again. The replica left the ISR before
                     (`replica.withdrawal`) and returns when it has caught up. While too few others are in sync it may
                     still be elected: then nothing is cut, and it stays offline if promised records are missing
    leading          no other replica is in sync, or it would have taken over. The leader continues only if nothing is
                     missing: different batches at offsets already fetched would go unnoticed in the same leader epoch

A follower may have claimed more than its stable offset, if flushing is or was recently left to the system. So it first
tells its leader that nothing here counts. Then it waits until no pending return to the ISR can rely on the old claim.

Pauses grow while that fails or does not last. `replica.repair` handles damaged logs.

Must not know: why a log went offline, how it is opened.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from penstock.model.errors import StorageError
from penstock.replica.partition import Partition
from penstock.replica.repair import could_not_be_opened
from penstock.storage.group_commit import IDLE
from penstock.storage.log import Log

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
FORGIVEN_AFTER_S = 2 * LONGEST_PAUSE_S
"""After this time without an offline log, pauses begin small again."""


HEARD_AFTER_S = 5.0
NOTHING = -1


class RevivalFetchers(Protocol):
    """The part of `replica.fetchers.ReplicaFetchers` that a revival uses."""

    def disown(self, partition: Partition, offset: int) -> None: ...


class Reopening(Protocol):
    """The part of `replica.hosting.HostedPartitions` that a revival uses."""

    async def probe(self) -> None: ...

    async def reopen(self, partition: Partition) -> Log: ...


class Revivals:
    def __init__(self, loop: asyncio.AbstractEventLoop, reopening: Reopening, following: RevivalFetchers) -> None:
        self._loop = loop
        self._reopening = reopening
        self._following = following
        self._told: dict[Partition, tuple[int, float]] = {}  # in which leader epoch, and when
        self._offline: dict[Partition, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._ended_s = -FORGIVEN_AFTER_S
        self._is_stopped = False
        self._has_told = False
        self.revived = 0

    def look_at(self, partition: Partition) -> None:
        """The log may be offline. Cheap to repeat."""
        if partition.log.offline is None or partition in self._offline or could_not_be_opened(partition):
            return
        if not self._offline and self._loop.time() >= self._ended_s + FORGIVEN_AFTER_S:
            self._pause_s = FIRST_PAUSE_S
        self._offline[partition] = None
        self._try_later()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._round is not None:
            self._round.cancel()

    def _try_later(self) -> None:
        if self._timer is None and self._round is None and not self._is_stopped:
            self._timer = self._loop.call_later(self._pause_s, self._begin)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _begin(self) -> None:
        self._timer = None
        self._round = self._loop.create_task(self._try_all())
        self._round.add_done_callback(self._ended)

    async def _try_all(self) -> None:
        try:
            await self._reopening.probe()
        except OSError as error:
            if not self._has_told:
                self._has_told = True
                log.error("%d logs stay offline: the disk does not work: %s", len(self._offline), error)
            return
        for partition in list(self._offline):
            is_over = partition.is_deleted or partition.log.offline is None or could_not_be_opened(partition)
            if is_over or await self._revive(partition):
                self._offline.pop(partition, None)
                self._told.pop(partition, None)
                self._has_told = False

    async def _revive(self, partition: Partition) -> bool:
        """Return whether its log can be used again."""
        old, epoch, was_needed = partition.log, partition.leader_epoch, partition.is_needed
        if not partition.is_leader and partition.node_id in partition.isr:
            return False  # the leader still counts on this log
        if not (partition.is_leader or self._is_heard(partition)):
            return False
        if partition.flush_state != IDLE or old.is_being_cleaned or old.is_being_cut or old.is_deleting:
            return False  # other work on the old log is under way
        end, high_watermark, promised = old.log_end_offset, partition.high_watermark, partition.promised_offset
        try:
            fresh = await self._reopening.reopen(partition)
        except (StorageError, OSError) as error:
            log.info("%r stays offline: %s", partition, error)
            return False
        if partition.is_deleted or (partition.log, partition.leader_epoch, partition.is_needed) != (
            old,
            epoch,
            was_needed,
        ):
            fresh.close(clean=False)
            return False  # the log was opened for another role
        if partition.is_leader and old.was_opened and fresh.offline is None:
            is_alone = len(partition.replicas) == 1
            if fresh.log_end_offset < (high_watermark if is_alone else end):
                fresh.close(clean=False)
                log.error(
                    "%r stays offline: of %d offsets %d are left, and only a new leader epoch may continue from "
                    "there; restart this broker, or bring other replicas back",
                    partition,
                    end,
                    fresh.log_end_offset,
                )
                return False
        elif was_needed and fresh.offline is None and fresh.log_end_offset < promised:
            fresh.close(clean=False)
            log.error(
                "%r stays offline: %d offsets were acknowledged, %d are left; bring other replicas back, or restart "
                "this broker so that it is not elected",
                partition,
                promised,
                fresh.log_end_offset,
            )
            return False
        partition.reopened(fresh)
        if fresh.offline is None:
            self.revived += 1
            log.warning("%r is online again up to offset %d, was at %d", partition, fresh.log_end_offset, end)
        partition.host.events.role_changed(partition)
        return True

    def _is_heard(self, partition: Partition) -> bool:
        now_s, told = self._loop.time(), self._told.get(partition)
        if told is None or told[0] != partition.leader_epoch:
            self._told[partition] = told = partition.leader_epoch, now_s
        self._following.disown(partition, NOTHING)
        return now_s >= told[1] + HEARD_AFTER_S

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._round = None
        self._ended_s = self._loop.time()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "reopening offline logs failed", "exception": error, "task": task}
            )
        if self._offline:
            self._try_later()
