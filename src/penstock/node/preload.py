"""What is imported only when it is needed, imported at the start: no request may depend on a file that can be opened.

A broker without file descriptors would fail such a request, and the loop would wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from penstock.api.handler import Handler
from penstock.wire.apis import api

LATE = (
    "cramjam",
    "encodings.utf_16_be",  # a group finds its partition as in Java
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
