"""Record batches as they come from a broker, to Arrow, at the speed of memory rather than of Python.

    decoder.py    BatchDecoder: what the source uses
    native.py     planning, grouping and wrapping around the kernels
    kernels.py    the loops over bytes, compiled by numba; jit.py: how
    reference.py  the same in plain Python
    columns.py    schemas; aborted.py: transactions left out; errors.py

Importing this imports Arrow. numba is imported with the first decoder.
"""

from __future__ import annotations

from penstock.spark.decode.columns import KAFKA_SCHEMA
from penstock.spark.decode.decoder import BatchDecoder, Chunk, Decoded, warm_up
from penstock.spark.decode.errors import CorruptRecordBatch

__all__ = ["KAFKA_SCHEMA", "BatchDecoder", "Chunk", "CorruptRecordBatch", "Decoded", "warm_up"]
