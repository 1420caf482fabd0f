"""Periodic work of a node: checkpoints, retention, `flush.ms`, compaction, removal of deleted files.

Each kind of work has its own timer. Slow work runs as a task, and `stop` waits for it. A failure is logged, and the
next run tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.model.errors import StorageError
from penstock.replica.cleaning import LogCleaning
from penstock.replica.housekeeping import Housekeeping

log = logging.getLogger(__name__)

EXPIRE_INTERVAL_S = 0.2
REMOVE_INTERVAL_S = 1.0
CLEAN_INTERVAL_MIN_S = 0.1


class NodeTimers:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        housekeeping: Housekeeping,
        cleaning: LogCleaning,
        running: RunningConfig,
    ) -> None:
        self._loop = loop
        self._housekeeping = housekeeping
        self._cleaning = cleaning
        self._running = running
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._jobs: dict[asyncio.Task[None], None] = {}

    def start(self, settings: BrokerConfig, expire: Callable[[], object]) -> None:
        self._every(EXPIRE_INTERVAL_S, "expire", expire)
        # Kafka's default for the scheduler interval is "never", like that of flush.ms; a topic may still set flush.ms.
        self._every(
            min(settings.log_flush_scheduler_interval_ms, 1000) / 1000,
            "flush",
            self._flush_overdue,
        )
        self._every(settings.log_retention_check_interval_ms / 1000, "retention", self._apply_retention)
        self._every(settings.log_flush_offset_checkpoint_interval_ms / 1000, "checkpoint", self._checkpoint)
        if settings.is_clustered:
            every_s = settings.replica_high_watermark_checkpoint_interval_ms / 1000
            self._every(every_s, "high watermarks", self._checkpoint_high_watermarks)
        self._every(REMOVE_INTERVAL_S, "remove", self._remove_deleted_files)
        if settings.log_cleaner_enable:
            self._clean_later()

    def _every(self, interval_s: float, name: str, work: Callable[[], object]) -> None:
        def tick() -> None:
            self._timers[name] = self._loop.call_later(interval_s, tick)
            work()

        self._timers[name] = self._loop.call_later(interval_s, tick)

    def _flush_overdue(self) -> None:
        self._run(self._housekeeping.flush_overdue)

    def _checkpoint(self) -> None:
        self._run(self._housekeeping.checkpoint)

    def _checkpoint_high_watermarks(self) -> None:
        self._run(self._housekeeping.checkpoint_high_watermarks)

    def _remove_deleted_files(self) -> None:
        self._run(self._housekeeping.remove_deleted_files)

    def _clean_later(self) -> None:
        backoff_s = self._running.current.log_cleaner_backoff_ms / 1000  # may change while the broker runs
        self._timers["clean"] = self._loop.call_later(max(backoff_s, CLEAN_INTERVAL_MIN_S), self._clean)

    def _clean(self) -> None:
        self._clean_later()
        self._run(self._cleaning.run)

    def _apply_retention(self) -> None:
        self._run(self._housekeeping.apply_retention)

    def _run(self, work: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            try:
                await work()
            except (StorageError, OSError) as error:
                log.error("housekeeping failed, the next run tries again: %s", error)

        job = asyncio.ensure_future(run())
        self._jobs[job] = None
        job.add_done_callback(self._jobs.pop)

    async def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._cleaning.stop()
        while self._jobs:
            # Not one by one: waiting for a job that is done, but not yet removed, would never yield.
            await asyncio.gather(*self._jobs)
