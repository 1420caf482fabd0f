"""A real broker in its own process, to be killed, stopped, frozen and starved."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from penstock.config.gateway import CLOSED

READY = re.compile(r"ready on (\S+):(\d+): ")


class BrokerProcess:
    """`directory` gets the data and standard error; after the first start the port stays the same.

    It has no gateway unless the settings say so.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data = directory / "data"
        self.log_path = directory / "stderr"
        self.settings = {**CLOSED, **(settings or {})}
        self.port = 0
        self.ready_line = ""
        self.file_size_limit: int | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> BrokerProcess:
        command = [sys.executable, "-m", "penstock.cli", "start", "--port", str(self.port), "--data", str(self.data)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        with self.log_path.open("ab") as stderr:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        if self.file_size_limit is not None:
            # A write past it fails with EFBIG: a full disk for those who may not mount one.
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (self.file_size_limit,) * 2)
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline()
        ready = READY.search(self.ready_line)
        assert ready, f"the broker did not start:\n{self.log()}"
        self.port = int(ready[2])
        return self

    def kill(self) -> None:
        """kill -9."""
        self._signal(signal.SIGKILL)
        self._wait(10)

    def terminate(self, timeout_s: float = 30) -> int:
        """SIGTERM; the exit code."""
        self._signal(signal.SIGTERM)
        return self._wait(timeout_s)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def log(self) -> str:
        """Standard error of all starts so far."""
        return self.log_path.read_text(errors="replace")

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait(self, timeout_s: float) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(timeout_s)
        self._process.stdout.close()
        self._process = None
        return code

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
