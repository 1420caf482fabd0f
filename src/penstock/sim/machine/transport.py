"""asyncio's transports and servers on simulated endpoints, as `loop.create_connection` returns to clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from penstock.model.addresses import Address
from penstock.ports.disk import Buffer
from penstock.sim.machine.endpoint import SimEndpoint

READ_BYTES = 64 << 10
HIGH_WATER_BYTES = 64 << 10


class SimTransport(asyncio.Transport):
    """Starts reading at once, for streaming protocols and for buffered protocols."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: SimEndpoint, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": endpoint.peer, "sockname": endpoint.local})
        self._loop = loop
        self._endpoint = endpoint
        self._protocol = cast(asyncio.Protocol, protocol)
        self._queue = bytearray()
        self._high_bytes, self._low_bytes = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._is_full = False
        self._is_eof_due = False
        self._is_closing = False
        self._is_lost = False
        self._is_paused = False
        endpoint.on_readable = self._readable
        endpoint.on_writable = self._write
        protocol.connection_made(self)
        endpoint.watch_readable(not self._is_closing and not self._is_paused)

    # -- in -----------------------------------------------------------------------------

    def _readable(self) -> None:
        protocol: asyncio.BaseProtocol = self._protocol
        lent = memoryview(protocol.get_buffer(-1)) if isinstance(protocol, asyncio.BufferedProtocol) else None
        try:
            data = self._endpoint.read(READ_BYTES if lent is None else min(READ_BYTES, len(lent)))
        except OSError as error:
            self._lose(error)
            return
        if data and lent is not None:
            lent[: len(data)] = data
            cast(asyncio.BufferedProtocol, protocol).buffer_updated(len(data))
        elif data:
            self._protocol.data_received(data)
        elif data is not None:
            self._endpoint.watch_readable(False)
            if not self._protocol.eof_received():
                self.close()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._endpoint.watch_readable(False)

    def resume_reading(self) -> None:
        self._is_paused = False
        if not self._is_closing:
            self._endpoint.watch_readable(True)

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    # -- out ----------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if self._is_closing or not data:
            return
        if self._is_eof_due:
            raise RuntimeError("cannot write after write_eof")
        self._queue += data
        self._write()
        if len(self._queue) > self._high_bytes and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def _write(self) -> None:
        try:
            while self._queue and (taken := self._endpoint.write(self._queue)):
                del self._queue[:taken]
        except OSError as error:
            self._loop.call_soon(self._lose, error)
            self._endpoint.watch_writable(False)
            return
        self._endpoint.watch_writable(bool(self._queue))
        if self._is_full and len(self._queue) <= self._low_bytes:
            self._is_full = False
            self._protocol.resume_writing()
        if not self._queue:
            if self._is_eof_due:
                self._endpoint.shut_write()
            if self._is_closing:
                self._loop.call_soon(self._lose, None)

    def write_eof(self) -> None:
        if not self._is_eof_due:
            self._is_eof_due = True
            self._write()

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high if high is not None else 4 * low if low is not None else HIGH_WATER_BYTES
        self._low_bytes = low if low is not None else self._high_bytes // 4

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        return len(self._queue)

    # -- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Queued bytes leave first."""
        if not self._is_closing:
            self._is_closing = True
            self._endpoint.watch_readable(False)
            if not self._queue:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._queue.clear()
            self._endpoint.watch_readable(False)
            self._loop.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._queue.clear()
        self._endpoint.close()
        self._protocol.connection_lost(error)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)


class SimServer(asyncio.AbstractServer):
    """A listening port for asyncio's protocols; it accepts from the start."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, close: Callable[[], None]) -> None:
        self._loop = loop
        self.address = address
        self._close = close
        self._closed: asyncio.Future[None] = loop.create_future()

    def close(self) -> None:
        if not self._closed.done():
            self._close()
            self._closed.set_result(None)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return not self._closed.done()

    async def start_serving(self) -> None:
        """It already serves."""

    async def serve_forever(self) -> None:
        await asyncio.shield(self._closed)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def __aexit__(self, *_: Any) -> None:
        self.close()
