"""A Spark cluster as Spark itself has it: a master and workers in processes of their own, from the PySpark wheel.

The driver is whoever connects to `master`; executors are started by the workers. All of it on the loopback, and gone at
the end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pyspark

from penstock.spark.session.java import find_java

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class StandaloneCluster:
    def __init__(self, directory: Path, workers: int) -> None:
        self.directory = directory
        self.master = ""
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        }
        self._worker_count = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def work_directory(self, number: int) -> Path:
        """The directory in which a worker's executors run."""
        return self.directory / f"worker-{number}"

    def __enter__(self) -> StandaloneCluster:
        try:
            log = self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
            self.master = self._wait_for("master", log, _MASTER)[1]
            logs = [self._start_worker(number) for number in range(self._worker_count)]
            for number, log in enumerate(logs):
                self._wait_for(f"worker {number}", log, _REGISTERED)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Workers first: they end their executors. Nothing is left that was started here."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _start_worker(self, number: int) -> Path:
        options = ["--cores", "1", "--memory", "600m", "--work-dir", str(self.work_directory(number)), self.master]
        return self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *options)

    def _start(self, name: str, main: str, *options: str) -> Path:
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            command = [_SPARK_CLASS, main, "--host", "127.0.0.1", "--webui-port", "0", *options]
            self._processes.append(
                subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=self.environment)
            )
        return log

    def _wait_for(self, what: str, log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            found = pattern.search(log.read_text(errors="replace"))
            if found is not None:
                return found
            time.sleep(0.1)
        raise TimeoutError(f"{what} did not start within {START_TIMEOUT_S} s:\n{log.read_text(errors='replace')}")
