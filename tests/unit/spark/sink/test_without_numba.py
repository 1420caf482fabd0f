"""Source and sink in an environment that has no numba."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from penstock.arrow.cache.warmup import kernels_of
from penstock.arrow.decode import KAFKA_SCHEMA, BatchDecoder
from penstock.arrow.encode import loops, plain
from penstock.arrow.encode.batches import PartitionEncoder
from penstock.arrow.encode.closed import stamp
from penstock.arrow.encode.columns import UnsuitableRows, record_columns
from penstock.arrow.encode.routing import Router

NOW_MS = 1_700_000_000_000


def there_and_back(batch: pa.RecordBatch) -> list[tuple[int, object, object]]:
    """What the sink encodes, as the source decodes it: partition, key, value."""
    encoder = PartitionEncoder(4096, 1 << 20)
    router = Router("t", lambda _: 3, 0, 100)
    columns = record_columns(batch, NOW_MS)
    slots = router.route(batch, columns)
    found = []
    for slot, data, count in [*encoder.resize(3), *encoder.add(columns, slots), *encoder.close_all()]:
        stamp(data, -1, -1, -1)
        decoded = BatchDecoder(KAFKA_SCHEMA, "t", slot).decode(data, 0, count)
        for rows in decoded.batches:
            found += [(slot, row["key"], row["value"]) for row in rows.to_pylist()]
    return found


BATCH = pa.record_batch(
    {
        "key": pa.array([None if n % 3 == 0 else b"k%d" % n for n in range(500)], pa.binary()),
        "value": pa.array([None if n % 7 == 0 else b"v" * n for n in range(500)], pa.binary()),
    }
)


def test_rows_go_there_and_back_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = there_and_back(BATCH)
    assert len(compiled) == 500
    for package in ("decode", "encode"):
        monkeypatch.setitem(sys.modules, f"penstock.arrow.{package}.kernels", None)
    kernels_of.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="record batches are encoded in plain Python"):
            assert loops() is plain
        with pytest.warns(RuntimeWarning, match="record batches are decoded in plain Python"):
            assert there_and_back(BATCH) == compiled
        wrong = pa.record_batch({"value": pa.array([b"x"]), "partition": pa.array([7], pa.int32())})
        with pytest.raises(UnsuitableRows, match="column partition is 7 in row 0: topic 't' has partitions 0 to 2"):
            there_and_back(wrong)
    finally:
        kernels_of.cache_clear()


BLOCKED = """
import sys
sys.modules["numba"] = None  # as if it were not installed
import warnings
import test_without_numba as test
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert len(test.there_and_back(test.BATCH)) == 500
    test.there_and_back(test.BATCH)  # without another warning
print(sorted(str(one.message).partition(",")[0] for one in told if one.category is RuntimeWarning))
from penstock.arrow.cache.warmup import WarmUp, is_warm
assert is_warm()
WarmUp().wait()
print([name for name in sys.modules if name.startswith("numba")])
"""


def test_numba_need_not_be_installed() -> None:
    path = [os.path.dirname(__file__), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    ran = subprocess.run([sys.executable, "-c", BLOCKED], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "['numba cannot be used', 'numba cannot be used']",
        "['numba']",
    ]
