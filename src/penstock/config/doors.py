"""Where the doors listen: penstock.http.listener and penstock.line.listener.

Text in, an address out. Empty or absent: the door is closed.
"""

from __future__ import annotations

import re

from penstock.config.listeners import Endpoint
from penstock.model.errors import ConfigError

HTTP_LISTENER = "penstock.http.listener"
LINE_LISTENER = "penstock.line.listener"
# What `penstock start` without a file opens: reachable from this machine only.
OPEN_WITHOUT_FILE = {HTTP_LISTENER: "127.0.0.1:8082", LINE_LISTENER: "127.0.0.1:9099"}
# The same where the Kafka port is any free one.
ANY_FREE_PORT = {HTTP_LISTENER: "127.0.0.1:0", LINE_LISTENER: "127.0.0.1:0"}
CLOSED = {HTTP_LISTENER: "", LINE_LISTENER: ""}

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/@\s]*)):([0-9]{1,5})")


def parse_door(setting: str, text: str | None) -> Endpoint | None:
    if not text:
        return None
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ConfigError(f"{setting}: '{text}' is not an address: write host:port")
    port = int(match[3])
    if port > 65535:
        raise ConfigError(f"{setting}: port {port} is out of range: use one from 0 to 65535")
    return Endpoint(setting.split(".")[1].upper(), match[1] or match[2], port)
