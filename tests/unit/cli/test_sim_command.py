"""`penstock sim` from a command line: what it refuses, and that nothing of it plays on when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.processes.command_line import CommandLine

PATIENCE_S = 60.0


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seed", "5", "--faults", "99"], "--faults 99: the plan of seed 5 has "),
        (["--seed", "5", "--faults", "-1"], "--faults -1: the plan of seed 5 has "),
        (["--seed", "5", "--seeds", "3"], "--seed is for one history and --seeds for many"),
        (["--trace"], "choose it with --seed"),
        (["--seed", "5", "--faults", "x"], "give numbers separated by commas"),
    ],
)
def test_refused(penstock: CommandLine, arguments: list[str], says: str) -> None:
    ran = penstock("sim", *arguments)
    assert ran.code != 0
    assert says in ran.err


def test_one_history_is_told_with_its_plan(penstock: CommandLine) -> None:
    lines = penstock("sim", "--seed", "3").lines
    assert lines[0].startswith("seed 3: ")
    assert any(line.startswith("1 history, 1 good: ") for line in lines)
    assert lines[-1].startswith("digest ")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_workers_end_with_a_command_that_is_killed() -> None:
    command = [sys.executable, "-m", "penstock.cli", "sim", "--seeds", "1000", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        workers: list[int] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(workers) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
            workers = [pid for pid in _children(parent.pid) if "spawn_main" in _command_line(pid)]
        time.sleep(1)  # until they play
        parent.send_signal(signal.SIGKILL)
    while any(_is_running(pid) for pid in workers):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
