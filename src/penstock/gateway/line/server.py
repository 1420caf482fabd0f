"""The line protocol's listening sockets: accepts, bounds the number of connections, ends them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence

from penstock.client.cluster import Cluster
from penstock.client.producer import Producer
from penstock.gateway.line.session import Session
from penstock.ports.clock import Clock

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1000


class LineServer:
    def __init__(self, cluster: Cluster, producer: Producer, clock: Clock) -> None:
        self._cluster = cluster
        self._producer = producer
        self._clock = clock
        self._servers: list[asyncio.Server] = []
        self._sessions: dict[asyncio.Task[None], None] = {}

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        for sock in sockets:
            self._servers.append(await asyncio.start_server(self._serve, sock=sock))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions[task] = None
        try:
            if len(self._sessions) > MAX_CONNECTIONS:
                writer.write(b"ERR too many connections\n")
            else:
                await Session(self._cluster, self._producer, self._clock, reader, writer).run()
            await writer.drain()
        except ConnectionError as error:
            log.debug("a line connection ended: %s", error)
        except asyncio.CancelledError:
            log.debug("a line connection was ended")
        finally:
            del self._sessions[task]
            writer.close()

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        sessions = list(self._sessions)
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
