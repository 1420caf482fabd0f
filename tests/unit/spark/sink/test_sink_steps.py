"""The steps at which crash tests kill processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.sink.steps import REACHED, VARIABLE, Step, reach

REACHING = "from penstock.spark.sink.steps import Step, reach; reach(Step.DECIDED); print('lives')"


def reaching(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", REACHING]
    return subprocess.run(command, env={VARIABLE: str(directory)}, capture_output=True, text=True, check=False)


def test_without_the_variable_no_step_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / Step.DECIDED).touch()
    reach(Step.DECIDED)
    assert (tmp_path / Step.DECIDED).exists()


def test_the_first_process_that_reaches_the_step_dies(tmp_path: Path) -> None:
    (tmp_path / Step.SWEPT).touch()  # another step
    assert reaching(tmp_path).stdout == "lives\n"
    (tmp_path / Step.DECIDED).touch()
    assert reaching(tmp_path).returncode == -signal.SIGKILL
    assert {path.name for path in tmp_path.iterdir()} == {Step.SWEPT, Step.DECIDED + REACHED}
    assert reaching(tmp_path).stdout == "lives\n"


def test_listed_processes_die_instead(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim, subprocess.Popen(["true"]) as gone:
        gone.wait()
        (tmp_path / Step.DECIDED).write_text(f"{gone.pid} {victim.pid}")
        assert reaching(tmp_path).stdout == "lives\n"
        assert victim.wait(10) == -signal.SIGKILL
        with subprocess.Popen(["sleep", "60"]) as another:
            (tmp_path / Step.DECIDED).write_text(f"{another.pid} self")
            assert reaching(tmp_path).returncode == -signal.SIGKILL
            assert another.wait(10) == -signal.SIGKILL
