"""Three brokers of one cluster, each a process with a properties file. They can be killed with SIGKILL and restarted.

The system chooses free ports, so that the demo runs beside anything. The Python client asks about the cluster.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from demo.clickstream import SILENT
from demo.telling import Failed
from penstock.sdk import BlockingAdmin, ClientError, TopicInfo

PENSTOCK = [sys.executable, "-m", "penstock.cli"]
COUNT = 3
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
SECRET = "cluster.secret"
LOOK_EVERY_S = 0.02


class Broker:
    """`penstock start broker-N.properties`."""

    def __init__(self, number: int, port: int, directory: Path, voters: str) -> None:
        self.number = number
        self.port = port
        self.file = directory / f"broker-{number}.properties"
        self._log = directory / f"broker-{number}.log"
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "penstock.cluster.secret.file": directory / SECRET,
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": directory / f"broker-{number}",
            "default.replication.factor": COUNT,
            "offsets.topic.replication.factor": COUNT,
            "min.insync.replicas": COUNT - 1,
        }
        self.file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process; `wait_ready` waits for it."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*PENSTOCK, "start", str(self.file), "--log-level", "warning"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the demo handles Ctrl-C
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while re.search(r" ready on \S+", said := self._log.read_text()) is None:
            if not self.is_running or time.monotonic() > deadline:
                raise Failed(f"broker {self.number} did not start; its log: {said.strip() or 'nothing'}")
            time.sleep(LOOK_EVERY_S)

    def check_alive(self) -> None:
        if not self.is_running:
            raise Failed(f"broker {self.number} has ended; its log: {self._log.read_text()[-2000:].strip()}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def ask_to_stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait_stopped(self) -> None:
        assert self._process is not None
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"broker {self.number} did not stop within {STOP_TIMEOUT_S:.0f} s") from None
        if code != 0:
            raise Failed(f"broker {self.number} stopped with exit code {code}")

    def end(self) -> None:
        if self._process is not None and self.is_running:
            self.kill()


class Cluster:
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        subprocess.run(
            [*PENSTOCK, "cluster", "secret", "--new", str(directory / SECRET)], check=True, stderr=subprocess.DEVNULL
        )
        ports = _free_ports()
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports, 1))
        self.brokers = {number: Broker(number, port, directory, voters) for number, port in enumerate(ports, 1)}
        self.addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.admin = BlockingAdmin(self.addresses, settings=SILENT)

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        for broker in self.brokers.values():
            broker.wait_ready()
        _until(lambda: len(self.admin.cluster().brokers) == COUNT, "the brokers did not find each other")

    def wait_for(self, topic: str, holds: Callable[[TopicInfo], bool], complaint: str) -> tuple[TopicInfo, float]:
        """Waits for a condition. Returns the topic and the seconds that it took."""
        begin = time.monotonic()
        found: list[TopicInfo] = []

        def look() -> bool:
            found.append(self.admin.topic(topic))
            return holds(found[-1])

        _until(look, complaint)
        return found[-1], time.monotonic() - begin

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.ask_to_stop()
        for broker in self.brokers.values():
            broker.wait_stopped()

    def end(self) -> None:
        self.admin.close()
        for broker in self.brokers.values():
            broker.end()


def _free_ports() -> list[int]:
    """Free ports, all bound at the same time so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(COUNT)]
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def _until(holds: Callable[[], bool], complaint: str) -> None:
    """Waits for a condition. Errors of a cluster that has just lost a broker count as "not yet"."""
    deadline = time.monotonic() + START_TIMEOUT_S
    said = ""
    while True:
        try:
            if holds():
                return
        except ClientError as error:
            said = f" ({error})"
        if time.monotonic() > deadline:
            raise Failed(f"{complaint} within {START_TIMEOUT_S:.0f} s{said}")
        time.sleep(LOOK_EVERY_S)
