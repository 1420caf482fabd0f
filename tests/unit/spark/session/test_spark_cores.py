"""How many tasks run at the same time: computed by the session, inherited by the processes that plan tasks."""

from __future__ import annotations

import os

import pytest

from penstock.spark.options.cores import CORES_VARIABLE, cores_of, known_cores

HERE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[5,4]"}, 5),
        ({"spark.master": "local[*,4]"}, HERE),
        ({"spark.master": "local-cluster[2, 3, 1024]"}, 6),
        ({"spark.master": "yarn"}, None),
        ({"spark.master": "yarn", "spark.executor.instances": "4"}, 4),
        ({"spark.master": "yarn", "spark.executor.instances": "4", "spark.executor.cores": "2"}, 8),
        ({"spark.master": "spark://one:7077", "spark.executor.cores": "2"}, None),
        ({"spark.master": "spark://one:7077", "spark.cores.max": "12"}, 12),
        ({"spark.master": "local[2]", "spark.default.parallelism": "7"}, 7),
        ({}, None),
    ],
)
def test_cores_by_the_settings(settings: dict[str, str], cores: int | None) -> None:
    assert cores_of(settings) == cores


@pytest.mark.parametrize(("text", "cores"), [("6", 6), ("0", 1), ("", HERE), ("many", HERE), (None, HERE)])
def test_cores_by_the_environment(text: str | None, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(CORES_VARIABLE, text)
    assert known_cores() == cores
