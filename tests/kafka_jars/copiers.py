"""Apache Kafka's TransactionalMessageCopier as processes, and its console consumer, which reads what they copied.

A copier reads one partition, or what its group gives it, and writes the rows to the same partition of another topic,
rows and offsets in one transaction, about every third of which it aborts. It ends when it has reached the end.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

TOOL = "org.apache.kafka.tools.TransactionalMessageCopier"
STOP_TIMEOUT_S = 10.0


class Copier:
    """One transactional id, over all the processes that had it."""

    def __init__(self, libs: Path, log: Path, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.is_done = False
        self.kills = 0
        self.gave_up: list[str] = []
        """What it said in the end, of each process that ended early by itself."""
        self._complaints: list[str] = []
        self._log = log
        self._command = ["java", "-Xmx256M", "-cp", f"{libs}/*", TOOL, "--transactional-id", name, *arguments]
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if not line.startswith("{"):
                    self._complaints.append(line.strip())  # its logger writes to the same place
                elif line.endswith("}\n"):  # and not cut off by a kill
                    status = json.loads(line)
                    self.is_done |= status["stage"] == "ShutdownComplete" and status["remaining"] == 0

    def kill(self) -> None:
        """kill -9, and gone when this returns."""
        self.kills += 1
        self.discard()

    def look_after(self) -> None:
        """Start it again if it ended early."""
        if self.is_done or self._process is None or self._process.poll() is None:
            return
        self.discard()
        if not self.is_done:
            said = [*self._complaints, *self._log.read_text(errors="replace").splitlines()]
            self.gave_up.append(next((line for line in reversed(said) if "error" in line.lower()), "without a word"))
            self.start()

    def discard(self) -> None:
        if self._process is not None and self._reader is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._reader.join(STOP_TIMEOUT_S)
            self._process = None


def read_with_console_consumer(libs: Path, bootstrap_servers: str, topic: str, partitions: int) -> list[list[int]]:
    """All committed rows by partition, read by Kafka's Java consumer until nothing comes for a while."""
    command = [
        *("java", "-Xmx256M", "-cp", f"{libs}/*", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
        *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--from-beginning", "--timeout-ms", "8000"),
        *("--isolation-level", "read_committed", "--formatter-property", "print.partition=true"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    rows: list[list[int]] = [[] for _ in range(partitions)]
    for line in done.stdout.splitlines():
        place, _, value = line.partition("\t")
        if place.startswith("Partition:"):  # it logs to the same place, the end of its patience above all
            rows[int(place.removeprefix("Partition:"))].append(int(value))
    assert any(rows), done.stderr
    return rows
