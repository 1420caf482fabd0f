"""One Spark session and one real broker process for all tests with Spark.

Starting Spark takes seconds and each query a good part of one: a test that needs a session or a broker of its own says
why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from penstock.clients import BlockingAdmin
from penstock.spark import session

DELIVERY_TIMEOUT_S = 30

Record = tuple[bytes | None, bytes | None]


class Topics:
    """Topics of the session's broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.admin = BlockingAdmin(bootstrap_servers)
        self._numbers = itertools.count(1)

    def create(self, name: str | None = None, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Its name; one that nobody else uses unless given."""
        name = name or f"spark-{next(self._numbers)}"
        self.admin.create_topic(name, partitions, configs=configs)
        return name

    def fill(
        self,
        topic: str,
        records: Iterable[Record],
        partition: int = -1,
        headers: list[tuple[str, bytes | None]] | None = None,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        """(key, value) each; -1: the partition goes by the key. All are there when this returns."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, **(settings or {})})
        failures: list[str] = []
        for key, value in records:
            producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda error, _: failures.append(str(error)) if error else None,
                headers=headers or [],
            )
            producer.poll(0)
        assert producer.flush(DELIVERY_TIMEOUT_S) == 0
        assert not failures, failures[0]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="session")
def topics(broker: BrokerProcess) -> Iterator[Topics]:
    made = Topics(broker.bootstrap_servers)
    yield made
    made.admin.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores; nothing of it is written outside of temporary directories."""
    directory = tmp_path_factory.mktemp("spark")
    running = session(
        "penstock-tests",
        "local[2,4]",
        config={"spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.local.dir": str(directory / "scratch")},
        fast_start=True,
    )
    yield running
    running.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
