"""`GET /metrics` of a command that runs for long: a page in Prometheus' text format, on a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click

from penstock.model.addresses import Address, parse_server
from penstock.model.errors import PenstockError
from penstock.observability.exposition import CONTENT_TYPE

REQUEST_TIMEOUT_S = 10
LOOPBACK = "127.0.0.1"


class ListenAddress(click.ParamType[Address]):
    """PORT of the loopback interface, or HOST:PORT."""

    name = "address"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "[HOST:]PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        text = str(value)
        found = parse_server(f"{LOOPBACK}:{text}" if text.isdigit() else text)
        if found is None or not text.rpartition(":")[2].isdigit():
            self.fail(f"{text!r} is not an address: write PORT or HOST:PORT.", param, ctx)
        return found


@contextmanager
def serve_metrics(page: Callable[[], str], address: Address | None) -> Iterator[Address | None]:
    """Serves what `page` returns, which is called on another thread. Yields the address. Raises PenstockError."""
    if address is None:
        yield None
        return
    host, port = address

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, port), partial(_Handler, page))
    except OSError as error:
        raise PenstockError(f"--metrics: cannot listen on {host}:{port}: {error.strerror}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="penstock-metrics", daemon=True)
    thread.start()
    try:
        yield host, server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def __init__(self, page: Callable[[], str], *arguments: Any) -> None:
        self._page = page
        super().__init__(*arguments)  # answers the request

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, explain="there is only /metrics")
            return
        body = self._page().encode(errors="replace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing: requests come every few seconds."""
