"""Topics of a broker for the tests with Spark: made, and filled by librdkafka."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from confluent_kafka import Producer

from penstock.sdk import BlockingAdmin

DELIVERY_TIMEOUT_S = 30

Record = tuple[bytes | None, bytes | None]


class Topics:
    """Of one broker; each has a name of its own unless one is given."""

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
