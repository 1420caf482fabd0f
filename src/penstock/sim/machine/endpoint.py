"""One end of a simulated TCP connection: a non-blocking socket with readiness callbacks.

Written bytes arrive in order, in pieces of any size, and the window limits the bytes in flight or unread. While the
path is blocked they wait, like retransmissions, and arrive some time after it opens; after `GIVE_UP_S` the sender gets
ETIMEDOUT. Bytes for a closed socket, or for a restarted machine, are answered with a reset. Must not know: the layers
above (`sim.machine.channel`, `sim.machine.transport`), who blocks paths and why (`sim.machine.network`).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol
from zlib import crc32

from penstock.model.addresses import Address
from penstock.ports.disk import Buffer
from penstock.sim.machine.loop import SimLoop
from penstock.sim.machine.process import SimProcess
from penstock.sim.machine.trace import Trace

GIVE_UP_S = 900.0  # about the time of Linux's default of 15 retransmissions

DATA: Final = 0
FIN: Final = 1
RST: Final = 2


class Fabric(Protocol):
    """The network as its endpoints need it."""

    loop: SimLoop
    trace: Trace
    context: Context

    def is_passable(self, source: str, destination: str) -> bool:
        """The path is open, and the machine at its end is up."""
        ...

    def boot_of(self, host: str) -> int:
        """Number of starts of the machine."""
        ...

    def is_open(self, source: str, destination: str) -> bool: ...

    def arrival_time(self, source: str, destination: str, size: int) -> float: ...

    def cut(self, source: str, destination: str, size: int) -> int:
        """Number of these bytes that travel together; the rest goes in another piece."""
        ...

    def retransmission_delay_s(self) -> float: ...

    def stalled(self, endpoint: SimEndpoint) -> None:
        """Ask for a `resume` when a path opens or a machine comes up."""
        ...

    def forget(self, endpoint: SimEndpoint) -> None: ...


def _nothing() -> None:
    return


def _reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "connection reset by peer")


class SimEndpoint:
    def __init__(
        self, fabric: Fabric, process: SimProcess, local: Address, peer: Address, number: int, window_bytes: int
    ) -> None:
        self._fabric = fabric
        self._loop = fabric.loop
        self.process = process
        self.local = local
        self.peer = peer
        self.name = f"c{number} {local[0]}:{local[1]}->{peer[0]}:{peer[1]}"
        self._boot = fabric.boot_of(local[0])
        self._window_bytes = window_bytes
        self.remote: SimEndpoint = self  # until `join`
        self.on_readable: Callable[[], None] = _nothing
        self.on_writable: Callable[[], None] = _nothing
        self._wants_read = self._wants_write = False
        self._is_read_due = self._is_write_due = False
        # towards the peer
        self._under_way: deque[tuple[float, int, bytes]] = deque()
        self._outstanding_bytes = 0  # written here and not read by the peer
        self._read_there_bytes = 0  # of those, read by the peer without an acknowledgement yet
        self._last_due = 0.0
        self._is_pumping = False
        self._stalled_at: float | None = None
        self._is_write_shut = False
        self.is_hung = False
        # from the peer
        self._unread = bytearray()
        self._is_eof = False
        self._error: OSError | None = None
        self.is_closed = False

    def join(self, remote: SimEndpoint) -> None:
        self.remote = remote
        remote.remote = self

    # -- the owner's side: reading ------------------------------------------------------

    def read(self, size: int) -> bytes | None:
        """Up to `size` bytes; b"" at the end of the stream; None if there are none now. Raises OSError."""
        if self._error is not None:
            raise self._error
        if self._unread:
            if len(self._unread) <= size:
                data = bytes(self._unread)
                self._unread.clear()
            else:
                data = bytes(self._unread[:size])
                del self._unread[:size]
            self.remote._read_there(len(data))
            return data
        return b"" if self._is_eof else None

    @property
    def is_readable(self) -> bool:
        return bool(self._unread) or self._is_eof or self._error is not None

    @property
    def is_peer_gone(self) -> bool:
        return self._is_eof or self._error is not None

    def watch_readable(self, wanted: bool) -> None:
        self._wants_read = wanted
        self._poke()

    def watch_writable(self, wanted: bool) -> None:
        self._wants_write = wanted
        self._poke()

    # -- the owner's side: writing ------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """How much `write` would accept now."""
        return max(self._window_bytes - self._outstanding_bytes, 0)

    def write(self, data: Buffer) -> int:
        """Accept what the window allows, perhaps nothing. Raises OSError."""
        if self._error is not None:
            raise self._error
        if self._is_write_shut or self.is_closed:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        taken, room = len(data), self._window_bytes - self._outstanding_bytes
        if taken > room:
            taken = max(room, 0)
        if self.process.is_alive:
            at = 0
            while at < taken:
                size = self._fabric.cut(self.local[0], self.peer[0], taken - at)
                self._send(DATA, bytes(data[at : at + size]))
                at += size
            self._outstanding_bytes += taken
        return taken

    def shut_write(self) -> None:
        if not self._is_write_shut and self._error is None and self.process.is_alive:
            self._is_write_shut = True
            self._send(FIN)

    def close(self) -> None:
        """Written bytes still arrive, unless there are unread bytes: then the peer gets a reset, as from a kernel."""
        if self.process.is_alive:
            self.close_by_kernel()

    def abort(self) -> None:
        if self.process.is_alive and not self.is_closed:
            self._reset_peer()

    def close_by_kernel(self) -> None:
        """The process is gone or has closed it."""
        if self.is_closed:
            return
        if self._unread:
            self._reset_peer()
            return
        self.is_closed = True
        self._wants_read = self._wants_write = False
        self._fabric.trace.note(self.name, "closed")
        if not self._is_write_shut and self._error is None:
            self._is_write_shut = True
            self._send(FIN)
        self._forget_when_done()

    def vanish(self) -> None:
        """The machine is gone: bytes in flight are lost, and no peer is notified."""
        self.is_closed = True
        self._under_way.clear()
        self._fabric.forget(self)

    def break_off(self) -> None:
        """A reset from outside, such as from a firewall: the owner is notified."""
        self._break(_reset())

    def _reset_peer(self) -> None:
        self.is_closed = True
        self._wants_read = self._wants_write = False
        self._fabric.trace.note(self.name, "reset")
        self._under_way.clear()
        if self._error is None:
            self._send(RST)
        self._forget_when_done()

    # -- in flight ----------------------------------------------------------------------

    def _send(self, kind: int, data: bytes = b"") -> None:
        due = self._fabric.arrival_time(self.local[0], self.peer[0], len(data))
        if due < self._last_due:
            due = self._last_due
        self._last_due = due
        self._under_way.append((due, kind, data))
        if not self._is_pumping:
            self._pump_at_due()

    def _pump_at_due(self) -> None:
        if self._under_way and not self._is_pumping and self._stalled_at is None:
            self._is_pumping = True
            self._loop.call_at(self._under_way[0][0], self._pump, context=self._fabric.context)

    def _is_shut(self) -> bool:
        return self.is_hung or not self._fabric.is_passable(self.local[0], self.peer[0])

    def _pump(self) -> None:
        self._is_pumping = False
        under_way, remote = self._under_way, self.remote
        if not under_way:
            return
        if self._is_shut():
            self._stall()
            return
        now = self._loop.time()
        if self._fabric.boot_of(self.peer[0]) != remote._boot:
            self._break(_reset())
            return
        size = checksum = 0
        while under_way and under_way[0][0] <= now:
            _, kind, data = under_way.popleft()
            size += len(data)
            checksum = crc32(data, checksum)
            if not remote._arrived(kind, data):
                self._break(_reset())
                return
        if size:
            self._fabric.trace.note(self.name, f"{size} bytes {checksum:08x}")
        if under_way:
            self._pump_at_due()
        elif self.is_closed:
            self._fabric.forget(self)

    def _stall(self) -> None:
        self._stalled_at = stalled_at = self._loop.time()
        self._fabric.stalled(self)
        self._loop.call_later(GIVE_UP_S, self._give_up, stalled_at, context=self._fabric.context)

    def _give_up(self, stalled_at: float) -> None:
        if self._stalled_at == stalled_at:
            self._break(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    def resume(self) -> bool:
        """A path opened. Return whether this endpoint has nothing more to wait for."""
        if self._is_shut():
            return False
        if self._stalled_at is not None:
            self._stalled_at = None
            self._is_pumping = True
            delay_s = self._fabric.retransmission_delay_s()
            self._loop.call_later(delay_s, self._pump, context=self._fabric.context)
        if self._read_there_bytes and self._fabric.is_open(self.peer[0], self.local[0]):
            self._read_there(0)
        return self._read_there_bytes == 0

    def _read_there(self, size: int) -> None:
        """The peer's process read bytes; the acknowledgement travels back if the path is open."""
        self._read_there_bytes += size
        if self.is_hung or not self._fabric.is_open(self.peer[0], self.local[0]):
            self._fabric.stalled(self)
            return
        self._outstanding_bytes -= self._read_there_bytes
        self._read_there_bytes = 0
        self._poke()

    # -- arrived ------------------------------------------------------------------------

    def _arrived(self, kind: int, data: bytes) -> bool:
        """Return False if there is no receiver and the sender must be notified."""
        if kind == RST:
            self._break(_reset())
        elif self.is_closed:
            return kind == FIN
        elif kind == FIN:
            self._is_eof = True
            self._poke()
        else:
            self._unread += data
            self._poke()
        return True

    def _break(self, error: OSError) -> None:
        self._stalled_at = None
        self._under_way.clear()
        self._unread.clear()
        if not self.is_closed and self._error is None:
            self._error = error
            self._fabric.trace.note(self.name, f"broken: {error.strerror}")
            self._poke()
        self._fabric.forget(self)

    def _forget_when_done(self) -> None:
        if self.is_closed and not self._under_way:
            self._fabric.forget(self)

    # -- readiness, level-triggered -----------------------------------------------------

    def _poke(self) -> None:
        if self._wants_read and not self._is_read_due and (self._unread or self._is_eof or self._error is not None):
            self._is_read_due = True
            self._loop.call_soon(self._tell_readable, context=self.process.context)
        if self._wants_write and not self._is_write_due and self._is_writable():
            self._is_write_due = True
            self._loop.call_soon(self._tell_writable, context=self.process.context)

    def _is_writable(self) -> bool:
        return self._error is not None or self._window_bytes > self._outstanding_bytes

    def _tell_readable(self) -> None:
        self._is_read_due = False
        if self._wants_read and self.is_readable:
            self.on_readable()
            self._poke()

    def _tell_writable(self) -> None:
        self._is_write_due = False
        if self._wants_write and self._is_writable():
            self.on_writable()
            self._poke()
