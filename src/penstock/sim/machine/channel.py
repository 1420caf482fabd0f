"""The broker's side of a simulated connection: the channel port, and the source of a listener's connections.

Follows `net.channel.SocketChannel`: bytes that the peer accepts leave at once, the rest is queued; above the high mark
the receiver is notified when there is room again; a slice is read from its file in pieces as the peer accepts them;
draining ends with a pause in which the peer may hang up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial

from penstock.net.accepting import Host
from penstock.net.channel import HIGH_WATER_BYTES, LINGER_S, NOBODY
from penstock.ports.channel import Part, Receiver
from penstock.ports.disk import FileSlice
from penstock.sim.machine.disk import SimFile
from penstock.sim.machine.endpoint import SimEndpoint
from penstock.sim.machine.network import SimListening

DISCARD_BYTES = 1 << 16


class SimChannel:
    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: SimEndpoint) -> None:
        self._loop = loop
        self._endpoint = endpoint
        self._queue: deque[Part | memoryview] = deque()
        self.queued_bytes = 0
        self.peer = endpoint.peer
        self.local = endpoint.local
        self._is_draining = False
        self._is_closed = False
        self._was_full = False
        endpoint.on_readable = self._readable
        endpoint.on_writable = self._write

    def start(self, receiver: Receiver) -> None:
        self._receiver: Receiver = receiver
        self.resume_reading()

    def pause_reading(self) -> None:
        self._endpoint.watch_readable(False)

    def resume_reading(self) -> None:
        if not self._is_closed and not self._is_draining:
            self._endpoint.watch_readable(True)

    def _readable(self) -> None:
        buffer = memoryview(self._receiver.receive_buffer())
        try:
            data = self._endpoint.read(len(buffer))
        except OSError as error:
            self._close(error)
            return
        if data:
            buffer[: len(data)] = data
            self._receiver.received(len(data))
        elif data is not None:
            self._close(None)

    def is_peer_gone(self) -> bool:
        return self._endpoint.is_peer_gone

    def send(self, parts: Iterable[Part]) -> None:
        if self._is_closed:
            return
        for part in parts:
            self._queue.append(part)
            self.queued_bytes += part.size if isinstance(part, FileSlice) else len(part)
        self._write()

    def _write(self) -> None:
        queue = self._queue
        try:
            while queue and (sent := self._send_part(queue[0])):
                self.queued_bytes -= sent
        except OSError as error:
            self._close(error)
            return
        self._endpoint.watch_writable(bool(queue))
        if self.queued_bytes > HIGH_WATER_BYTES:
            self._was_full = True
        elif self._was_full and self.queued_bytes < HIGH_WATER_BYTES // 2:
            self._was_full = False
            self._receiver.writable()
        if self._is_draining and not queue:
            self._linger()

    def _send_part(self, part: Part | memoryview) -> int:
        """Send as much of the first part as the window allows; leave the rest at the head of the queue."""
        queue = self._queue
        if isinstance(part, FileSlice):
            room = min(part.size, self._endpoint.room_bytes)
            file = part.file
            data = (file.send if isinstance(file, SimFile) else file.read)(part.position, room)
            if len(data) < room:
                raise OSError(f"{part!r} ends before the promised size")
            sent = self._endpoint.write(data)
            rest: Part | memoryview = FileSlice(part.file, part.position + sent, part.size - sent)
            left = part.size - sent
        else:
            sent = self._endpoint.write(part)
            rest = memoryview(part)[sent:]
            left = len(rest)
        if left:
            queue[0] = rest
        else:
            queue.popleft()
        return sent

    def close(self, *, drain: bool = False) -> None:
        if not drain:
            self._close(None)
        elif not self._is_draining and not self._is_closed:
            self._is_draining = True
            self.pause_reading()
            if not self._queue:
                self._linger()

    def _linger(self) -> None:
        self._endpoint.shut_write()
        self._endpoint.on_readable = self._discard
        self._endpoint.watch_readable(True)
        self._loop.call_later(LINGER_S, self._close, None)

    def _discard(self) -> None:
        try:
            data = self._endpoint.read(DISCARD_BYTES)
        except OSError as error:
            self._close(error)
            return
        if data == b"":
            self._close(None)

    def _close(self, error: OSError | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._queue.clear()
        self.queued_bytes = 0
        self._endpoint.close()
        receiver, self._receiver = self._receiver, NOBODY
        receiver.closed(error)


class SimSource:
    """A `net.accepting.ConnectionSource`: connections that come from the simulated network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bound: SimListening) -> None:
        self._loop = loop
        self._bound = bound

    @property
    def port(self) -> int:
        return self._bound.address[1]

    def open(self, host: Host) -> None:
        self._bound.accept(partial(self._connected, host))

    def _connected(self, host: Host, endpoint: SimEndpoint) -> None:
        if host.admits(endpoint.peer[0]):
            host.adopt(SimChannel(self._loop, endpoint))
        else:
            endpoint.abort()

    def close(self) -> None:
        self._bound.close()
