"""The broker's side of the gateway: binds its ports, starts its process on the first connection, and restarts it.

The ports are bound with the broker's own, so a port in use is reported at once. The first connection starts the
process: an unused gateway costs two descriptors. The process inherits the listening sockets; clients wait in the
backlog meanwhile. If it dies, the next connection starts it again, after a pause that grows while it keeps dying.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import subprocess
import sys
from typing import NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Endpoint
from penstock.model.errors import ConfigError
from penstock.net.accepting import bind
from penstock.observability.channel import Pages
from penstock.observability.channel import serve as serve_pages
from penstock.observability.logs import current_format

log = logging.getLogger(__name__)

# The last broker's gateway may still be closing: it notices the broker's death within milliseconds.
BIND_TRIES = 5
BIND_PAUSE_S = 0.05
LIVED_S = 10.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STOP_TIMEOUT_S = 3.0
REAP_PAUSE_S = 0.01


def _is_taken(error: ConfigError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


class GatewaySettings(NamedTuple):
    http: Endpoint | None
    line: Endpoint | None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    request_timeout_ms: int = 30_000
    max_idle_ms: int = 600_000

    @classmethod
    def of(cls, config: BrokerConfig) -> GatewaySettings:
        return cls(
            config.penstock_http_listener,
            config.penstock_line_listener,
            config.penstock_http_allowed_hosts,
            config.penstock_http_allowed_origins,
            config.penstock_gateway_request_timeout_ms,
            config.penstock_gateway_max_idle_ms,
        )


class Gateway:
    def __init__(self, settings: GatewaySettings) -> None:
        http = settings.http
        self._settings = settings
        self._endpoints = {"http": http, "line": settings.line}
        # A client that uses the host name of the listener sends that name.
        self._allowed_hosts = [*settings.allowed_hosts, *((http.host,) if http is not None else ())]
        self._sockets: dict[str, list[socket.socket]] = {}
        self._bootstrap: list[tuple[str, int]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._pages: Pages = {}
        self._metrics_task: asyncio.Task[None] | None = None
        self._started_at = 0.0
        self._pause_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    async def bind(self) -> None:
        """Raises ConfigError with one sentence about a port that is not available."""
        self._loop = asyncio.get_running_loop()
        for name, endpoint in self._endpoints.items():
            if endpoint is not None:
                self._sockets[name] = await self._bind(name, endpoint)

    async def _bind(self, name: str, endpoint: Endpoint) -> list[socket.socket]:
        for tries_left in reversed(range(BIND_TRIES)):
            try:
                return bind(endpoint.host, endpoint.port)
            except ConfigError as error:
                if not tries_left or not _is_taken(error):
                    raise ConfigError(
                        f"penstock.{name}.listener: {error}, or leave the setting empty to turn this listener off"
                    ) from error
            await asyncio.sleep(BIND_PAUSE_S)
        raise AssertionError("unreachable")

    def open(self, bootstrap: list[tuple[str, int]], pages: Pages) -> None:
        """From now on the first connection starts the process. It finds the cluster at `bootstrap` and may ask this
        broker for `pages`.
        """
        self._bootstrap = bootstrap
        self._pages = pages
        self._wait_for_a_knock()

    @property
    def addresses(self) -> dict[str, str]:
        """host:port of the open listeners, by name."""
        found = {}
        for name, sockets in self._sockets.items():
            endpoint = self._endpoints[name]
            assert endpoint is not None
            host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host or "localhost"
            found[name] = f"{host}:{sockets[0].getsockname()[1]}"
        return found

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    # -- the process --------------------------------------------------------------------

    def _wait_for_a_knock(self) -> None:
        for sock in self._all_sockets():
            self._loop.add_reader(sock, self._knocked)

    def _stop_waiting(self) -> None:
        for sock in self._all_sockets():
            self._loop.remove_reader(sock)

    def _all_sockets(self) -> list[socket.socket]:
        return [sock for sockets in self._sockets.values() for sock in sockets]

    def _knocked(self) -> None:
        self._stop_waiting()
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        our_metrics, their_metrics = socket.socketpair()
        descriptors = {
            f"{name}_fds": [sock.fileno() for sock in self._sockets.get(name, ())] for name in self._endpoints
        }
        plan = {
            "bootstrap": self._bootstrap,
            "lifeline_fd": theirs.fileno(),
            "metrics_fd": their_metrics.fileno(),
            "allowed_hosts": self._allowed_hosts,
            "allowed_origins": self._settings.allowed_origins,
            "request_timeout_s": self._settings.request_timeout_ms / 1000,
            "max_idle_s": self._settings.max_idle_ms / 1000,
            "log_level": logging.getLogger().getEffectiveLevel(),
            "log_format": current_format(),
            **descriptors,
        }
        passed = [theirs, their_metrics, *self._all_sockets()]
        with theirs, their_metrics:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.node.gateway_process", json.dumps(plan)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[sock.fileno() for sock in passed],
                process_group=0,
            )
        ours.setblocking(False)
        self._lifeline = ours
        our_metrics.setblocking(False)
        self._metrics_task = self._loop.create_task(serve_pages(our_metrics, self._pages))
        self._metrics_task.add_done_callback(self._metrics_ended)
        self._started_at = self._loop.time()
        self._loop.add_reader(ours, self._ended)
        log.debug("gateway: process %d started", self._process.pid)

    def _metrics_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "metrics failed", "exception": error, "task": task})

    def _ended(self) -> None:
        """The lifeline is readable. The other side never writes to it, so it has closed it."""
        assert self._process is not None
        self._drop_lifeline()
        self._reap(self._process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        if self._closing:
            return
        code = process.poll()
        if code is None:  # its descriptors close a moment before it can be reaped
            self._timer = self._loop.call_later(REAP_PAUSE_S, self._reap, process)
            return
        self._process = None
        if self._loop.time() - self._started_at >= LIVED_S:
            self._pause_s = 0.0
        self._pause_s = min(self._pause_s * 2 or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        log.error("gateway: process ended with code %d; it can start again in %.1f s", code, self._pause_s)
        self._timer = self._loop.call_later(self._pause_s, self._wait_for_a_knock)

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            self._loop.remove_reader(self._lifeline)
            self._lifeline.close()
            self._lifeline = None

    # # -- stop ---------------------------------------------------------------------------

    async def close(self) -> None:
        """Requests in progress get a moment to end. Afterwards the ports are free."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._metrics_task is not None:
            self._metrics_task.cancel()
        self._stop_waiting()
        if self._process is not None:
            await self._stop_process(self._process)
        for sock in self._all_sockets():
            sock.close()
        self._sockets.clear()

    async def _stop_process(self, process: subprocess.Popen[bytes]) -> None:
        if self._lifeline is not None:
            self._loop.remove_reader(self._lifeline)
            with contextlib.suppress(OSError):
                self._lifeline.send(b"s")
        deadline = self._loop.time() + STOP_TIMEOUT_S
        while process.poll() is None:
            if self._loop.time() > deadline:
                log.warning("gateway: process %d does not end, killing it", process.pid)
                process.kill()
                deadline += STOP_TIMEOUT_S
            await asyncio.sleep(REAP_PAUSE_S)
        self._drop_lifeline()
        self._process = None
