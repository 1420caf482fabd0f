"""The line protocol's server: accepts connections, and bounds their number and their idle time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence

from penstock.gateway.crowd import Crowd
from penstock.gateway.line.session import Attention, Session
from penstock.ports.clock import Clock
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.publisher import Publisher

log = logging.getLogger(__name__)

SWEEP_S = 1.0
FULL = b"ERR too many connections\n"


class LineServer:
    def __init__(
        self,
        cluster: AsyncCluster,
        producer: Publisher,
        clock: Clock,
        crowd: Crowd[asyncio.Task[None]],
        request_timeout_s: float,
        max_idle_s: float,
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._clock = clock
        self._crowd = crowd
        self._request_timeout_s = request_timeout_s
        self._max_idle_s = max_idle_s
        self._servers: list[asyncio.Server] = []
        self._sessions: dict[asyncio.Task[None], None] = {}
        self._last_words: dict[asyncio.Task[None], bytes] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        for sock in sockets:
            self._servers.append(await asyncio.start_server(self._serve, sock=sock))
        self._sweeper = asyncio.create_task(self._sweep())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions[task] = None
        leaves = self._crowd.arrived(task, asyncio.get_running_loop().time())
        try:
            if leaves is task:
                writer.write(FULL)
            else:
                if leaves is not None:
                    self._end(leaves, FULL)
                attention = Attention(self._crowd, task)
                await Session(self._cluster, self._producer, self._clock, reader, writer, attention).run()
            await writer.drain()
        except ConnectionError as error:
            log.debug("a line connection ended: %s", error)
        except asyncio.CancelledError:
            log.debug("a line connection was closed")
        finally:
            del self._sessions[task]
            self._crowd.left(task)
            words = self._last_words.pop(task, b"")
            if words and not writer.is_closing():
                writer.write(words)
            writer.close()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        request_s, idle_s = self._request_timeout_s, self._max_idle_s
        words = f"ERR closed: a line must arrive within {request_s:g} s, and the next one within {idle_s:g} s\n"
        while True:
            await asyncio.sleep(SWEEP_S)
            for task in self._crowd.overdue(loop.time(), request_s, idle_s):
                self._end(task, words.encode())

    def _end(self, task: asyncio.Task[None], words: bytes) -> None:
        self._last_words[task] = words
        task.cancel()

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        sessions = list(self._sessions)
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
