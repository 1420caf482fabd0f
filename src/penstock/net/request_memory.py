"""Memory for incoming requests, shared by all connections of a broker (`queued.max.request.bytes`).

Every connection has its own small buffer. A larger request takes more memory from here as its bytes really arrive. When
the memory is used up, connections that need more stop reading and are served in the order of arrival. One of them may
exceed the bound, so that a broker full of half-received requests can finish one. Copies of requests in progress count
as well (`charged`).

A connection that others have waited for too long is closed: its request arrives too slowly or not at all. Only the time
in which others waited counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

DEFAULT_BYTES: Final = 512 << 20
"""The meaning of -1."""
MAX_HOLD_S: Final = 30.0


class Holder(Protocol):
    def memory_granted(self) -> None: ...

    def abort(self, error: Exception | None = None) -> None: ...


class RequestMemory:
    def __init__(self, limit_bytes: int, now: Callable[[], float]) -> None:
        self.limit_bytes = DEFAULT_BYTES if limit_bytes < 0 else limit_bytes
        self.used_bytes = 0
        self.waits = 0
        self._now = now
        self._held: dict[Holder, int] = {}
        self._since: dict[Holder, float] = {}
        """The total seconds of shortage when the holder last finished a request, or began to hold memory."""
        self._shortage_before_s = 0.0
        self._short_since = 0.0
        self._waiting: dict[Holder, int] = {}
        self._favoured: Holder | None = None
        self._is_granting = False
        self.is_short = False
        """Whether a connection waits."""

    def _shortage_s(self) -> float:
        """How long there has been a shortage, in total."""
        return self._shortage_before_s + (self._now() - self._short_since if self.is_short else 0.0)

    def _note_shortage(self) -> None:
        is_short = bool(self._waiting)
        if is_short and not self.is_short:
            self._short_since = self._now()
        elif self.is_short and not is_short:
            self._shortage_before_s = self._shortage_s()
        self.is_short = is_short

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def try_take(self, holder: Holder, size: int) -> bool:
        """Takes memory that is useful but not necessary. False if it is not available."""
        if self._waiting or self.used_bytes + size > self.limit_bytes:
            return False
        self._give(holder, size)
        return True

    def take(self, holder: Holder, size: int) -> bool:
        """Takes memory that is necessary. False means later: `memory_granted` is called when it has been taken."""
        if holder is self._favoured:
            self._give(holder, size)
            return True
        if self.try_take(holder, size):
            return True
        self.waits += 1
        self._waiting[holder] = size
        self._note_shortage()
        self._grant()
        return holder not in self._waiting

    def _give(self, holder: Holder, size: int) -> None:
        self.used_bytes += size
        self._held[holder] = self._held.get(holder, 0) + size
        self._since.setdefault(holder, self._shortage_s())

    def release(self, holder: Holder, size: int) -> None:
        left = self._held.get(holder, 0) - size
        self.used_bytes -= size
        if left > 0:
            self._held[holder] = left
            self._since[holder] = self._shortage_s()
        else:
            self._held.pop(holder, None)
            self._since.pop(holder, None)
        if holder is self._favoured:
            self._favoured = None
        self._grant()

    @contextmanager
    def charged(self, size: int) -> Iterator[None]:
        """Counts a copy of a received request. It never waits, but others may have to."""
        self.used_bytes += size
        try:
            yield
        finally:
            self.used_bytes -= size
            self._grant()

    def leave(self, holder: Holder) -> None:
        """Releases everything: the connection has ended."""
        self._waiting.pop(holder, None)
        self.release(holder, self._held.get(holder, 0))

    def _grant(self) -> None:
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while self._waiting:
                holder, size = next(iter(self._waiting.items()))
                if self.used_bytes + size > self.limit_bytes:
                    if self._favoured is not None:
                        return
                    self._favoured = holder
                del self._waiting[holder]
                self._give(holder, size)
                holder.memory_granted()
        finally:
            self._is_granting = False
            self._note_shortage()

    def touch(self, holder: Holder) -> None:
        """The holder has finished a request, and uses the memory for the next one."""
        if holder in self._since:
            self._since[holder] = self._shortage_s()
        if holder is self._favoured:
            self._favoured = None
            self._grant()

    def late(self) -> list[Holder]:
        """The holders that others have waited for too long."""
        if not self._waiting:
            return []
        before = self._shortage_s() - MAX_HOLD_S
        return [holder for holder, since in self._since.items() if since < before]
