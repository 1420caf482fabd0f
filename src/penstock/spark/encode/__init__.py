"""From Arrow to record batches: columns to flat arrays, rows to partitions, rows to bytes."""

from __future__ import annotations


def warm_up() -> None:
    """Compile the kernels, or load them from the cache: they are made when their module is imported."""
    from penstock.spark.encode import kernels

    assert kernels.encode_rows is not None
