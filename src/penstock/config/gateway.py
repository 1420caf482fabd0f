"""Settings of the REST proxy and the line protocol: penstock.http.listener, penstock.line.listener,
penstock.http.allowed.origins.

Text in, an address out. Empty or unset turns a listener off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.config.listeners import Endpoint
from penstock.model.errors import ConfigError

HTTP_LISTENER = "penstock.http.listener"
LINE_LISTENER = "penstock.line.listener"
ALLOWED_ORIGINS = "penstock.http.allowed.origins"
# Opened when `penstock start` runs without a file: reachable from this machine only.
OPEN_WITHOUT_FILE = {HTTP_LISTENER: "127.0.0.1:8082", LINE_LISTENER: "127.0.0.1:9099"}
# The same when the Kafka port is any free port.
ANY_FREE_PORT = {HTTP_LISTENER: "127.0.0.1:0", LINE_LISTENER: "127.0.0.1:0"}
CLOSED = {HTTP_LISTENER: "", LINE_LISTENER: ""}

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/@\s]*)):([0-9]{1,5})")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@*\s]+)(?::[0-9]{1,5})?/?")


def check_origins(origins: Sequence[str]) -> None:
    """A browser sends an origin as scheme://host or scheme://host:port. Nothing else can match."""
    for origin in origins:
        if origin not in ("*", "null") and _ORIGIN.fullmatch(origin) is None:
            raise ConfigError(
                f"{ALLOWED_ORIGINS}: '{origin}' is not an origin: write scheme://host or scheme://host:port, "
                "such as https://dash.example.org, or * for any page"
            )


def parse_endpoint(setting: str, text: str | None) -> Endpoint | None:
    if not text:
        return None
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ConfigError(f"{setting}: '{text}' is not an address: write host:port")
    port = int(match[3])
    if port > 65535:
        raise ConfigError(f"{setting}: port {port} is out of range: use one from 0 to 65535")
    return Endpoint(setting.split(".")[1].upper(), match[1] or match[2], port)
