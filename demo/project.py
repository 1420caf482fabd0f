"""`penstock pipeline` in a project directory: create, serve in a separate process, get the status, stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from demo.brokers import PENSTOCK
from demo.telling import Failed

STOP_TIMEOUT_S = 120.0


class Project:
    def __init__(self, directory: Path, addresses: str) -> None:
        self.directory = directory
        self._environment = {**os.environ, "PENSTOCK_BOOTSTRAP_SERVERS": addresses}
        self._serving: subprocess.Popen[bytes] | None = None
        self._output = directory.parent / "serve.log"

    def _run(self, *arguments: str, where: Path | None = None) -> str:
        done = subprocess.run(
            [*PENSTOCK, "pipeline", *arguments],
            cwd=where or self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Failed(f"penstock pipeline {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def make(self, topic: str) -> None:
        self._run("init", self.directory.name, "--topic", topic, where=self.directory.parent)

    def serve(self) -> None:
        with self._output.open("wb") as output:
            self._serving = subprocess.Popen(
                [*PENSTOCK, "pipeline", "serve", "--interval", "2", "--fast-start"],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        assert self._serving is not None
        if self._serving.poll() is not None:
            raise Failed(f"the pipeline ended with exit code {self._serving.returncode}")

    def output(self) -> str:
        """The end of its output."""
        return self._output.read_text()[-4000:] if self._output.exists() else ""

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._run("status", "--json"))
        return found

    def stop(self) -> None:
        assert self._serving is not None
        self._serving.send_signal(signal.SIGTERM)
        try:
            code = self._serving.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the pipeline did not stop within {STOP_TIMEOUT_S:.0f} s") from None
        if code != 0:
            raise Failed(f"the pipeline stopped with exit code {code}")

    def end(self) -> None:
        if self._serving is not None and self._serving.poll() is None:
            os.killpg(self._serving.pid, signal.SIGKILL)
            self._serving.wait()


def lag_of(status: dict[str, Any]) -> int | None:
    """The lag of all flows; None before each has read something."""
    lags = [flow["lag"] for flow in status["flows"] if flow["partitions"]]
    return sum(lags) if lags and None not in lags else None


def is_reading(status: dict[str, Any]) -> bool:
    """Whether Spark is up and has started to read clicks."""
    return lag_of(status) is not None or any(flow["state"] == "running" for flow in status["flows"])


def is_idle(status: dict[str, Any]) -> bool:
    """Whether nothing is left to read."""
    return lag_of(status) == 0 and all(flow["state"] == "completed" for flow in status["flows"])
