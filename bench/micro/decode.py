"""Rows per second of the Spark source's decoder on one core, beside the decoder in plain Python.

    python -m bench.micro.decode [--seconds 1.0]

A chunk of about 8 MB, as in a fetch answer, is decoded repeatedly to all eight columns (without headers if records have
none, as the source does by default): checksums, decompression, checks of each record, Arrow. The result is the best
run, to exclude the noise of other processes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from penstock.arrow.decode import KAFKA_SCHEMA, BatchDecoder, warm_up
from penstock.arrow.decode.columns import Columns
from penstock.arrow.decode.reference import ReferenceChunk
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.records.compression import LZ4, NAMES, NONE, recompress

CHUNK_BYTES = 8 << 20
REFERENCE_BYTES = 1 << 20  # plain Python takes seconds for a chunk


class Case(NamedTuple):
    name: str
    value_bytes: int
    batch_records: int
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def schema(self) -> object:
        return KAFKA_SCHEMA if self.headers else KAFKA_SCHEMA.remove(KAFKA_SCHEMA.get_field_index("headers"))


CASES = (
    Case("100 B x 1000/batch", 100, 1000),
    Case("100 B x 50/batch", 100, 50),
    Case("1 KB x 100/batch", 1024, 100),
    Case("100 B + 1 header x 1000/batch", 100, 1000, (("trace-id", b"4bf92f3577b34da6"),)),
)


def chunk_of(case: Case, codec: int, size_bytes: int) -> tuple[bytes, int]:
    """Whole batches, and the offset after them. Half of a value is random: it compresses about as events do."""
    chance = random.Random(1)
    out: list[bytes] = []
    offset = size = 0
    while size < size_bytes:
        half = case.value_bytes // 2
        records = [
            Record(
                b"%08d" % (offset + i), chance.randbytes(half).ljust(case.value_bytes, b"e"), case.headers, 10**12 + i
            )
            for i in range(case.batch_records)
        ]
        batch = build_batch(records, base_offset=offset)
        size += len(batch)  # before compression, so that codecs are compared on the same rows
        out.append(batch if codec == NONE else recompress(read_header(batch), batch, codec))
        offset += case.batch_records
    return b"".join(out), offset


def best_s(work: Callable[[], object], seconds: float) -> float:
    best = float("inf")
    deadline = time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - began)
        if now > deadline:
            return best


def decode_plainly(columns: Columns, records: bytes, end: int) -> list[object]:
    return list(ReferenceChunk(columns, records, 0, end, None))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="spent on each case")
    seconds = parser.parse_args().seconds
    began = time.perf_counter()
    warm_up()
    sys.stdout.write(f"import of numba and kernels, first use: {time.perf_counter() - began:.2f} s\n\n")
    sys.stdout.write(f"{'records':<32}{'codec':<8}{'rows/s':>12}{'MB/s':>8}{'plain Python':>16}\n")
    for case in CASES:
        for codec in (NONE, LZ4):
            records, end = chunk_of(case, codec, CHUNK_BYTES)
            decoder = BatchDecoder(case.schema, "bench", 0)
            rate = end / best_s(partial(decoder.decode, records, 0, end), seconds)
            few, few_end = chunk_of(case, codec, REFERENCE_BYTES)
            columns = Columns(case.schema, "bench", 0, 10_000)
            plain = few_end / best_s(partial(decode_plainly, columns, few, few_end), seconds)
            sys.stdout.write(
                f"{case.name:<32}{NAMES[codec]:<8}{rate:>12,.0f}{rate * case.value_bytes / 1e6:>8,.0f}{plain:>16,.0f}\n"
            )
    sys.stdout.write(f"\nArrow {pa.__version__}, values alone counted as MB\n")


if __name__ == "__main__":
    main()
