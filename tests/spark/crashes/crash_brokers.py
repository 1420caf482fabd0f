"""The brokers of a crash test of the sink: three of Penstock, or one of Apache Kafka. Any of them may be killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pytest

from penstock.sdk import BlockingAdmin
from support.processes.cluster import ClusterProcesses, NodeProcess

FOREVER = {"retention.ms": "-1"}
"""The rows have timestamps of years ago."""
INTERNAL = ("__transaction_state", "__consumer_offsets", "__penstock_sinks")


class CrashBrokers(Protocol):
    label: str

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

    def check(self) -> None:
        self._broker.check_alive()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
