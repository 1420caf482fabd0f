"""The REST proxy's server: the routes, the mapping of errors to responses, and the ASGI server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.gateway.crowd import Crowd, families
from penstock.gateway.http import tail, v2, v3, v3_groups, v3_records
from penstock.gateway.http.connections import (
    KEEP_ALIVE_S,
    RESERVED,
    HttpConnection,
    Reserved,
    connections_of,
    sweep,
)
from penstock.gateway.http.consumers import Consumers
from penstock.gateway.http.consumers import operations as consumer_operations
from penstock.gateway.http.errors import BodyTooLate, Refused, refusal
from penstock.gateway.http.local_callers import Callers, LocalCallers, is_loopback
from penstock.gateway.http.operations import Operation, Proxy, Stopping, answer
from penstock.gateway.http.shapes import BrokerHealth, Error, Health
from penstock.model.errors import ApiError, PenstockError
from penstock.observability.channel import BrokerReader
from penstock.observability.exposition import CONTENT_TYPE, render
from penstock.wire_client.requests.errors import WireClientError

log = logging.getLogger(__name__)

GRACE_S = 1
HEALTH_TIMEOUT_S = 5
BACKLOG = 1024
CORS_MAX_AGE_S = 600


class HttpServer:
    def __init__(
        self, proxy: Proxy, version: str, broker: BrokerReader, max_connections: int, others: Sequence[Crowd[Any]] = ()
    ) -> None:
        self._proxy = proxy
        self._version = version
        self._broker = broker
        self._max_requests = max_connections - RESERVED
        self._crowd: Crowd[HttpConnection] = Crowd("http", max_connections)
        self._crowds: list[Crowd[Any]] = [self._crowd, *others]
        self._consumers = Consumers()
        self.operations = (
            Operation(
                "GET",
                "/health",
                "health",
                "Health of this gateway's broker: 503, with the reason, if it does not work in its cluster.",
                "Cluster",
                self._show_health,
                {200: Health},
                accepts=(),
            ),
            *v2.OPERATIONS,
            *tail.OPERATIONS,
            *consumer_operations(self._consumers),
            *v3.OPERATIONS,
            *v3_records.OPERATIONS,
            *v3_groups.OPERATIONS,
            Operation(
                "GET",
                "/metrics",
                "metrics",
                "Metrics of this gateway's broker, for Prometheus.",
                "Cluster",
                self._show_metrics,
                {200: str},
                answer_types=(CONTENT_TYPE,),
                accepts=(),
            ),
        )
        self.app = Starlette(
            routes=[*self._routes(), Route("/openapi.json", self._describe, methods=["GET"])],
            exception_handlers={
                BodyTooLate: self._too_late,
                Refused: _refused,
                ApiError: self._failed,
                WireClientError: self._failed,
                HTTPException: _http_refused,
                ClientDisconnect: _gone,
                500: _broken,
            },
        )

    def _routes(self) -> list[Route]:
        """One route for each path, so that the answer to a wrong method lists the right ones."""
        paths: dict[str, dict[str, Operation]] = {}
        for operation in self.operations:
            paths.setdefault(operation.path, {})[operation.method] = operation
        return [self._route(path, methods) for path, methods in paths.items()]

    def _route(self, path: str, methods: dict[str, Operation]) -> Route:
        async def endpoint(request: Request) -> Response:
            # Starlette adds HEAD to GET.
            operation = methods["GET" if request.method == "HEAD" else request.method]
            operation.check_accept(request)
            operation.check_query(request)
            return await operation.endpoint(self._proxy, request)

        return Route(path, endpoint, methods=list(methods))

    async def _describe(self, request: Request) -> Response:
        from penstock.gateway.http.openapi import describe

        info = await self._proxy.cluster.describe()
        return answer(describe(self.operations, self._version, info.cluster_id))

    async def _show_metrics(self, proxy: Proxy, request: Request) -> Response:
        try:
            page = await self._broker.page()
        except ConnectionError as error:
            raise Refused(503, str(error)) from error
        own = "".join(piece for family in families(self._crowds) for piece in render(family))
        return Response(page + own.encode(), headers={"content-type": CONTENT_TYPE})

    async def _health(self) -> BrokerHealth:
        """Raises Refused(503) with the reason."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                found = msgspec.json.decode(await self._broker.health(), type=BrokerHealth)
        except ConnectionError as error:
            raise Refused(503, str(error)) from error
        except TimeoutError as error:
            raise Refused(503, f"the broker has not answered its gateway for {HEALTH_TIMEOUT_S} s") from error
        if found.problem:
            raise Refused(503, found.problem)
        return found

    async def _show_health(self, proxy: Proxy, request: Request) -> Response:
        found = await self._health()
        return answer(Health("ok", found.cluster_id, found.brokers, found.controller))

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError | WireClientError)
        refused = refusal(error)
        if refused.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.NOT_FOUND):
            # An unreachable broker or a missing topic may be only a symptom. The broker's health may have the cause.
            try:
                await self._health()
            except Refused as cause:
                refused = Refused(refused.code, f"{refused.message}; {cause.message}")
        return await _refused(request, refused)

    async def _too_late(self, request: Request, error: Exception) -> Response:
        """Closes the connection: otherwise the rest of the body would be read as the next request."""
        self._crowd.timed_out += 1
        response = await _refused(request, error)
        response.headers["connection"] = "close"
        return response

    async def run(self, sockets: Sequence[socket.socket], callers: Callers) -> None:
        """Serves until the gateway stops."""
        is_local = all(is_loopback(sock.getsockname()[0]) for sock in sockets)
        app: ASGIApp = CORSMiddleware(
            Reserved(Unfinished(self.app, self._proxy.stopping), self._max_requests),
            allow_origins=callers.origins,
            allow_origin_regex=callers.local_origins() if is_local else None,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=("content-type", "last-event-id"),
            max_age=CORS_MAX_AGE_S,
        )
        if is_local:
            app = LocalCallers(app, callers)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="none",
            http=connections_of(self._crowd),
            ws="none",
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        # Only errors: callers that do not speak HTTP must not fill the broker's log.
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        server = _Server(config)
        watchers = (
            asyncio.create_task(_stop_when(self._proxy.stopping, server)),
            asyncio.create_task(sweep(self._crowd, self._proxy.request_timeout_s)),
        )
        try:
            await server.serve(sockets=list(sockets))
        finally:
            for watcher in watchers:
                watcher.cancel()
            await self._consumers.instances.close()


