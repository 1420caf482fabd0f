"""A plain TCP channel: a non-blocking socket with the event loop's readiness callbacks.

Reads go straight into the receiver's memory. Writes are sent at once while the peer takes them. File slices are sent by
sendfile after a header with MSG_MORE, so that payload bytes never enter this process. A slice without a kernel file
(on the simulated disk) is read.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections import deque
from collections.abc import Iterable

from penstock.ports.channel import Part, Receiver
from penstock.ports.disk import Buffer, FileSlice

# Above this number of queued bytes the receiver should stop producing more.
HIGH_WATER_BYTES = 1 << 20
# A sendfile of a huge range would hold the loop, so other connections get a turn in between.
SENDFILE_CHUNK_BYTES = 4 << 20
# The same for bytes in memory, and for bytes that a peer sends after we have closed our side.
WRITE_BYTES_PER_TURN = 64 << 10
DISCARDED_PER_TURN_BYTES = 256 << 10
# How long a peer may take to hang up after our last byte.
LINGER_S = 1.0


class _Nobody:
    """Replaces the receiver after `closed`, so that channel and receiver do not keep each other alive."""

    def receive_buffer(self) -> Buffer:
        return bytearray(1)

    def received(self, size: int) -> None:
        pass

    def writable(self) -> None:
        pass

    def closed(self, error: OSError | None) -> None:
        pass


NOBODY = _Nobody()


class SocketChannel:
    __slots__ = (
        "_closed",
        "_draining",
        "_fd",
        "_loop",
        "_queue",
        "_reading",
        "_receiver",
        "_sock",
        "_was_full",
        "_writing",
        "local",
        "peer",
        "queued_bytes",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._queue: deque[Part | memoryview] = deque()
        self.queued_bytes = 0
        self._reading = False
        self._writing = False
        self._draining = False
        self._closed = False
        self._was_full = False
        self.peer: tuple[str, int] = sock.getpeername()[:2]
        self.local: tuple[str, int] = sock.getsockname()[:2]

    def start(self, receiver: Receiver) -> None:
        self._receiver: Receiver = receiver
        self.resume_reading()

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if not self._reading and not self._closed and not self._draining:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            size = self._sock.recv_into(self._receiver.receive_buffer())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        if size:
            self._receiver.received(size)
        else:
            self._close(None)

    def is_peer_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)  # errors and hang-ups are always reported
        return bool(poll.poll(0))

    def send(self, parts: Iterable[Part]) -> None:
        if self._closed:
            return
        for part in parts:
            self._queue.append(part)
            self.queued_bytes += part.size if isinstance(part, FileSlice) else len(part)
        if not self._writing:
            self._write()
        elif self.queued_bytes > HIGH_WATER_BYTES:
            # Checked here, too: one write may take the queue from above the mark to below half of it.
            self._was_full = True

    def _write(self) -> None:
        queue = self._queue
        sock = self._sock
        left = WRITE_BYTES_PER_TURN
        try:
            while queue and left > 0:
                part = queue[0]
                if isinstance(part, FileSlice):
                    sent = self._send_slice(part)
                    if sent < part.size:
                        queue[0] = FileSlice(part.file, part.position + sent, part.size - sent)
                        self.queued_bytes -= sent
                        if sent < SENDFILE_CHUNK_BYTES:
                            continue
                        break  # a full chunk was sent: other connections get a turn
                    queue.popleft()
                    self.queued_bytes -= sent
                else:
                    more = len(queue) > 1 and isinstance(queue[1], FileSlice)
                    size = len(part)
                    if size <= left:
                        sent = sock.send(part, socket.MSG_MORE if more else 0)
                    else:
                        sent = sock.send(memoryview(part)[:left])
                    left -= sent
                    if sent < size:
                        queue[0] = memoryview(part)[sent:]
                    else:
                        queue.popleft()
                    self.queued_bytes -= sent
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._close(error)
            return
        if queue:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._write)
            if self.queued_bytes > HIGH_WATER_BYTES:
                self._was_full = True
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        if self._was_full and self.queued_bytes < HIGH_WATER_BYTES // 2:
            self._was_full = False
            self._receiver.writable()
        if self._draining and not queue:
            self._linger()

    def _send_slice(self, part: FileSlice) -> int:
        fd = part.file.fileno()
        if fd >= 0:
            sent = os.sendfile(self._fd, fd, part.position, min(part.size, SENDFILE_CHUNK_BYTES))
            if sent == 0:
                raise OSError(f"{part!r} ends before the promised size")
            return sent
        data = part.file.read(part.position, min(part.size, SENDFILE_CHUNK_BYTES))
        if not data:
            raise OSError(f"{part!r} ends before the promised size")
        return self._sock.send(data)

    def close(self, *, drain: bool = False) -> None:
        if not drain:
            self._close(None)
        elif not self._draining and not self._closed:
            self._draining = True
            self.pause_reading()
            if not self._queue:
                self._linger()

    def _linger(self) -> None:
        """Closes our side for writing, and lets the peer hang up.

        Closing with unread bytes would reset the connection, and the peer would lose answers that it has not read.
        """
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._close(error)
            return
        self._loop.add_reader(self._fd, self._discard)
        self._reading = True
        self._loop.call_later(LINGER_S, self._close, None)

    def _discard(self) -> None:
        left = DISCARDED_PER_TURN_BYTES
        try:
            while size := len(self._sock.recv(1 << 16)):
                left -= size
                if left <= 0:
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        self._close(None)

    def _close(self, error: OSError | None) -> None:
        if self._closed:
            return
        self._closed = True
        self.pause_reading()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        self._queue.clear()
        self.queued_bytes = 0
        self._sock.close()
        receiver, self._receiver = self._receiver, NOBODY
        receiver.closed(error)
