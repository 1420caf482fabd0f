"""Brokers of one cluster, each a real process, to be killed, frozen, cut off, starved and brought back.

Knows processes, files and `penstock start`; what a cluster promises is judged elsewhere (`history`). Every node has
a properties file, a data directory and one log file of all its starts. A port is the OS's choice and stays the
node's own. Leaving the block always ends every process that was started in it, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import PartitionMetadata
from confluent_kafka.cimpl import NewTopic

from penstock.config.gateway import CLOSED
from penstock.runtime.clock import SystemEntropy
from penstock.runtime.cluster_secret import new_secret, write_secrets
from penstock.wire.apis import Api
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from support.clients.raw import RawClient
from support.processes.network import LOOPBACK, Network, RoutedNetwork

READY = re.compile(rb"ready on \S+")
START_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 60.0
QUIET_CLIENT = {"log_level": 0, "socket.timeout.ms": 5000}


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process so far."""

    rss_bytes: int
    cpu_s: float
    context_switches: int
    """Voluntary ones, over all threads: a busy loop or a short timer shows here before it shows as CPU."""
    read_bytes: int
    """By read(2) and its kin, from files and sockets."""


class NodeProcess:
    def __init__(self, node_id: int, directory: Path, host: str, port: int, wrap: list[str]) -> None:
        self.node_id = node_id
        self.host, self.port = host, port
        self.directory = directory
        self.data = directory / "data"
        self.properties_path = directory / "server.properties"
        self.log_path = directory / "log"
        self.file_size_limit: int | None = None
        self.environment: dict[str, str] = {}
        """Beside that of the test."""
        self.is_aside = False
        """Frozen or cut off: it runs, and should not be asked about the cluster."""
        self._wrap = wrap
        self._process: subprocess.Popen[bytes] | None = None
        self._log_read = 0
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"node {self.node_id} does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def configure(self, settings: Mapping[str, str]) -> None:
        self.properties_path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def launch(self) -> None:
        """Start the process; `wait_ready` waits for it."""
        assert self._process is None, f"node {self.node_id} runs already"
        command = [*self._wrap, sys.executable, "-m", "penstock.cli", "start", str(self.properties_path)]
        self._log_read = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.environment}
            )
        if self.file_size_limit is not None:
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (self.file_size_limit,) * 2)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            with self.log_path.open("rb") as log:
                log.seek(self._log_read)
                if READY.search(log.read()):
                    return
            assert self.is_running, f"node {self.node_id} ended before it was ready:\n{self.log()[-4000:]}"
            assert time.monotonic() < deadline, f"node {self.node_id} is not ready:\n{self.log()[-4000:]}"
            time.sleep(0.02)

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """kill -9, and gone when this returns."""
        self._signal(signal.SIGKILL)
        self._wait(10)

    def terminate(self, timeout_s: float = 60) -> int:
        """SIGTERM; the exit code."""
        self._signal(signal.SIGTERM)
        return self._wait(timeout_s)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def log(self) -> str:
        """Its output, over all starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def usage(self) -> Usage:
        process = Path(f"/proc/{self.pid}")
        fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        switches = sum(
            int(line.split()[1])
            for task in (process / "task").iterdir()
            for line in (task / "status").read_text().splitlines()
            if line.startswith("voluntary_ctxt_switches")
        )
        read_bytes = int((process / "io").read_text().split()[1])
        return Usage(
            rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
            cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            context_switches=switches,
            read_bytes=read_bytes,
        )

    def partition_digest(self, topic: str, partition: int) -> tuple[int, str]:
        """Size and hash of all segments in order: equal on replicas that agree, wherever each rolled its segments."""
        digest, size = hashlib.sha256(), 0
        for segment in sorted((self.data / f"{topic}-{partition}").glob("*.log")):
            with segment.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
                    size += len(piece)
        return size, digest.hexdigest()

    def partition_bytes(self, topic: str, partition: int) -> int:
        """Size on disk, safe beside a broker that rolls and deletes."""
        size = 0
        for segment in (self.data / f"{topic}-{partition}").glob("*.log"):
            try:
                size += segment.stat().st_size
            except FileNotFoundError:
                continue  # renamed or removed since it was listed
        return size

    def _signal(self, number: int) -> None:
        assert self._process is not None, f"node {self.node_id} does not run"
        self._process.send_signal(number)

    def _wait(self, timeout_s: float) -> int:
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._process = None
        return code

    def discard(self) -> None:
        """End it whatever its state."""
        if self._process is not None:
            self._process.kill()  # works on a stopped process too
            self._process.wait(10)
            self._process = None


class ClusterProcesses:
    """`count` voters with ids from 1 on; `add` makes more nodes, which are observers of the quorum."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        count: int = 3,
        network: Network = LOOPBACK,
    ) -> None:
        self._directory = directory
        self._settings = dict(settings or {})
        self.network = network
        self.nodes: dict[int, NodeProcess] = {}
        for node_id in range(1, count + 1):
            self._new_node(node_id)
        self._secret = directory / "cluster.secret"
        if not self._secret.exists():
            directory.mkdir(parents=True, exist_ok=True)
            write_secrets(str(self._secret), new_secret(SystemEntropy()))
        self._voters = ",".join(f"{node.node_id}@{node.address}" for node in self.nodes.values())
        for node in self.nodes.values():
            node.configure(self._properties(node))

    def _new_node(self, node_id: int) -> NodeProcess:
        host = self.network.host_of(node_id)
        node = NodeProcess(
            node_id,
            self._directory / f"node-{node_id}",
            host,
            self.network.free_port(node_id),
            self.network.command_prefix(node_id),
        )
        self.nodes[node_id] = node
        return node

    def _properties(self, node: NodeProcess) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": str(node.node_id),
            "controller.quorum.voters": self._voters,
            "listeners": f"PLAINTEXT://{node.address}",
            "log.dirs": str(node.data),
            "penstock.cluster.secret.file": str(self._secret),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.num.partitions": "3",
            **CLOSED,
            **self._settings,
        }

    def add(self, node_id: int) -> NodeProcess:
        """A further broker, started and known to the others."""
        node = self._new_node(node_id)
        node.configure(self._properties(node))
        node.start()
        self.wait_for_brokers()
        return node

    def move(self, node: NodeProcess) -> None:
        """One that does not run gets another port for its next start; the files of the others stay as they are."""
        node.port = self.network.free_port(node.node_id)
        own = f"{node.node_id}@"
        voters = [f"{own}{node.address}" if one.startswith(own) else one for one in self._voters.split(",")]
        node.configure({**self._properties(node), "controller.quorum.voters": ",".join(voters)})

    @property
    def running(self) -> list[NodeProcess]:
        return [node for node in self.nodes.values() if node.is_running]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def start(self) -> ClusterProcesses:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_ready()
        self.wait_for_brokers()
        return self

    # -- what the cluster says of itself ------------------------------------------------

    def admin(self) -> AdminClient:
        """A client that asks nodes which run: a fresh one, as one that lost all brokers takes long to come back."""
        servers = ",".join(node.address for node in self.running if not node.is_aside)
        return AdminClient({"bootstrap.servers": servers, **QUIET_CLIENT})

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """With `assignment`, on these replicas by partition, preferred leader first."""
        if assignment is None:
            topic = NewTopic(name, partitions, -1, config=dict(config or {}))
        else:
            topic = NewTopic(
                name, len(assignment), replica_assignment=[list(one) for one in assignment], config=dict(config or {})
            )
        admin = self.admin()  # held, as its end would be that of the request too
        admin.create_topics([topic], operation_timeout=30)[name].result(30)
        self.wait_in_sync(name)

    def partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        return dict(self.admin().list_topics(topic, timeout=10).topics[topic].partitions)

    def leader_of(self, topic: str, partition: int) -> NodeProcess:
        """Waits for one that runs."""
        found: list[NodeProcess] = []

        def is_led() -> bool:
            leader = self.nodes.get(self.partitions(topic)[partition].leader)
            if leader is not None and leader.is_running and not leader.is_aside:
                found.append(leader)
            return bool(found)

        self.wait_until(is_led, f"{topic}-{partition} has a leader")
        return found[0]

    def wait_for_brokers(self) -> None:
        expected = sorted(node.node_id for node in self.running)
        self.wait_until(lambda: sorted(self.admin().list_topics(timeout=5).brokers) == expected, f"brokers {expected}")

    def wait_in_sync(self, topic: str, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Until every node says so: one that was away has an old story for a moment."""

        def all_in_sync() -> bool:
            return all(_says_in_sync(node, topic) for node in self.running if not node.is_aside)

        self.wait_until(all_in_sync, f"every replica of {topic} is in sync", timeout_s)

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = SETTLE_TIMEOUT_S) -> float:
        """Ask until it holds; the seconds it took. Errors of a cluster that is busy healing count as no."""
        begin = time.monotonic()
        said = ""
        while True:
            try:
                if holds():
                    return time.monotonic() - begin
            except (KafkaException, KeyError, OSError) as error:
                said = f" ({error})"
            if time.monotonic() - begin > timeout_s:
                raise AssertionError(f"not within {timeout_s:.0f} s: {what}{said}\n{self.log_tails()}")
            time.sleep(0.05)

    def log_tails(self, lines: int = 15) -> str:
        return "\n".join(
            f"--- node {node.node_id} ({'runs' if node.is_running else 'does not run'})\n"
            + "\n".join(node.log().splitlines()[-lines:])
            for node in self.nodes.values()
        )

    def check_logs(self) -> None:
        """No node has died of, or swallowed, something that nobody expected."""
        for node in self.nodes.values():
            at = node.log().find("Traceback")
            assert at < 0, f"node {node.node_id}:\n{node.log()[max(0, at - 500) : at + 3000]}"

    def __enter__(self) -> ClusterProcesses:
        try:
            return self.start()
        except BaseException:
            self.discard()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.log_tails(40))
        self.discard()

    def discard(self) -> None:
        for node in self.nodes.values():
            node.discard()


def _says_in_sync(node: NodeProcess, topic: str) -> bool:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with RawClient(node.port, timeout_s=5, host=node.host) as client:
        found = client.call(Api.METADATA, request, MetadataResponse).topics[0]
    return bool(found.partitions) and all(
        state.leader_id >= 0 and sorted(state.isr_nodes) == sorted(state.replica_nodes) for state in found.partitions
    )


@contextmanager
def frozen(node: NodeProcess) -> Iterator[None]:
    """SIGSTOP for the block."""
    node.freeze()
    node.is_aside = True
    try:
        yield
    finally:
        node.is_aside = False
        if node.is_running:
            node.thaw()


@contextmanager
def isolated(cluster: ClusterProcesses, node: NodeProcess) -> Iterator[None]:
    """Cut off from the other nodes for the block; clients still reach it."""
    network = cluster.network
    assert isinstance(network, RoutedNetwork), "only a routed network can be cut"
    network.isolate(node.node_id)
    node.is_aside = True
    try:
        yield
    finally:
        node.is_aside = False
        network.heal()


def run_command(cluster: ClusterProcesses, *arguments: str) -> str:
    """The output of a `penstock` command; it must succeed."""
    servers = ",".join(node.address for node in cluster.running if not node.is_aside)
    command = [sys.executable, "-m", "penstock.cli", *arguments, "--bootstrap-server", servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout
