"""What is measured. Each scenario runs in a process of its own, for its memory.

Times are of the processor (all threads of the process) and of the clock. A machine that does something else, too, shows
only in the latter.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from bench.tables.formats import TableFormat, sizes

ROWS = 1000
STREAM = "clicks-0"
AT = pa.timestamp("us", "UTC")
SMALL = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", AT), ("amount", pa.float64())])
LARGE = pa.schema([("offset", pa.int64()), ("at", AT), ("value", pa.binary())])
VALUE_BYTES = 1024

Result = dict[str, Any]


class Spent:
    wall_s = cpu_s = 0.0


@contextmanager
def timed() -> Iterator[Spent]:
    spent = Spent()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield spent
    finally:
        spent.cpu_s, spent.wall_s = time.process_time() - cpu, time.perf_counter() - wall


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def small_rows(first: int, count: int) -> Any:
    random = Random(first)
    ids = range(first, first + count)
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([f"name {random.randrange(10**12)}" for _ in ids]),
        pa.array([1_700_000_000_000_000 + one * 1000 for one in ids], AT),
        pa.array([random.random() for _ in ids]),
    ]
    return pa.Table.from_arrays(columns, schema=SMALL)


def large_rows(first: int, count: int) -> Any:
    """Half of a value is random: it compresses about as events do."""
    random = Random(1)
    values = [random.randbytes(VALUE_BYTES // 2).ljust(VALUE_BYTES, b"e") for _ in range(count)]
    ids = range(first, first + count)
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([1_700_000_000_000_000 + one for one in ids], AT),
        pa.array(values, pa.binary()),
    ]
    return pa.Table.from_arrays(columns, schema=LARGE)


def small_appends(table: TableFormat, directory: Path, commits: int) -> Result:
    """Many small commits by one committer, then what a table lives on: replay, compaction, expiry, readers."""
    table.create(SMALL)
    pieces = [small_rows(one * ROWS, ROWS) for one in range(10)]
    walls, cpus = [], []
    table.append(pieces[0], STREAM, 0, ROWS)  # imports, first use
    before_mb = peak_mb()
    for one in range(1, commits):
        with timed() as spent:
            table.append(pieces[one % 10], STREAM, one * ROWS, (one + 1) * ROWS)
        walls.append(spent.wall_s)
        cpus.append(spent.cpu_s)
    tenth = max(1, commits // 10)
    found: Result = {"memory_mb": round(peak_mb() - before_mb, 1)}
    for name, times in (("wall", walls), ("cpu", cpus)):
        found[f"first_{name}_ms"] = round(sum(times[:tenth]) / tenth * 1000, 2)
        found[f"last_{name}_ms"] = round(sum(times[-tenth:]) / tenth * 1000, 2)
    found |= sizes(directory)
    with timed() as spent:
        position = table.position(STREAM)
    assert position == commits * ROWS, position
    found["position_cpu_ms"] = round(spent.cpu_s * 1000, 1)
    for name, count in table.readers().items():
        with timed() as spent:
            rows = count()
        assert rows == commits * ROWS, (name, rows)
        found[f"{name}_cpu_s"] = round(spent.cpu_s, 2)
    with timed() as spent:
        table.compact()
    found["compact_cpu_s"] = round(spent.cpu_s, 2)
    with timed() as spent:
        table.expire()
    found["expire_cpu_s"] = round(spent.cpu_s, 2)
    found["after_expiry"] = sizes(directory)
    assert table.arrow().num_rows == commits * ROWS
    return found


def bulk(table: TableFormat, directory: Path, megabytes: int) -> Result:
    table.create(LARGE)
    rows = 64 << 10  # 64 MB at once, as a committer would that commits once a second
    piece = large_rows(0, rows)
    table.append(piece.slice(0, 1000), STREAM, 0, 1000)
    commits = max(1, megabytes * 1000 * 1000 // (rows * VALUE_BYTES))
    with timed() as spent:
        for one in range(commits):
            table.append(piece, STREAM, 1000 + one * rows, 1000 + (one + 1) * rows)
    total = commits * rows * VALUE_BYTES / 1e6
    return {
        "mb_per_cpu_s": round(total / spent.cpu_s, 1),
        "mb_per_wall_s": round(total / spent.wall_s, 1),
        "stored_share": round(sizes(directory)["data_bytes"] / (total * 1e6), 2),
        "peak_mb": round(peak_mb()),
    }


def merge(table: TableFormat, directory: Path, rows: int) -> Result:
    """A thousand keys of many: half of them are there."""
    table.create(SMALL)
    step = 100_000
    for first in range(0, rows, step):
        table.append(small_rows(first, min(step, rows - first)), STREAM, first, first + step)
    keys = Random(2).sample(range(rows), ROWS // 2)
    changes = small_rows(0, ROWS).set_column(
        0, SMALL.field(0), pa.array([*keys, *range(rows, rows + ROWS // 2)], pa.int64())
    )
    table.merge(changes, "id")
    with timed() as spent:
        table.merge(changes, "id")
    assert table.arrow().num_rows == rows + ROWS // 2
    return {"merge_cpu_s": round(spent.cpu_s, 2), "merge_wall_s": round(spent.wall_s, 2), "peak_mb": round(peak_mb())}


def replace_seen(table: TableFormat, directory: Path, rounds: int) -> Result:
    """Replaced and appended to again and again, while a reader looks: every view of it is one that was committed."""
    table.create(SMALL)
    table.append(small_rows(0, 4 * ROWS), STREAM, 0, 4 * ROWS)
    counts: dict[str, set[int]] = {}
    ended = threading.Event()
    failures: list[str] = []

    def look(name: str, count: Callable[[], int]) -> None:
        while not ended.is_set():
            try:
                counts.setdefault(name, set()).add(count())
            except Exception as error:
                failures.append(f"{name}: {type(error).__name__}: {error}"[:200])

    name = "polars"
    thread = threading.Thread(target=look, args=(name, table.readers()[name]))
    thread.start()
    try:
        with timed() as spent:
            for one in range(rounds):
                table.replace(small_rows(0, 4 * ROWS))
                table.append(small_rows(0, ROWS), STREAM, (4 + one) * ROWS, (5 + one) * ROWS)
    finally:
        ended.set()
        thread.join()
    expected = {4 * ROWS, 5 * ROWS}
    seen = {name: sorted(found - expected) for name, found in counts.items()}
    return {"replace_wall_ms": round(spent.wall_s / rounds * 1000, 1), "seen_besides": seen, "failures": failures[:3]}


def evolved(table: TableFormat, directory: Path, rows: int) -> Result:
    """A column is added, another widened; then who still reads the old and the new rows."""
    old = pa.schema([("id", pa.int32()), ("name", pa.string())])
    new = pa.schema([("id", pa.int64()), ("name", pa.string()), ("more", pa.float64())])
    table.create(old)
    first = pa.table({"id": pa.array(range(rows), pa.int32()), "name": ["n"] * rows}, schema=old)
    table.append(first, STREAM, 0, rows)
    found: Result = {}
    try:
        table.evolve(new)
        more = pa.table({"id": pa.array([2**40] * rows), "name": ["n"] * rows, "more": [1.0] * rows}, schema=new)
        table.append(more, STREAM, rows, 2 * rows)
    except Exception as error:
        return {"evolve": f"{type(error).__name__}: {error}"[:200]}
    found["type"] = str(table.arrow().schema.field("id").type)
    for name, count in table.readers().items():
        try:
            found[name] = count()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:200]
    return found


SCENARIOS: dict[str, tuple[Callable[[TableFormat, Path, int], Result], int]] = {
    "appends": (small_appends, 1000),
    "bulk": (bulk, 512),
    "merge": (merge, 1_000_000),
    "replace": (replace_seen, 40),
    "evolve": (evolved, 1000),
}
