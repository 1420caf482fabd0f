"""The callers of a REST proxy on the loopback address: programs of this machine, but no web pages in its browser.

A browser sends requests to 127.0.0.1 for any web page, and a page whose name resolves to 127.0.0.1 may even read the
answers. The Origin header reveals the first kind of request, and the Host header the second: neither names this
machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.gateway.http.operations import answer
from penstock.gateway.http.shapes import Error

HOSTS_SETTING = "penstock.http.allowed.hosts"
ORIGINS_SETTING = "penstock.http.allowed.origins"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{1,5})?")


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


class Callers:
    """The settings: additional names of this machine, and the origins of trusted web pages."""

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self.hosts = frozenset(name.lower() for name in hosts if name)
        self.origins = tuple(origin.lower().removesuffix("/") for origin in origins)

    def local_origins(self) -> str:
        """A pattern for web pages that this machine serves itself, for example by a development server."""
        names = "".join(f"|{re.escape(name)}" for name in sorted(self.hosts))
        return (
            rf"(?i:https?://(localhost|[a-z0-9.-]+\.localhost|127(\.[0-9]{{1,3}}){{3}}|\[::1\]{names})(:[0-9]{{1,5}})?)"
        )


class LocalCallers:
    """Wraps the application, and refuses other callers with 403."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self.refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await answer(Error(403, refusal), 403)(scope, receive, send)

    def refusal(self, headers: Headers) -> str | None:
        """The reason to refuse the caller, or None."""
        for host in headers.getlist("host"):
            if not self._is_ours(host):
                return _sentence("Host", host, HOSTS_SETTING)
        for origin in headers.getlist("origin"):
            if "*" in self._callers.origins or origin.lower() in self._callers.origins:
                continue
            try:
                host = urlsplit(origin).netloc
            except ValueError:
                host = ""
            if not self._is_ours(host):
                return _sentence("Origin", origin, ORIGINS_SETTING)
        return None

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match[1] or match[2]).lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost") or is_loopback(name) or name in self._callers.hosts


def _sentence(header: str, value: str, setting: str) -> str:
    return (
        f"{header} '{value[:100]}' is not this machine, and this REST proxy serves only programs of this machine; "
        f"{setting} allows others"
    )
