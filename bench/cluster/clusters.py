"""Three brokers of one kind that form a cluster; CPU and memory are sums over them.

Both kinds get the same properties files: combined brokers and controllers, static voters, and no setting that affects
speed. An ordinary admin client creates the topics of a run.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import Broker, BrokerFailed, Kafka, Penstock, free_ports
from bench.cluster.scenarios import MIN_IN_SYNC, REPLICAS
from bench.load import transactions
from bench.load.client import HOST, Client
from bench.load.wire import BrokerError
from bench.results import KAFKA, PENSTOCK
from penstock.runtime.clock import SystemEntropy
from penstock.runtime.cluster_secret import new_secret, write_secrets

START_TIMEOUT_S = 120.0
CLUSTER_ID = "cGVuc3RvY2stYmVuY2gtMQ"  # 16 bytes, base64
NODE_IDS = (1, 2, 3)


class KafkaNode(Kafka):
    """Like `Kafka`, formatted for the voters in the properties file."""

    def prepare(self) -> None:
        tool = self._java("kafka.tools.StorageTool", flags="-Xmx256M")
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(self.properties)]
        done = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokerFailed(f"Kafka's storage format failed: {done.stdout[-500:]} {done.stderr[-500:]}")


class Cluster:
    def __init__(self, home: Path, make_node: Callable[[Path], Broker]) -> None:
        self.nodes = {node_id: make_node(home / f"node-{node_id}") for node_id in NODE_IDS}
        self.label = self.nodes[1].label
        controller_ports = dict(zip(NODE_IDS, free_ports(len(NODE_IDS)), strict=True))
        voters = ",".join(f"{node_id}@{HOST}:{port}" for node_id, port in controller_ports.items())
        secret = home / "cluster.secret"
        if not secret.exists():
            home.mkdir(parents=True, exist_ok=True)
            write_secrets(str(secret), new_secret(SystemEntropy()))
        for node_id, node in self.nodes.items():
            lines = (
                "process.roles=broker,controller",
                f"node.id={node_id}",
                f"listeners=PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{controller_ports[node_id]}",
                f"advertised.listeners=PLAINTEXT://{HOST}:{node.port}",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "controller.listener.names=CONTROLLER",
                f"controller.quorum.voters={voters}",
                f"log.dirs={node.data}",
                f"penstock.cluster.secret.file={secret}",
                # Deleted topics leave the disk before the next round, not a minute into it.
                "log.segment.delete.delay.ms=100",
            )
            node.properties.write_text("\n".join(lines) + "\n")

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes.values())

    @property
    def any_port(self) -> int:
        return self.nodes[1].port

    def start(self) -> None:
        for node in self.nodes.values():
            node.prepare()
        for node in self.nodes.values():
            node.launch()
        self.wait_for_brokers()

    def wait_for_brokers(self) -> None:
        """Waits until every broker knows all others."""
        for node in self.nodes.values():
            self._wait_until(partial(_is_complete, node.port), f"every broker of {self.label} knows the others")

    def check_alive(self) -> None:
        for node in self.nodes.values():
            node.check_alive()

    def cpu_s(self) -> float:
        return sum(node.cpu_s() for node in self.nodes.values())

    def rss_mb(self) -> float:
        return sum(node.rss_mb() for node in self.nodes.values())

    def discard(self) -> None:
        for node in self.nodes.values():
            node.discard()

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def leaders(self, topic: str) -> list[int]:
        """The leader of each partition; -1 if there is none."""
        partitions = self.admin().list_topics(topic, timeout=10).topics[topic].partitions
        return [partitions[number].leader for number in sorted(partitions)]

    def leader_ports(self, topic: str) -> list[int]:
        return [self.nodes[leader].port for leader in self.leaders(topic)]

    def coordinator(self, transactional_id: str) -> int:
        """The broker that coordinates the transactions of this id."""
        with Client(self.any_port) as client:
            found = transactions.coordinator_of(client, transactional_id)
        if found.error:
            raise BrokerError(f"find the coordinator of {transactional_id}", found.error)
        return found.node_id

    def wait_in_sync(self, topic: str) -> None:
        """Waits until every partition has a leader and all of its replicas."""

        def is_whole() -> bool:
            found = self.admin().list_topics(topic, timeout=10).topics[topic].partitions
            return bool(found) and all(state.leader >= 0 and len(state.isrs) == REPLICAS for state in found.values())

        self._wait_until(is_whole, f"{topic} has all of its replicas")

    @contextmanager
    def topic(self, hint: str, partitions: int, configs: Mapping[str, str]) -> Iterator[str]:
        """A topic with three replicas. It and its files are deleted at the end of the block."""
        name = f"{hint}-{time.monotonic_ns()}"
        admin = self.admin()
        config = {"min.insync.replicas": str(MIN_IN_SYNC), **configs}
        admin.create_topics([NewTopic(name, partitions, REPLICAS, config=config)])[name].result(60)
        self.wait_in_sync(name)
        try:
            yield name
        finally:
            self.check_alive()
            admin.delete_topics([name], operation_timeout=60)[name].result(60)
            for node in self.nodes.values():
                if not node.await_gone(name):
                    print(f"  {self.label}: files of a deleted topic are still there", flush=True)

    def _wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        said = ""
        while True:
            try:
                if holds():
                    return
            except (KafkaException, OSError, KeyError) as error:
                said = f" ({error})"
            self.check_alive()
            if time.monotonic() > deadline:
                raise BrokerFailed(f"not within {START_TIMEOUT_S:.0f} s: {what}{said}")
            time.sleep(0.05)


def _is_complete(port: int) -> bool:
    with Client(port, timeout_s=5.0) as client:
        return client.metadata([]).broker_count == len(NODE_IDS)


ClusterMaker = Callable[[str], Cluster]
"""Makes a cluster on fresh directories of the given name."""


def makers(work: Path, jars: Path | None, sides: Sequence[str]) -> dict[str, ClusterMaker]:
    found: dict[str, ClusterMaker] = {}
    if PENSTOCK in sides:
        found[PENSTOCK] = lambda name: Cluster(work / "run" / name, Penstock)
    if KAFKA in sides and jars is not None:
        found[KAFKA] = lambda name: Cluster(work / "run" / name, lambda home: KafkaNode(home, jars))
    return found
