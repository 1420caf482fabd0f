"""Imports lazily loaded modules at the start, so that no request depends on opening a file.

Without free file descriptors such a request would fail, and the loop would wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from penstock.api.handler import Handler
from penstock.wire.apis import api

LATE = (
    "cramjam",
    "encodings.utf_16_be",  # maps a group to its coordinator partition, as in Java
    "lz4.frame",
    "penstock.node.metrics",
    "re2",
    "zstandard",
)


def preload(handlers: Iterable[Handler]) -> None:
    for name in LATE:
        import_module(name)
    for handler in handlers:
        spec = api(int(handler.api))
        assert spec.request is not None
        assert spec.response is not None
