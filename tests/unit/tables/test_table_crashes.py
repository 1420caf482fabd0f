"""kill -9 of a committer at every step leaves the old version or the new one, and the next committer goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.tables import Table
from support.tables.rows import ids, parquet_files

TESTS = Path(__file__).resolve().parents[2]


def killed_at_every_step(directory: Path, work: str) -> list[dict[str, Any]]:
    """What was there after each kill, and at last without one."""
    command = [sys.executable, "-m", "support.tables.killed", str(directory), work]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("work", ["append", "maintain", "staged"])
def test_each_row_once_whatever_was_killed(tmp_path: Path, work: str) -> None:
    found = killed_at_every_step(tmp_path, work)
    assert len(found) > 15
    for before, after in pairwise(found):
        assert after["ids"] == list(range(after["position"]))
        assert after["version"] >= before["version"]
        assert after["position"] >= before["position"]
    assert found[-1]["position"] > found[0]["position"]
    # A killed committer leaves files, which an expiry deletes.
    Table.open(tmp_path).expire(timedelta(0), unfinished_s=0)
    table = Table.open(tmp_path)
    assert parquet_files(tmp_path) == set(table._state.files)
    assert ids(table) == found[-1]["ids"]


def test_a_replacement_is_whole_or_not_there(tmp_path: Path) -> None:
    found = killed_at_every_step(tmp_path, "replace")
    for seen in found:
        assert seen["ids"] == list(range(max(0, seen["version"])))
    assert found[-1]["version"] >= 1


def test_a_merge_is_whole_or_not_there(tmp_path: Path) -> None:
    found = killed_at_every_step(tmp_path, "merge")
    for seen in found:
        at = seen["position"]
        assert seen["ids"] == (list(range(at - 1, at - 1 + 5)) if at else [])
    assert found[-1]["position"] >= 2
