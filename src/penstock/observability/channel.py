"""Requests of the gateway process to its broker: one byte for the kind; the answer is a length and a page.

    m    the page of metrics
    h    the broker's health, as JSON (`node.health`)

They use a socket pair made by the broker, so there is no port, no file and no other client. Either end
closes when its process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping

LENGTH_BYTES = 4
METRICS = b"m"
HEALTH = b"h"
Pages = Mapping[bytes, Callable[[], Awaitable[bytes]]]


async def serve(sock: socket.socket, pages: Pages) -> None:
    """The broker's side: answer until the other end is closed."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    try:
        with contextlib.suppress(ConnectionError):
            while asked := await reader.read(1):
                found = await pages[asked]()
                writer.write(len(found).to_bytes(LENGTH_BYTES, "big") + found)
                await writer.drain()
    finally:
        writer.close()


class BrokerReader:
    """The gateway's side. Concurrent requests for the same page share one answer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._asking: dict[bytes, asyncio.Task[bytes]] = {}
        self._turn = asyncio.Lock()

    async def page(self) -> bytes:
        """The metrics. Raises ConnectionError if the broker is stopping."""
        return await self._shared(METRICS)

    async def health(self) -> bytes:
        """Raises ConnectionError if the broker is stopping."""
        return await self._shared(HEALTH)

    async def _shared(self, what: bytes) -> bytes:
        asking = self._asking.get(what)
        if asking is None or asking.done():
            asking = self._asking[what] = asyncio.create_task(self._ask(what))
        # Shielded: a cancelled caller must not leave half an answer in the stream.
        return await asyncio.shield(asking)

    async def _ask(self, what: bytes) -> bytes:
        async with self._turn:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(sock=self._sock)
            reader, writer = self._streams
            writer.write(what)
            try:
                size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                return await reader.readexactly(size)
            except asyncio.IncompleteReadError as error:
                raise ConnectionError("the broker has closed its channel to the gateway: it is stopping") from error
