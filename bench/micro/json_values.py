"""Rows per second of processor time from JSON values to Arrow columns, by the kernel and by the careful way.

    python -m bench.micro.json_values [--seconds 1.0]

An Arrow array of values, as the source decodes it at a time, becomes the columns of a schema. The result is the best
run, to exclude the noise of other processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from bench.tables import topics
from penstock.arrow.values import JsonValues, parse_schema, warm_up

ROWS = 10_000


class Case(NamedTuple):
    name: str
    schema: str
    values: list[bytes | None]


def cases() -> list[Case]:
    kilobytes: list[bytes | None] = list(topics.values()[:ROWS])
    random = Random(1)
    small: list[bytes | None] = [
        json.dumps({"id": number, "user": f"user-{random.randrange(1000)}", "x": random.random()}).encode()
        for number in range(ROWS)
    ]
    escaped: list[bytes | None] = [
        json.dumps({"id": number, "text": "Grüße \n" * 12}).encode() for number in range(ROWS)
    ]
    listed: list[bytes | None] = [
        json.dumps({"id": number, "tags": ["a", "b"], "price": 1.25}).encode() for number in range(ROWS)
    ]
    bad = [b"no json" if number % 100 == 0 else value for number, value in enumerate(kilobytes)]
    return [
        Case("1 KB, ten fields", topics.SCHEMA, kilobytes),
        Case("1 KB, one field of ten", "id long", kilobytes),
        Case("1 KB, 1% bad", topics.SCHEMA, bad),
        Case("50 B, long doubles", "id long, user string, x double", small),
        Case("escapes", "id long, text string", escaped),
        Case("arrays and decimals", "id long, tags array<string>, price decimal(5, 2)", listed),
    ]


def best_s(work: Callable[[], object], seconds: float) -> float:
    best = float("inf")
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def carefully(decoder: JsonValues, values: Any) -> object:
    return decoder.decode(values.to_pylist())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="spent on each case")
    seconds = parser.parse_args().seconds
    began = time.perf_counter()
    warm_up()
    sys.stdout.write(f"import of numba and the kernel: {time.perf_counter() - began:.2f} s\n\n")
    sys.stdout.write(f"{'values':<28}{'rows/s':>12}{'careful way':>14}\n")
    for case in cases():
        decoder, values = JsonValues(parse_schema(case.schema)), pa.array(case.values, pa.binary())
        quick = ROWS / best_s(partial(decoder.decode_array, values), seconds)
        careful = ROWS / best_s(partial(carefully, decoder, values), seconds)
        sys.stdout.write(f"{case.name:<28}{quick:>12,.0f}{careful:>14,.0f}\n")


if __name__ == "__main__":
    main()
