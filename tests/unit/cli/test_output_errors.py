"""Standard output that is full or closed: one sentence and the same exit code for every command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.testing import Broker
from support.processes.command_line import CommandLine

COMMANDS = [
    ["--help"],
    ["topics", "--help"],
    ["topics", "list", "--all", "--json"],
    ["cluster", "status"],
    ["doctor"],
    ["completion", "bash"],
    ["produce", "--topic", "output-errors", "--json"],
    ["consume", "--topic", "output-errors"],
]


@pytest.fixture
def environment(cli: CommandLine, penstock_broker: Broker) -> dict[str, str]:
    cli("produce", "--topic", "output-errors", stdin=b"x\n")
    return {**os.environ, "PENSTOCK_BOOTSTRAP_SERVERS": penstock_broker.bootstrap_servers}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_device(command: list[str], environment: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *command],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            timeout=60,
        )
    assert (ran.returncode, ran.stderr) == (1, "penstock: cannot write the output: no space left on device\n")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_closed_pipe(command: list[str], environment: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ran = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *command],
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            timeout=60,
        )
    assert (ran.returncode, ran.stderr) == (141, "")
