"""A real broker process for the tests with real clients.

Clients get `bootstrap.servers` and what a test is about, nothing else. Consumers assign their
partitions themselves, except in the tests of groups (`test_groups_*`).
"""

from __future__ import annotations

import itertools
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

READY = re.compile(r"ready on (?P<address>[^ ]+): ")
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 30


class BrokerProcess:
    """`penstock start` on a free port. `stop` demands a clean end: exit code 0 and no traceback."""

    def __init__(self, data: Path, settings: dict[str, str]) -> None:
        console_script = Path(sys.executable).with_name("penstock")
        command = [str(console_script)] if console_script.exists() else [sys.executable, "-m", "penstock.cli"]
        command += ["start", "--port", "0", "--data", str(data)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.errors: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._readers = [
            threading.Thread(target=_drain, args=(self.process.stdout, self._lines.put), daemon=True),
            threading.Thread(target=_drain, args=(self.process.stderr, self.errors.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.bootstrap_servers = self._wait_until_ready()

    def _wait_until_ready(self) -> str:
        try:
            line = self._lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            self.process.kill()
            pytest.fail(f"no ready line within {START_TIMEOUT_S} s: {''.join(self.errors)}")
        found = READY.search(line)
        assert found is not None, f"not a ready line: {line!r}; {''.join(self.errors)}"
        return found["address"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"still running {STOP_TIMEOUT_S} s after SIGTERM")
        for reader in self._readers:
            reader.join()
        said = "".join(self.errors)
        assert code == 0, said
        assert "Traceback" not in said, said
        assert "CRITICAL" not in said, said


def _drain(stream: IO[str], put: Callable[[str], object]) -> None:
    """Read to the end, so that the broker never waits for a full pipe."""
    with stream:
        for line in stream:
            put(line)


@pytest.fixture(scope="session")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker with every setting at its default, for the whole directory."""
    broker = BrokerProcess(tmp_path_factory.mktemp("clients") / "data", {})
    yield broker
    broker.stop()


@pytest.fixture
def broker_process_factory(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Brokers with settings of their own: `broker_process_factory({"num.partitions": "3"})`."""
    running: list[BrokerProcess] = []

    def start(settings: dict[str, str] | None = None, data: Path | None = None) -> BrokerProcess:
        broker = BrokerProcess(data or tmp_path / f"data-{len(running)}", settings or {})
        running.append(broker)
        return broker

    yield start
    for broker in running:
        if broker.process.poll() is None:
            broker.stop()


@pytest.fixture(scope="session")
def bootstrap(broker_process: BrokerProcess) -> str:
    return broker_process.bootstrap_servers


_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A name nobody else uses; the broker creates the topic when a client first asks for it."""
    return f"t{next(_numbers)}"


@pytest.fixture(scope="session")
def kcat() -> str:
    path = shutil.which("kcat")
    if path is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    return path
