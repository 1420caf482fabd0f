"""Group commit: the next flush of a log covers everything appended since the previous one.

A log has at most one flush in progress. Batches appended meanwhile wait for the next flush, which starts as soon as
the current one ends. So the flush rate follows the disk and the flush size follows the load, without tuning.
Different logs do not wait for each other.
A flush that cannot begin because no descriptor is free is postponed and retried: nothing is lost, and the disk was not
involved.
Disks hang: `waiting_since_s` gives the start of the oldest flush in progress; `replica.disk_watch` reacts to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.model.errors import LogOffline
from penstock.ports.disk import Disk
from penstock.ports.flusher import Flusher
from penstock.storage.durability import Flush, FlushPutOff, is_passing

log = logging.getLogger(__name__)

PUT_OFF_S = 0.1
TELL_EVERY_S = 30.0
AGES = 32
IDLE, QUEUED, FLUSHING, FLUSHING_AND_DIRTY = range(4)


class SyncedLog(Protocol):
    directory: str

    def begin_flush(self) -> Flush | None: ...

    def end_flush(self, flush: Flush, error: OSError | None) -> None: ...

    def put_off_flush(self, flush: Flush) -> None: ...

    def take_offline(self, error: OSError) -> None: ...


class LoopTimers(Protocol):
    """The part of an event loop that group commit needs."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> object: ...


class Flushable(Protocol):
    flush_state: int

    def begin_flush(self) -> Flush | None:
        """None: nothing to do. Raises FlushPutOff."""
        ...

    def put_off_flush(self, ticket: Flush) -> None:
        """The flush did not take place and nothing is lost; it will begin again."""
        ...

    def end_flush(self, ticket: Flush, error: OSError | None) -> None: ...


class GroupCommit:
    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        flusher: Flusher,
        timers: LoopTimers | None = None,
    ) -> None:
        """Without timers, a postponed flush waits for the next request, and hanging flushes are not detected."""
        self._call_soon = call_soon
        self._flusher = flusher
        self._timers = timers
        self._put_off: list[Flushable] = []
        self._tells_from_s = 0.0
        self._ended_s = [0.0] * AGES
        """End of the last flush by duration: less than 1 ms, 2 ms, 4 ms and so on."""
        self._dirty: list[Flushable] = []
        self._scheduled = False
        self.flushes = 0
        self._waited_for: dict[Flushable, float] = {}  # start time; the oldest first
        self._when_idle: list[Callable[[], None]] = []

    def request(self, log: Flushable) -> None:
        """Make everything `log` holds now stable soon. Cheap enough for every append."""
        state = log.flush_state
        if state == IDLE:
            log.flush_state = QUEUED
            self._dirty.append(log)
            if not self._scheduled:
                self._scheduled = True
                self._call_soon(self._gather)
        elif state == FLUSHING:
            log.flush_state = FLUSHING_AND_DIRTY

    def _gather(self) -> None:
        """Wait a turn: more batches arrive, and due answers leave before threads compete with the loop."""
        self._call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        dirty, self._dirty = self._dirty, []
        now_s = 0.0 if self._timers is None else self._timers.time()
        for one in dirty:
            try:
                ticket = one.begin_flush()
            except FlushPutOff as error:
                self._try_later(one, error.cause)
                continue
            if ticket is None:
                one.flush_state = IDLE
                continue
            self._waited_for[one] = now_s
            one.flush_state = FLUSHING
            self.flushes += 1
            self._flusher.flush(ticket.files, ticket.directories, partial(self._stable, one, ticket))
        if self._when_idle:
            self._tell_idle()

    def _stable(self, log: Flushable, ticket: Flush, error: OSError | None) -> None:
        if error is not None and is_passing(error):
            del self._waited_for[log]
            log.put_off_flush(ticket)
            self._try_later(log, error)
            return
        began_s = self._waited_for.pop(log)
        if self._timers is not None:
            now_s = self._timers.time()
            self._ended_s[min(int((now_s - began_s) * 1000).bit_length(), AGES - 1)] = now_s
        again = log.flush_state == FLUSHING_AND_DIRTY
        log.flush_state = IDLE
        log.end_flush(ticket, error)
        if again:
            self.request(log)
        if self._when_idle:
            self._tell_idle()

    def _try_later(self, flushable: Flushable, error: OSError) -> None:
        if self._timers is None:
            flushable.flush_state = IDLE
            return
        flushable.flush_state = QUEUED
        now_s = self._timers.time()
        if now_s >= self._tells_from_s:
            self._tells_from_s = now_s + TELL_EVERY_S
            log.warning("a flush cannot begin: %s; retrying", error)
        if not self._put_off:
            self._timers.call_later(PUT_OFF_S, self._try_again)
        self._put_off.append(flushable)

    def _try_again(self) -> None:
        again, self._put_off = self._put_off, []
        self._dirty += again
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._start)

    def waiting_since_s(self) -> float | None:
        """Start of the oldest flush in progress; None: there is none."""
        return next(iter(self._waited_for.values()), None)

    def last_ended_s(self, age_s: float = 0.0) -> float:
        """End of the last flush, successful or not, that took about `age_s` or longer."""
        return max(self._ended_s[min(int(age_s * 1000).bit_length(), AGES - 1) :])

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once nothing is dirty and no flush is in progress or postponed."""
        self._when_idle.append(callback)
        self._tell_idle()

    def _tell_idle(self) -> None:
        if not self._waited_for and not self._dirty and not self._put_off:
            callbacks, self._when_idle = self._when_idle, []
            for callback in callbacks:
                callback()


def flush_blocking(disk: Disk, log: SyncedLog, *, is_tried_again: bool = False) -> None:
    """Make everything `log` holds stable in place: for start-up, before a loop runs.

    `is_tried_again`: without a free descriptor it raises FlushPutOff, and the caller retries.
    """
    try:
        ticket = log.begin_flush()
    except FlushPutOff as error:
        if is_tried_again:
            raise
        # There is no retry, and the log must not serve records that are not stable.
        log.take_offline(error.cause)
        raise LogOffline(log.directory, error.cause) from error
    if ticket is None:
        return
    try:
        for file in ticket.files:
            file.sync()
        for path in ticket.directories:
            disk.sync_directory(path)
    except OSError as error:
        if is_tried_again and is_passing(error):
            log.put_off_flush(ticket)
            raise FlushPutOff(error) from error
        log.end_flush(ticket, error)
        raise LogOffline(log.directory, error) from error
    log.end_flush(ticket, None)
