"""The brokers of a crash test of the sink: three of Penstock, or one of Apache Kafka. Any of them may be killed.

Apache Kafka 4.3.1 can lose a transaction when it is killed: the coordinator's log has PrepareCommit and CompleteCommit,
but the partitions have no marker. Such a run says nothing about the sink, and ends with a sentence that tells so.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pytest
from copied_rows import cluster_at

from penstock.sdk import BlockingAdmin
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
from penstock.wire_client.requests.transactions import PartitionProducer
from support.processes.cluster import ClusterProcesses, NodeProcess

FOREVER = {"retention.ms": "-1"}
"""The rows have timestamps of years ago."""
INTERNAL = ("__transaction_state", "__consumer_offsets", "__penstock_sinks")
MARKERS_WITHIN_S = 20.0
LOOK_AGAIN_S = 0.5
ENDING = frozenset(("PrepareCommit", "PrepareAbort", "PrepareEpochFence"))


class CrashBrokers(Protocol):
    label: str
    serve_without_one: bool
    """Requests are answered while the chosen one is away."""

    @property
    def bootstrap_servers(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def create_topic(self, name: str, partitions: int) -> None: ...

    def add_partitions(self, name: str, total: int) -> None: ...

    def choose(self, chance: random.Random) -> int:
        """The process id of a broker, which somebody kills before `mend` is called."""
        ...

    def mend(self, topics: tuple[str, ...]) -> None:
        """Starts the chosen one again. Returns when every replica is in sync."""
        ...

    def check(self) -> None:
        """That no broker has met an error that nobody expects."""
        ...


class PenstockBrokers:
    label = "three brokers of Penstock"
    serve_without_one = True

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._cluster = ClusterProcesses(directory, settings)
        self._victims: list[NodeProcess] = []

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.__exit__(kind, error, trace)

    def create_topic(self, name: str, partitions: int) -> None:
        self._cluster.create_topic(name, partitions, config=FOREVER)

    def add_partitions(self, name: str, total: int) -> None:
        with BlockingAdmin(self.bootstrap_servers) as admin:
            admin.add_partitions(name, total)

    def choose(self, chance: random.Random) -> int:
        self._victims.append(chance.choice(self._cluster.running))
        return self._victims[-1].pid

    def mend(self, topics: tuple[str, ...]) -> None:
        cluster = self._cluster
        while self._victims:
            node = self._victims.pop()
            node.discard()  # waits for its end
            node.start()
        cluster.wait_for_brokers()
        known = cluster.admin().list_topics(timeout=10).topics
        for topic in (*topics, *INTERNAL):
            if topic in known:
                cluster.wait_in_sync(topic)

    def check(self) -> None:
        self._cluster.check_logs()


class KafkaBroker:
    """Its replication factor is 1, so the query waits while it is away."""

    label = "one broker of Apache Kafka"
    serve_without_one = False

    def __init__(self, directory: Path) -> None:
        from bench.brokers import Kafka, KafkaUnavailable, kafka_jars

        try:
            jars = kafka_jars()
        except KafkaUnavailable as error:
            pytest.fail(f"Apache Kafka cannot run here: {error}. Install Java 17 and Maven", pytrace=False)
        self._broker = Kafka(directory, jars)
        self.label = f"one broker of Apache Kafka {self._broker.version()}"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._broker.port}"

    def __enter__(self) -> Self:
        self._broker.prepare()
        self._broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.discard()

    def create_topic(self, name: str, partitions: int) -> None:
        with BlockingAdmin(self.bootstrap_servers) as admin:
            admin.create_topic(name, partitions, configs=FOREVER)

    def add_partitions(self, name: str, total: int) -> None:
        with BlockingAdmin(self.bootstrap_servers) as admin:
            admin.add_partitions(name, total)

    def choose(self, chance: random.Random) -> int:
        return self._broker.pid

    def mend(self, topics: tuple[str, ...]) -> None:
        self._broker.kill()  # reaps it
        self._broker.start()
        cluster = cluster_at(self.bootstrap_servers)
        try:
            _check_markers(cluster, (*topics, *INTERNAL))
        finally:
            cluster.close()

    def check(self) -> None:
        self._broker.check_alive()


def _check_markers(cluster: BlockingCluster, topics: tuple[str, ...]) -> None:
    """That no partition waits for the marker of a transaction that its coordinator has forgotten."""
    admin = TransactionAdmin(cluster)
    deadline = time.monotonic() + MARKERS_WITHIN_S
    while lost := _without_marker(admin, topics):
        if time.monotonic() > deadline:
            names = ", ".join(f"{one.partition} (producer {one.producer_id}, epoch {one.epoch})" for one in lost)
            pytest.fail(
                f"Apache Kafka has lost the markers of a transaction that it has ended, when it was killed: {names}. "
                "Its rows may never appear, whoever wrote them. This says nothing about the sink: run it again, or "
                "with another SEED",
                pytrace=False,
            )
        time.sleep(LOOK_AGAIN_S)


def _without_marker(admin: TransactionAdmin, topics: tuple[str, ...]) -> list[PartitionProducer]:
    """Open in a partition with an older epoch than its coordinator's: a transaction that ends gets a new epoch."""
    found = admin.open_transactions(topics)
    ids = {one.producer_id: one.transactional_id for one in admin.transactional_ids()}
    lost: list[PartitionProducer] = []
    for one in found:
        if one.producer_id in ids:
            seen = admin.describe(ids[one.producer_id])
            if seen.state not in ENDING and seen.producer_epoch > one.epoch:
                lost.append(one)
    return lost


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
