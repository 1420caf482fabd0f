"""Fast decoding of record batches to Arrow, with kernels compiled by numba.

    decoder.py    BatchDecoder, the interface for the source
    native.py     planning, grouping and wrapping around the kernels
    kernels.py    the loops over bytes, compiled by numba (jit.py)
    reference.py  the same in plain Python
    columns.py    schemas; aborted.py: aborted transactions; errors.py

Importing this module imports Arrow. numba is imported with the first decoder.
"""

from __future__ import annotations

from penstock.arrow.decode.columns import KAFKA_SCHEMA
from penstock.arrow.decode.decoder import DEFAULT_MAX_ROWS, BatchDecoder, Chunk, DecodedRows, warm_up
from penstock.arrow.decode.errors import CorruptRecordBatch

__all__ = ["DEFAULT_MAX_ROWS", "KAFKA_SCHEMA", "BatchDecoder", "Chunk", "CorruptRecordBatch", "DecodedRows", "warm_up"]
