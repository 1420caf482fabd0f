"""The tables of a pipeline are in an open format: versions, exactly once, views that are replaced, changed columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("open_tables_driver.py")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(DRIVER), str(tmp_path_factory.mktemp("tables"))]
    told: list[Any] = []
    for more in ([], ["restarted"]):
        run = subprocess.run(
            [*command, *more], env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert run.returncode == 0, run.stderr
        told += [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert [step["error"] for step in told] == [None] * 6
    return {step["step"]: step for step in told}


def odd(*ids: int) -> list[dict[str, Any]]:
    return [{"id": one, "kind": f"k{one % 3}"} for one in ids]


def test_streams_and_views_in_python_and_sql(steps: dict[str, Any]) -> None:
    first = steps["first"]
    assert first["numbers"]["rows"] == [{"id": one} for one in range(3)]
    assert first["odd"]["rows"] == odd(1)
    assert first["odd"]["partition_by"] == ["kind"]
    assert first["stats"]["rows"] == [{"n": 3, "total": 3}]
    assert first["stats"]["count"] == 1
    assert first["numbers"]["version"] == 1, "one batch"


def test_the_next_run_adds_to_tables_and_replaces_views(steps: dict[str, Any]) -> None:
    second = steps["more rows"]
    assert second["numbers"]["rows"] == [{"id": one} for one in range(5)]
    assert second["odd"]["rows"] == odd(1, 3)
    assert second["stats"]["rows"] == [{"n": 5, "total": 10}]
    assert second["stats"]["version"] == steps["first"]["stats"]["version"] + 1, "replaced in one version"


def test_batches_that_spark_repeats_are_recognised(steps: dict[str, Any]) -> None:
    before, after = steps["more rows"], steps["repeated"]
    assert (after["numbers"], after["odd"]) == (before["numbers"], before["odd"])
    assert after["stats"]["rows"] == before["stats"]["rows"]


def test_definitions_may_add_columns(steps: dict[str, Any]) -> None:
    after = steps["other columns"]
    assert after["numbers"]["rows"] == [{"id": one, "tens": None if one < 5 else one * 10} for one in range(6)]
    assert after["stats"]["rows"][0]["n"] == 6
    assert after["stats"]["rows"][0]["most"] == 50


def test_a_full_refresh_begins_anew(steps: dict[str, Any]) -> None:
    after = steps["anew"]
    assert after["numbers"]["rows"] == [{"id": one, "tens": one * 10} for one in range(6)]
    assert after["odd"]["rows"] == odd(1, 3, 5)


def test_another_spark_goes_on_with_the_tables(steps: dict[str, Any]) -> None:
    after = steps["restarted"]
    assert [row["id"] for row in after["numbers"]["rows"]] == list(range(7))
    assert after["odd"]["rows"] == odd(1, 3, 5)
    assert after["stats"]["rows"][0]["n"] == 7
