"""Encoding of Arrow to record batches: columns to flat arrays, rows to partitions, rows to bytes."""

from __future__ import annotations


def warm_up() -> None:
    """Compiles the kernels, or loads them from the cache, by importing their module."""
    from penstock.arrow.encode import kernels

    assert kernels.encode_rows is not None
