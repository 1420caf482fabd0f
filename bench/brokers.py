"""Starts, watches and stops the brokers under test.

Both get the same Kafka-style properties file, apart from ports and directory. A broker leads its own process group, and
only groups that were started here are signalled. CPU and memory include the descendants of the process.

Kafka's jars come from Maven Central through the machine's Maven, into `.bench/kafka/<version>/`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from bench.load.client import HOST, Client
from bench.maven import JarsUnavailable, fetch_jars

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".bench"
POM = ROOT / "bench" / "kafka" / "pom.xml"

# As in Kafka's own start script.
JVM_FLAGS = (
    "-Xmx1G -Xms1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
)

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0


class BrokerFailed(RuntimeError):
    """A broker did not start, died, or did not stop."""


class KafkaUnavailable(RuntimeError):
    """No Java, no Maven or no jars: Penstock is measured alone."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Broker(ABC):
    """One broker with one data directory; may be started and stopped many times."""

    label: str

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.log = home / "log.txt"
        self.properties = home / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self.port, controller_port = free_ports(2)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        self.properties.write_text(
            "\n".join(
                (
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"listeners=PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller_port}",
                    f"advertised.listeners=PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller_port}",
                    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                    "controller.listener.names=CONTROLLER",
                    f"controller.quorum.bootstrap.servers={HOST}:{controller_port}",
                    f"log.dirs={self.data}",
                    # Deleted topics leave the disk before the next round, not a minute into it.
                    "log.segment.delete.delay.ms=100",
                    "offsets.topic.replication.factor=1",
                    "transaction.state.log.replication.factor=1",
                    "transaction.state.log.min.isr=1",
                    "",
                )
            )
        )

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def prepare(self) -> None:
        """Prepares a fresh data directory before the first start. Not part of any measured time."""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailed(f"{self.label} is not running")
        return self._process.pid

    @property
    def was_started(self) -> bool:
        """Started and not stopped since; it may have died."""
        return self._process is not None

    def launch(self) -> None:
        """Starts the process, without waiting until it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            tail = self.log.read_text(errors="replace").splitlines()[-5:]
            raise BrokerFailed(f"{self.label} ended with code {self._process.returncode}: " + " | ".join(tail))

    def start(self) -> None:
        self.launch()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self.check_alive()
            try:
                with Client(self.port, timeout_s=5.0) as client:
                    if client.metadata([]).broker_count == 1:
                        return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{self.label} is not ready after {START_TIMEOUT_S:.0f} s")
            time.sleep(0.02)

    def stop(self) -> float:
        """Stops the broker. Returns the seconds until the process ended."""
        process = self._process
        if process is None:
            return 0.0
        begin = time.perf_counter()
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"{self.label} did not stop within {STOP_TIMEOUT_S:.0f} s") from None
        self._process = None
        return time.perf_counter() - begin

    def kill(self) -> None:
        """kill -9 of the whole group."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def discard(self) -> None:
        """Ends the process in any state and removes its files, except the log."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def cpu_s(self) -> float:
        """CPU seconds so far, of the process, its descendants and those of them that ended."""
        return sum(_cpu_clock(pid) for pid in _tree(self.pid)) + _ended_children_s(self.pid)

    def rss_mb(self) -> float:
        return sum(_rss_kb(pid) for pid in _tree(self.pid)) / 1024

    def await_gone(self, topic: str, timeout_s: float = 60.0) -> bool:
        """Whether the files of a deleted topic left the disk in time."""
        deadline = time.monotonic() + timeout_s
        while any(self.data.glob(f"{topic}-*")):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def _cpu_clock(pid: int) -> float:
    """All threads of a process, also ended ones, in nanoseconds: what clock_getcpuclockid(3) names."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0  # ended since it was listed


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (the name before it may hold anything)."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _ended_children_s(pid: int) -> float:
    fields = _stat_fields(pid)
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _tree(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_stat_fields(int(entry.name))[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    queue = [root]
    while queue:
        pid = queue.pop()
        yield pid
        queue.extend(children.get(pid, ()))


def _rss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


class Penstock(Broker):
    label = "Penstock"

    def command(self) -> list[str]:
        script = Path(sys.executable).with_name("penstock")
        if script.exists():
            return [str(script), "start", str(self.properties)]
        return [sys.executable, "-c", "from penstock.cli import main; main()", "start", str(self.properties)]

    def prepare(self) -> None:
        """Does nothing: Penstock formats an empty directory itself, inside the measured time."""

    def version(self) -> str:
        import penstock

        return penstock.__version__


class Kafka(Broker):
    label = "Apache Kafka"

    def __init__(self, home: Path, jars: Path) -> None:
        self._jars = jars
        super().__init__(home)

    def _java(self, *arguments: str, flags: str) -> list[str]:
        return ["java", *flags.split(), "-Dlog4j2.level=WARN", "-cp", f"{self._jars}/*", *arguments]

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self.properties), flags=JVM_FLAGS)

    def prepare(self) -> None:
        tool = self._java("kafka.tools.StorageTool", flags="-Xmx256M")
        cluster_id = "cGVuc3RvY2stYmVuY2gtMQ"  # 16 bytes, base64
        arguments = ["format", "-t", cluster_id, "-c", str(self.properties), "--standalone"]
        done = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokerFailed(f"Kafka's storage format failed: {done.stdout[-500:]} {done.stderr[-500:]}")

    def version(self) -> str:
        jars = sorted(self._jars.glob("kafka-clients-*.jar"))
        return jars[0].stem.removeprefix("kafka-clients-") if jars else "unknown"


BrokerMaker = Callable[[str], Broker]
"""Makes a broker on a fresh directory of the given name."""


def kafka_jars(override: Path | None = None) -> Path:
    """The directory of Kafka's jars, fetched by Maven on the first use. Raises KafkaUnavailable."""
    if shutil.which("java") is None:
        raise KafkaUnavailable("no java on the path")
    if override is not None:
        jars = override / "libs"
        if not any(jars.glob("kafka_2.13-*.jar")):
            raise KafkaUnavailable(f"no Kafka jars in {jars}")
        return jars
    version = ElementTree.parse(POM).findtext(".//{*}kafka.version")
    jars = WORK / "kafka" / str(version)
    try:
        return fetch_jars(POM, jars, f"Apache Kafka {version}")
    except JarsUnavailable as error:
        raise KafkaUnavailable(str(error)) from None


def java_version() -> str:
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    lines = (done.stderr or done.stdout).splitlines()
    return lines[1] if len(lines) > 1 else "unknown"
