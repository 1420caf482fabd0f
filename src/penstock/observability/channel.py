"""How the doors' process gets the broker's metrics: one byte asks, a length and a page answer.

Over a socket pair that the broker made, so there is no port, no file and nobody else. Either end
closes when its process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

LENGTH_BYTES = 4
ASK = b"m"


async def serve(sock: socket.socket, page: Callable[[], Awaitable[bytes]]) -> None:
    """Answer until the other end is closed. The broker's side."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    try:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1):
                found = await page()
                writer.write(len(found).to_bytes(LENGTH_BYTES, "big") + found)
                await writer.drain()
    finally:
        writer.close()


class MetricsReader:
    """The doors' side. Those who ask while a page is under way share it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._asking: asyncio.Task[bytes] | None = None

    async def page(self) -> bytes:
        """Raises ConnectionError when the broker is going."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        # Shielded: a caller who hangs up must not leave half an answer in the stream.
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._sock)
        reader, writer = self._streams
        writer.write(ASK)
        try:
            size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
            return await reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the broker closed the metrics channel") from error
