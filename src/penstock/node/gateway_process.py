"""The process of the gateway: `python -m penstock.node.gateway_process PLAN`. Started by `node.gateway`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sys
from importlib import import_module

from penstock import __version__
from penstock.gateway.process import GatewayPlan, serve
from penstock.observability.logs import configure
from penstock.runtime.clock import SystemClock
from penstock.runtime.loop import DEFAULT_STALL_S, TurnLoop, run
from penstock.runtime.loop_watchdog import LoopWatchdog
from penstock.runtime.record_processes import RecordProcesses

MAX_CONNECTIONS = (2064, 1000)  # of the REST proxy and of the line protocol
OTHER_DESCRIPTORS = 64
# The first calls still import modules: stalls from that are not reported.
STARTING_S = 5.0


def _most_connections() -> tuple[int, int]:
    """Limited by the file descriptors: without a free one, both listeners would fail to accept connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    share = max(0, soft - OTHER_DESCRIPTORS) // 3
    http, line = MAX_CONNECTIONS
    return (http, line) if soft == resource.RLIM_INFINITY else (min(http, 2 * share), min(line, share))


def main() -> None:
    given = json.loads(sys.argv[1])
    configure(given["log_level"], given["log_format"], "gateway")
    # Ctrl-C is for the broker, which stops this process in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan = GatewayPlan(
        tuple((host, port) for host, port in given["bootstrap"]),
        tuple(given["http_fds"]),
        tuple(given["line_fds"]),
        given["lifeline_fd"],
        given["metrics_fd"],
        __version__,
        tuple(given["allowed_hosts"]),
        tuple(given["allowed_origins"]),
        given["request_timeout_s"],
        given["max_idle_s"],
        *_most_connections(),
    )
    if plan.http_fds:
        # The import would block the event loop for half a second.
        import_module("penstock.gateway.http.server")
    run(_watched(plan))


async def _watched(plan: GatewayPlan) -> None:
    loop = asyncio.get_running_loop()
    watchdog = LoopWatchdog(loop, DEFAULT_STALL_S) if isinstance(loop, TurnLoop) else None
    if watchdog is not None:
        loop.call_later(STARTING_S, watchdog.started)
    records = RecordProcesses(loop)
    try:
        await serve(plan, SystemClock(), records)
    finally:
        records.close()
        if watchdog is not None:
            watchdog.close()


if __name__ == "__main__":
    main()
