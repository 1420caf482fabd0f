"""The HTTP door's connections: bounded in number, and in the time that they may wait for their caller.

uvicorn times out what is idle between two requests, and nothing else: a caller that sends half a header holds its
connection for ever. This adds the rest, on uvicorn's own protocol class.

`/health` and `/metrics` answer also while the door is full (`Reserved`). Must not know: what else is asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.gateway.crowd import Crowd
from penstock.gateway.http.operations import answer
from penstock.gateway.http.shapes import Error

SWEEP_S = 1.0
KEEP_ALIVE_S = 65
# How long an answer may wait for a caller that does not read it.
UNREAD_S = 60.0
# Of the door's connections, so many are for /health and /metrics alone.
RESERVED = 64
ALWAYS_ANSWERED = ("/health", "/metrics")


class HttpConnection(H11Protocol):
    """One connection. `crowd` is set by `connections_of`."""

    crowd: Crowd[HttpConnection]
    unread_since_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        leaves = self.crowd.arrived(self, self.loop.time())
        if leaves is not None:
            leaves.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        before = self.cycle
        if self not in self.crowd.busy:
            self.crowd.begins(self, self.loop.time())
        super().data_received(data)
        if self.cycle is not before:
            self.crowd.is_busy(self)

    def on_response_complete(self) -> None:
        if not self.transport.is_closing():
            self.crowd.is_idle(self, self.loop.time())
        before = self.cycle
        super().on_response_complete()
        if self.cycle is not before:  # the next request of a pipeline has begun
            self.crowd.is_busy(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.left(self)
        super().connection_lost(exc)

    def is_unread(self, now_s: float) -> bool:
        """The caller has not read for long, and the answer cannot go on."""
        if self.flow is None or not self.flow.write_paused:
            self.unread_since_s = None
        elif self.unread_since_s is None:
            self.unread_since_s = now_s
        return self.unread_since_s is not None and now_s - self.unread_since_s >= UNREAD_S


def connections_of(crowd: Crowd[HttpConnection]) -> type[HttpConnection]:
    """uvicorn makes connections of a class and hands them nothing of ours."""
    return type("HttpConnection", (HttpConnection,), {"crowd": crowd})


async def sweep(crowd: Crowd[HttpConnection], request_s: float) -> None:
    """Close whoever is too slow, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_S)
        now_s = loop.time()
        for connection in crowd.overdue(now_s, request_s, KEEP_ALIVE_S):
            connection.transport.abort()
        unread = [connection for connection in crowd.busy if connection.is_unread(now_s)]
        crowd.timed_out += len(unread)
        for connection in unread:
            connection.transport.abort()


class Reserved:
    """Around the application: so many requests at a time, and /health and /metrics besides them."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
        elif self._under_way >= self._limit:
            await _full(self._limit)(scope, receive, send)
        else:
            self._under_way += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._under_way -= 1


def _full(limit: int) -> Any:
    response = answer(Error(50305, f"the door serves {limit} requests at a time, and is full: try again later"), 503)
    response.headers["retry-after"] = "1"
    return response
