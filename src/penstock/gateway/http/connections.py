"""The REST proxy's connections: bounded in number, and in the time that they wait for their callers.

uvicorn closes only connections that are idle between two requests: a caller that sends half a header would hold its
connection for ever. This module adds the missing timeouts to uvicorn's protocol class.

`/health` and `/metrics` also answer while all places are taken (`Reserved`). Must not know: the other operations.
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
# How long an answer waits for a caller that does not read.
UNREAD_S = 60.0
# Connections reserved for /health and /metrics.
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
        if self.cycle is not before:  # the next pipelined request has begun
            self.crowd.is_busy(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.left(self)
        super().connection_lost(exc)

    def is_unread(self, now_s: float) -> bool:
        """Whether the answer has waited for UNREAD_S because the caller does not read."""
        if self.flow is None or not self.flow.write_paused:
            self.unread_since_s = None
        elif self.unread_since_s is None:
            self.unread_since_s = now_s
        return self.unread_since_s is not None and now_s - self.unread_since_s >= UNREAD_S


def connections_of(crowd: Crowd[HttpConnection]) -> type[HttpConnection]:
    """A protocol class for uvicorn, which creates the connections itself and passes no further arguments."""
    return type("HttpConnection", (HttpConnection,), {"crowd": crowd})


async def sweep(crowd: Crowd[HttpConnection], request_s: float) -> None:
    """Closes connections that are too slow, until it is cancelled."""
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
    """Wraps the application: limits the requests at a time, except /health and /metrics."""

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
    response = answer(Error(50305, f"the REST proxy already serves {limit} requests: try again later"), 503)
    response.headers["retry-after"] = "1"
    return response
