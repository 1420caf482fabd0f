"""Addresses of brokers, as code has them and as people write them in bootstrap servers."""

from __future__ import annotations

from typing import Final, TypeAlias

Address: TypeAlias = tuple[str, int]
"""Host and port."""
DEFAULT_PORT: Final = 9092


def parse_server(server: str) -> Address | None:
    """HOST, HOST:PORT or [IPv6]:PORT, with or without a protocol in front. None: not an address."""
    bare = server.strip().rpartition("://")[2]
    host, colon, port = bare.rpartition(":")
    if not colon or bare.endswith("]"):
        host, port = bare, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host, int(port)
