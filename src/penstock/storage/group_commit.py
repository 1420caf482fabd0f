"""Group commit: everything that became dirty in one turn of the loop is flushed together.

A log has at most one flush in flight; what is appended meanwhile waits for the next one,
which starts as soon as the first is done. So the flush rate follows the disk and the batch
size follows the load, with nothing to tune. Different logs do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.ports.disk import File
from penstock.ports.flusher import Flusher

IDLE, QUEUED, FLUSHING, FLUSHING_AND_DIRTY = range(4)


class FlushTicket(Protocol):
    """What one log wants stable."""

    @property
    def files(self) -> Sequence[File]: ...

    @property
    def directories(self) -> Sequence[str]: ...


class Flushable(Protocol):
    flush_state: int

    def begin_flush(self) -> FlushTicket | None: ...

    def end_flush(self, ticket: FlushTicket, error: OSError | None) -> None: ...


class GroupCommit:
    def __init__(self, call_soon: Callable[[Callable[[], None]], object], flusher: Flusher) -> None:
        self._call_soon = call_soon
        self._flusher = flusher
        self._dirty: list[Flushable] = []
        self._scheduled = False
        self.flushes = 0
        self.in_flight = 0

    def request(self, log: Flushable) -> None:
        """Make what `log` holds now stable, soon. Cheap to call on every append."""
        state = log.flush_state
        if state == IDLE:
            log.flush_state = QUEUED
            self._dirty.append(log)
            if not self._scheduled:
                self._scheduled = True
                self._call_soon(self._start)
        elif state == FLUSHING:
            log.flush_state = FLUSHING_AND_DIRTY

    def _start(self) -> None:
        self._scheduled = False
        dirty, self._dirty = self._dirty, []
        flushing: list[tuple[Flushable, FlushTicket, int]] = []
        files: list[File] = []
        directories: dict[str, None] = {}
        for log in dirty:
            ticket = log.begin_flush()
            if ticket is None:
                log.flush_state = IDLE
                continue
            log.flush_state = FLUSHING
            files.extend(ticket.files)
            directories.update(dict.fromkeys(ticket.directories))
            flushing.append((log, ticket, len(ticket.files)))
        if flushing:
            self.flushes += 1
            self.in_flight += 1
            self._flusher.flush(files, list(directories), lambda errors: self._stable(flushing, errors))

    def _stable(self, flushing: list[tuple[Flushable, FlushTicket, int]], errors: list[OSError | None]) -> None:
        self.in_flight -= 1
        at = 0
        for log, ticket, count in flushing:
            error = next((error for error in errors[at : at + count] if error is not None), None)
            at += count
            again = log.flush_state == FLUSHING_AND_DIRTY
            log.flush_state = IDLE
            log.end_flush(ticket, error)
            if again:
                self.request(log)
