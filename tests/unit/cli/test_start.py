"""`penstock start` from the outside: what it prints, what it refuses and how."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PENSTOCK = [sys.executable, "-m", "penstock.cli"]


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a command that must fail; its one sentence."""
    result = subprocess.run(
        [*PENSTOCK, *arguments], capture_output=True, text=True, timeout=30, env={**os.environ, **(env or {})}
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("penstock: ")
    return lines[-1]


def test_port_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = refused("start", "--port", str(port), "--data", str(tmp_path))
    assert f"127.0.0.1:{port}" in sentence
    assert "taken" in sentence


def test_directory_not_writable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert "not writable" in refused("start", "--port", "0", "--data", str(file))


def test_directory_of_another_node(tmp_path: Path) -> None:
    with started("--data", str(tmp_path)) as (process, _):
        stop(process)
    sentence = refused("start", "--port", "0", "--data", str(tmp_path), "--set", "node.id=7")
    assert "belongs to node.id=1" in sentence


def test_directory_in_use(tmp_path: Path) -> None:
    with started("--data", str(tmp_path)) as (process, _):
        assert "in use by another broker" in refused("start", "--port", "0", "--data", str(tmp_path))
        stop(process)


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("num.partitions=0", "num.partitions"),
        ("num.partitions=many", "num.partitions"),
        ("listeners=PLAINTEXT//nowhere", "listeners"),
        ("listeners=SSL://127.0.0.1:9093", "SSL"),
        ("nothing", "KEY=VALUE"),
    ],
)
def test_bad_settings(setting: str, part: str, tmp_path: Path) -> None:
    assert part in refused("start", "--data", str(tmp_path), "--set", setting)


def test_missing_properties_file(tmp_path: Path) -> None:
    assert "no-such.properties" in refused("start", str(tmp_path / "no-such.properties"))


class started:  # noqa: N801 - reads as a context manager
    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __enter__(self) -> tuple[subprocess.Popen[str], str]:
        arguments = self._arguments
        if not any(argument.endswith(".properties") for argument in arguments):
            arguments = (*arguments, "--port", "0")
        self.process = subprocess.Popen(
            [*PENSTOCK, "start", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        return self.process, self.process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def stop(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    return stderr


def test_ready_line_and_clean_stop(tmp_path: Path) -> None:
    with started("--data", str(tmp_path / "new")) as (process, line):
        assert line.startswith("penstock ")
        assert " ready on 127.0.0.1:" in line
        assert str(tmp_path / "new") in line
        assert "stopped cleanly" in stop(process)
    assert (tmp_path / "new" / ".kafka_cleanshutdown").exists()


def test_kafka_style_properties_file(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = tmp_path / "server.properties"
    file.write_text(
        f"""process.roles=broker,controller
node.id=4
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:0
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:9093
log.dirs={tmp_path}/data
num.partitions=5
num.partition=6
"""
    )
    with started(str(file)) as (process, line):
        assert f"127.0.0.1:{port}" in line
        assert "node 4" in line
        assert "did you mean num.partitions" in stop(process)


def test_help_and_version_need_no_broker() -> None:
    for arguments in (["--help"], ["start", "--help"], ["--version"]):
        result = subprocess.run([*PENSTOCK, *arguments], capture_output=True, text=True, timeout=30, check=True)
        assert "penstock" in result.stdout
