"""The rows that a crash test copies, and the verdict on the copy: read by librdkafka, as any consumer would."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from penstock.model.topic_partition import TopicPartition as Partition
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
from penstock.wire_client.requests.offsets import LATEST_MS
from support.processes.cluster import QUIET_CLIENT

DELIVERY_TIMEOUT_S = 60
READ_TIMEOUT_S = 30.0
FIRST_TIMESTAMP_MS = 1_700_000_000_000
ENDED = frozenset(("Empty", "CompleteCommit", "CompleteAbort", "Dead"))
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Row:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @classmethod
    def of(cls, message: Message) -> Row:
        headers = tuple(message.headers() or ())
        return cls(message.key(), message.value(), headers, message.timestamp()[1])  # type: ignore[arg-type]


def rows(count: int) -> Iterator[Row]:
    """No two are equal."""
    chance = random.Random(count)
    for number in range(count):
        key = b"k%d" % number if number % 5 else None
        value = b"%d:%s" % (number, chance.randbytes(chance.randrange(60)))
        headers = (("n", b"%d" % number), ("none", None)) if number % 3 == 0 else ()
        yield Row(key, value, headers, FIRST_TIMESTAMP_MS + number)


def fill(servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 50, **QUIET_CLIENT})
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for row in rows(count):
        producer.produce(
            topic, row.value, row.key, headers=list(row.headers), timestamp=row.timestamp_ms, on_delivery=delivered
        )
        if len(producer) > 10_000:
            producer.poll(0.1)
    assert producer.flush(DELIVERY_TIMEOUT_S) == 0
    assert not failures, failures[0]


@dataclass
class Verdict:
    missing: list[Row]
    repeated: list[Row]
    foreign: list[Row]
    """Rows that the source does not have."""
    open_transactions: list[str] = field(default_factory=list)
    held_back: list[str] = field(default_factory=list)
    """Partitions whose last stable offset is before their end."""

    @property
    def is_exactly_once(self) -> bool:
        return not (self.missing or self.repeated or self.foreign or self.open_transactions or self.held_back)

    def __str__(self) -> str:
        if self.is_exactly_once:
            return "every row exactly once, no open transaction"
        parts = [
            f"{len(found)} rows {word}, such as {found[:SHOWN]}"
            for word, found in (("missing", self.missing), ("repeated", self.repeated), ("foreign", self.foreign))
            if found
        ]
        parts += [f"open: {', '.join(self.open_transactions)}"] if self.open_transactions else []
        parts += [f"held back: {', '.join(self.held_back)}"] if self.held_back else []
        return "; ".join(parts)


def compare(expected: Counter[Row], found: Counter[Row]) -> Verdict:
    """`repeated` and `missing` have a row as often as it is too many or too few."""
    more, less = found - expected, expected - found
    return Verdict(
        missing=list(less.elements()),
        repeated=[row for row in more.elements() if row in expected],
        foreign=[row for row in more.elements() if row not in expected],
    )


def judge(servers: str, topic: str, count: int) -> Verdict:
    """On what a reader of committed records sees, and on transactions of the whole cluster."""
    cluster = cluster_at(servers)
    try:
        partitions = [Partition(topic, number) for number in range(len(cluster.topics([topic])[topic].partitions))]
        asked = dict.fromkeys(partitions, LATEST_MS)
        stable, ends = cluster.list_offsets(asked, read_committed=True), cluster.list_offsets(asked)
        verdict = compare(Counter(rows(count)), Counter(read_committed(servers, topic, len(partitions))))
        verdict.held_back = [str(tp) for tp in partitions if stable[tp].offset != ends[tp].offset]
        listed = TransactionAdmin(cluster).transactional_ids()
        verdict.open_transactions = [one.transactional_id for one in listed if one.state not in ENDED]
        return verdict
    finally:
        cluster.close()


def read_committed(servers: str, topic: str, partitions: int) -> Iterator[Row]:
    settings = {
        "bootstrap.servers": servers,
        "group.id": "verdict",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        **QUIET_CLIENT,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    unread = set(range(partitions))
    while unread:
        messages = consumer.consume(1000, READ_TIMEOUT_S)
        assert messages, f"partitions {sorted(unread)} of {topic} do not come to their ends"
        for message in messages:
            error = message.error()
            if error is None:
                yield Row.of(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition() or 0)
    consumer.close()


def cluster_at(servers: str) -> BlockingCluster:
    addresses = (address.rsplit(":", 1) for address in servers.split(","))
    return BlockingCluster([(host, int(port)) for host, port in addresses])
