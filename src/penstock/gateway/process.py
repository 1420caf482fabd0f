"""The gateway's process: serves both protocols on inherited sockets until its broker stops the process or dies.

    plan        the broker's address and the inherited descriptors
    lifeline    one end of a socket pair. A byte means an orderly stop. The end of the stream means that the broker
                died: the process exits at once, because the next broker needs these ports.
    metrics     one end of another socket pair, for the broker's metrics and health (`observability.channel`)

Must not know: how it was started, the broker's own state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from typing import NamedTuple

from penstock.gateway.crowd import Crowd
from penstock.observability.channel import BrokerReader
from penstock.ports.clock import Clock
from penstock.ports.workers import RecordWorkers
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.publisher import Publisher

log = logging.getLogger(__name__)

CLIENT_ID = "penstock-gateway"


class GatewayPlan(NamedTuple):
    bootstrap: tuple[tuple[str, int], ...]
    http_fds: tuple[int, ...]
    line_fds: tuple[int, ...]
    lifeline_fd: int
    metrics_fd: int
    version: str
    allowed_hosts: tuple[str, ...]
    """Additional names of this machine in the Host and Origin headers, on a loopback address."""
    allowed_origins: tuple[str, ...]
    """Origins of web pages that may call the REST proxy."""
    request_timeout_s: float
    """How long a request may take to arrive."""
    max_idle_s: float
    """How long a line connection may send nothing."""
    max_http_connections: int
    max_line_connections: int


async def serve(plan: GatewayPlan, clock: Clock, record_workers: RecordWorkers | None = None) -> None:
    stopping = asyncio.Event()
    _watch(socket.socket(fileno=plan.lifeline_fd), stopping)
    cluster = AsyncCluster(plan.bootstrap, CLIENT_ID)
    cluster.record_workers = record_workers
    producer = Publisher(cluster)
    line_crowd: Crowd[asyncio.Task[None]] = Crowd("line", plan.max_line_connections)
    try:
        async with asyncio.TaskGroup() as servers:
            if plan.line_fds:
                servers.create_task(_serve_lines(cluster, producer, clock, plan, line_crowd, stopping))
            if plan.http_fds:
                servers.create_task(_serve_http(cluster, producer, clock, plan, line_crowd, stopping))
    finally:
        await producer.close()
        cluster.close()


async def _serve_lines(
    cluster: AsyncCluster,
    producer: Publisher,
    clock: Clock,
    plan: GatewayPlan,
    crowd: Crowd[asyncio.Task[None]],
    stopping: asyncio.Event,
) -> None:
    from penstock.gateway.line.server import LineServer

    server = LineServer(cluster, producer, clock, crowd, plan.request_timeout_s, plan.max_idle_s)
    await server.start(_sockets(plan.line_fds))
    await stopping.wait()
    await server.stop()


async def _serve_http(
    cluster: AsyncCluster,
    producer: Publisher,
    clock: Clock,
    plan: GatewayPlan,
    line_crowd: Crowd[asyncio.Task[None]],
    stopping: asyncio.Event,
) -> None:
    # Imported only if the REST proxy is on: the import is slow.
    from penstock.gateway.http.local_callers import Callers
    from penstock.gateway.http.operations import Proxy
    from penstock.gateway.http.server import HttpServer

    broker = BrokerReader(*_sockets((plan.metrics_fd,)))
    proxy = Proxy(cluster, producer, clock, stopping, plan.request_timeout_s)
    server = HttpServer(proxy, plan.version, broker, plan.max_http_connections, [line_crowd])
    await server.run(_sockets(plan.http_fds), Callers(plan.allowed_hosts, plan.allowed_origins))


def _sockets(descriptors: tuple[int, ...]) -> list[socket.socket]:
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for sock in sockets:
        sock.setblocking(False)
    return sockets


def _watch(lifeline: socket.socket, stopping: asyncio.Event) -> None:
    """Watches the lifeline in a thread, so that the process ends with its broker even if the event loop is busy."""
    loop = asyncio.get_running_loop()
    lifeline.setblocking(True)

    def wait() -> None:
        while True:
            try:
                said = lifeline.recv(1)
            except OSError:
                said = b""
            if not said:
                os._exit(0 if stopping.is_set() else 1)
            loop.call_soon_threadsafe(stopping.set)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
