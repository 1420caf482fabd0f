"""Encoding of Arrow to record batches: columns to flat arrays, rows to partitions, rows to bytes."""

from __future__ import annotations

from types import ModuleType

from penstock.arrow.cache.warmup import kernels_of


def loops() -> ModuleType:
    """The inner loops: compiled, or without numba in plain Python."""
    compiled = kernels_of("encode")
    if compiled is not None:
        return compiled
    from penstock.arrow.encode import plain

    return plain


def warm_up() -> None:
    """Compiles the kernels, or loads them from the cache, by importing their module."""
    assert loops().encode_rows is not None
