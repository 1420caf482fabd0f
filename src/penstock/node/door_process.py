"""`python -m penstock.node.door_process PLAN`: the process of the doors. Started by `node.doors`."""

from __future__ import annotations

import json
import signal
import sys

from penstock import __version__
from penstock.gateway.process import DoorPlan, serve
from penstock.observability.logs import configure
from penstock.runtime.clock import SystemClock
from penstock.runtime.loop import run


def main() -> None:
    given = json.loads(sys.argv[1])
    configure(given["log_level"], given["log_format"], "doors")
    # Ctrl-C is the broker's to hear: it stops us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan = DoorPlan(
        tuple((host, port) for host, port in given["bootstrap"]),
        tuple(given["http_fds"]),
        tuple(given["line_fds"]),
        given["lifeline_fd"],
        given["metrics_fd"],
        __version__,
        tuple(given["allowed_hosts"]),
    )
    run(serve(plan, SystemClock()))


if __name__ == "__main__":
    main()
