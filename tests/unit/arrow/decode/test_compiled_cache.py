"""Compiled code of earlier versions in the cache: an upgrade finds it, and must not stumble over it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

MODULE = """
from typing import NamedTuple

from penstock.arrow.decode import jit

class {name}(NamedTuple):
    rows: int
    factor: float

@jit.kernel(jit.INT, jit.types.NamedTuple((jit.INT, jit.types.float64), {name}))
def scaled(counted):
    return int(counted.factor * counted.rows)

def compiled_before():
    return sum(scaled.stats.cache_hits.values())

print(scaled({name}(21, 2.0)), compiled_before())
"""


def run(directory: Path, name: str) -> list[str]:
    (directory / "kept.py").write_text(MODULE.format(name=name))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(directory / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", "import kept"]
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_a_class_that_is_gone_from_the_code_does_not_spoil_the_cache(tmp_path: Path) -> None:
    assert run(tmp_path, "Counted") == ["42", "0"]
    assert run(tmp_path, "Counted") == ["42", "1"]
    assert run(tmp_path, "Totalled") == ["42", "0"]
    assert run(tmp_path, "Totalled") == ["42", "1"]