class Unfinished:
    """Wraps the application: a request that is cancelled because the server stops still gets an answer."""

    def __init__(self, app: ASGIApp, stopping: asyncio.Event) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = ended = False

        async def noting(message: Message) -> None:
            nonlocal started, ended
            started = True
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            if started and not ended:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif not started:
                error = Stopping()
                await _error(error.code, error.status, error.message)(scope, receive, send)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone: the broker stops this process."""
        yield


async def _stop_when(stopping: asyncio.Event, server: uvicorn.Server) -> None:
    await stopping.wait()
    server.should_exit = True


# -- errors -----------------------------------------------------------------------------------


def _error(code: int, status: int, message: str) -> Response:
    return answer(Error(code, message), status)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _error(error.code, error.status, error.message)


async def _http_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = (
            f"there is nothing at {request.url.path}: GET /openapi.json lists all paths, such as /topics and /metrics"
        )
    response = _error(error.status_code, error.status_code, detail)
    response.headers.update(error.headers or {})
    return response


async def _gone(request: Request, error: Exception) -> Response:
    return _error(400, 400, "the connection was closed before the body was complete")


async def _broken(request: Request, error: Exception) -> Response:
    """Answers 500. The server logs the traceback."""
    message = str(error) if isinstance(error, PenstockError) else "an error in the gateway; see the broker's log"
    return _error(50001, 500, message)
