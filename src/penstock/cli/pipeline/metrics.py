"""`GET /metrics` of `penstock pipeline serve`: the status file in Prometheus' text format.

Each request reads the file, which is replaced atomically, so serving shares nothing with the run. The lag of flows is
not here: brokers show it as that of consumer groups.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import click

from penstock.model.addresses import Address, parse_server
from penstock.model.errors import PenstockError
from penstock.observability.exposition import CONTENT_TYPE, Family, Sample, counter, gauge, render

if TYPE_CHECKING:
    from penstock.spark.pipeline.project import PipelineProject

STATES = ("starting", "running", "waiting", "stopped", "failed", "interrupted")
REQUEST_TIMEOUT_S = 10
LOOPBACK = "127.0.0.1"


class ListenAddress(click.ParamType[Address]):
    """PORT of the loopback interface, or HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        text = str(value)
        found = parse_server(f"{LOOPBACK}:{text}" if text.isdigit() else text)
        if found is None or not text.rpartition(":")[2].isdigit():
            self.fail(f"{text!r} is not an address: write PORT or HOST:PORT.", param, ctx)
        return found


@contextmanager
def metrics_served(project: PipelineProject, address: Address | None) -> Iterator[None]:
    """Serves them meanwhile. Raises PenstockError if the address cannot be used."""
    if address is None:
        yield
        return

    host, port = address

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, port), partial(_Handler, project))
    except OSError as error:
        raise PenstockError(f"--metrics: cannot listen on {host}:{port}: {error.strerror}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="penstock-pipeline-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def __init__(self, project: PipelineProject, *arguments: Any) -> None:
        self._project = project
        super().__init__(*arguments)  # answers the request

    def do_GET(self) -> None:
        from penstock.spark.pipeline.status import read_status

        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, explain="there is only /metrics")
            return
        page = metrics_page(self._project.name, read_status(self._project)).encode(errors="replace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *args: object) -> None:
        """Nothing: requests come every few seconds."""


def metrics_page(pipeline: str, told: Mapping[str, Any]) -> str:
    return "".join(piece for family in _families(pipeline, told) for piece in render(family))


def _families(pipeline: str, told: Mapping[str, Any]) -> Iterator[Family]:
    of_all = ("pipeline",)
    state, broken = str(told.get("state", "")), told.get("broken")
    yield gauge(
        "penstock_pipeline_state",
        "1 for the state of the pipeline, 0 for the others.",
        (*of_all, "state"),
        [((pipeline, one), float(one == state)) for one in STATES],
    )
    yield gauge(
        "penstock_pipeline_broken_definitions",
        "Mistakes in the definitions: the last good definitions run until they are repaired.",
        of_all,
        [((pipeline,), float(len(broken["mistakes"]) if broken else 0))],
    )
    yield gauge(
        "penstock_pipeline_broken_since_seconds",
        "When the definitions became wrong, in seconds since 1970; 0 if they are good.",
        of_all,
        [((pipeline,), datetime.fromisoformat(broken["since"]).timestamp() if broken else 0.0)],
    )
    yield counter(
        "penstock_pipeline_runs_total",
        "Runs since serve started.",
        of_all,
        [((pipeline,), float(told.get("runs", 0)))],
    )
    yield gauge(
        "penstock_pipeline_failures",
        "Failures in a row of the flow that has most of them.",
        of_all,
        [((pipeline,), float(told.get("failures", 0)))],
    )
    flows: Mapping[str, Any] = told.get("flows", {})
    of_flow = ("pipeline", "flow")
    yield gauge(
        "penstock_pipeline_flow_failed",
        "1 if the flow failed in its last run.",
        of_flow,
        [((pipeline, name), float(flow.get("state") == "failed")) for name, flow in flows.items()],
    )
    for kind, verb in (("read", "read by"), ("written", "written by")):
        yield counter(
            f"penstock_pipeline_flow_rows_{kind}_total",
            f"Rows {verb} the flow since the last reset of the project.",
            of_flow,
            list(_totals(pipeline, flows, f"rows_{kind}_total")),
        )


def _totals(pipeline: str, flows: Mapping[str, Any], name: str) -> Iterator[Sample]:
    for flow, told in flows.items():
        if told.get(name) is not None:
            yield (pipeline, flow), float(told[name])
