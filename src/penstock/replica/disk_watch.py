"""Detects a disk that hangs: flushes on it neither end nor fail.

The disk hangs if a flush has been under way for longer than `penstock.disk.hung.ms` and no other flush ended in that
time. If other flushes end, the disk may just be busy: then a flush is given `PATIENCE` times as long. It is given
longer still while flushes end that took about as long themselves: the queue moves, and other brokers would get the same
load. While the disk hangs, partitions withdraw (`replica.withdrawal`) and a leader of the metadata quorum hands over.
The disk works again when no old flush is under way, and writing and syncing a small file takes less than half of the
limit. A disk that is merely very slow does not pass this test, so leadership does not move with every sync. A disk that
fails or is full passes: other modules handle that.

Must not know: partitions, the quorum. Listeners are passed in (`on_change`) or join later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

PATIENCE = 4
LOOKS = 4
"""Looks per time limit."""
SHORTEST_PAUSE_S = 0.02


class DiskWatch:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: str,
        waiting_since_s: Sequence[Callable[[], float | None]],
        last_ended_s: Callable[[float], float],
        limit_ms: Callable[[], int],
        probe: Callable[[], Awaitable[None]],
        on_change: Callable[[bool], None],
    ) -> None:
        """`waiting_since_s`: for each writer to the disk, when its oldest flush under way began. `last_ended_s`: the
        end of the last flush that had taken about this many seconds or more. `on_change`: called when the disk hangs
        and when it answers again.
        """
        self._loop = loop
        self.directory = directory
        self._waiting_since_s = list(waiting_since_s)
        self._last_ended_s = last_ended_s
        self._limit_ms = limit_ms
        self._probe = probe
        self._timer: asyncio.TimerHandle | None = None
        self._probing: asyncio.Task[None] | None = None
        self._hung_since_s = 0.0
        self.is_hung = False
        self.times_hung = 0
        self._on_change = [on_change]
        self._hang = asyncio.Event()

    def start(self) -> None:
        self._timer = self._loop.call_later(max(self._limit_s / LOOKS, SHORTEST_PAUSE_S), self._tick)

    def join(self, waiting_since_s: Callable[[], float | None], on_change: Callable[[bool], None]) -> bool:
        """Add another writer to the disk and its listener. Returns whether the disk hangs now."""
        self._waiting_since_s.append(waiting_since_s)
        self._on_change.append(on_change)
        return self.is_hung

    async def hangs(self) -> None:
        """Returns when the disk hangs."""
        await self._hang.wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._probing is not None:
            self._probing.cancel()

    @property
    def _limit_s(self) -> float:
        return self._limit_ms() / 1000

    @property
    def waited_s(self) -> float:
        """How long the oldest flush under way has taken so far."""
        since_s = [found for ask in self._waiting_since_s if (found := ask()) is not None]
        return self._loop.time() - min(since_s) if since_s else 0.0

    def _tick(self) -> None:
        self.start()
        waited_s = self.waited_s
        if not self.is_hung:
            if waited_s >= self._limit_s and self._is_stuck(waited_s):
                self._begin(waited_s)
        elif waited_s < self._limit_s / 2 and self._probing is None:
            self._probing = self._loop.create_task(self._try())
            self._probing.add_done_callback(self._tried)

    def _is_stuck(self, waited_s: float) -> bool:
        alike_s = waited_s if waited_s >= PATIENCE * self._limit_s else 0.0
        return self._loop.time() - self._last_ended_s(alike_s) >= self._limit_s

    def _begin(self, waited_s: float) -> None:
        self.is_hung = True
        self._hang.set()
        self.times_hung += 1
        self._hung_since_s = self._loop.time() - waited_s
        log.critical(
            "the disk under %s hangs: a flush has been under way for %.1f s; this broker gives up leadership and "
            "leaves the in-sync replicas until the disk answers again",
            self.directory,
            waited_s,
        )
        self._tell()

    async def _try(self) -> None:
        began_s = self._loop.time()
        try:
            await self._probe()
        except OSError as error:
            log.info("the disk under %s answers: %s", self.directory, error)
        if self._loop.time() - began_s < self._limit_s / 2 and self.waited_s < self._limit_s / 2:
            self._end()

    def _end(self) -> None:
        self.is_hung = False
        self._hang.clear()
        log.warning(
            "the disk under %s answers again after %.1f s: this broker catches up and may lead again",
            self.directory,
            self._loop.time() - self._hung_since_s,
        )
        self._tell()

    def _tell(self) -> None:
        for tell in self._on_change:
            tell(self.is_hung)

    def _tried(self, task: asyncio.Task[None]) -> None:
        self._probing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "probing a disk failed", "exception": error, "task": task})
