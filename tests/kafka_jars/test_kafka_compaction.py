"""Apache Kafka and Penstock compact the same records to the same: equal records in equal batches.

Both get the same batches with the same timestamps, so their segments begin at the same offsets. Needs Java and Apache
Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.brokers import Broker, Kafka, Penstock
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.records.batch import DELETE_HORIZON_BIT, iterate_headers

pytestmark = pytest.mark.kafka_jars

TOPIC = "accounts"
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "4000",
}
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def brokers(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    home = tmp_path_factory.mktemp("home")
    both = Kafka(home / "kafka", kafka_libs), Penstock(home / "ours")
    try:
        for broker in both:
            with broker.properties.open("a") as properties:
                properties.write("log.cleaner.backoff.ms=200\n")
            broker.prepare()
            broker.start()
        yield both
    finally:
        for broker in both:
            broker.kill()


def produce(producer: Producer, seed: int, start_ms: int, count: int) -> int:
    """Updates and deletions of twelve keys in batches of random size; the time of the last."""
    rng, timestamp = random.Random(seed), start_ms
    for number in range(count):
        value = None if rng.random() < 0.15 else b"%d" % number
        producer.produce(TOPIC, value, b"k%d" % rng.randrange(12), 0, timestamp=timestamp)
        if rng.random() < 0.3:
            producer.flush()
            timestamp += rng.choice((10, 60, 90))
    for key in (b"k1", b"k2"):
        producer.produce(TOPIC, None, key, 0, timestamp=timestamp)
    producer.flush()
    return timestamp


def records(port: int) -> list[tuple[int | None, object, object, int]]:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    result = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        result.append((message.offset(), message.key(), message.value(), message.timestamp()[1]))
    low, _ = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0))
    consumer.close()
    assert low == 0, "compaction does not move the start of the log"
    return result


def compacted(brokers: tuple[Broker, Broker], most: int) -> list[tuple[int | None, object, object, int]]:
    """Until both have compacted what there is: no more than so many records, the same ones."""
    deadline = time.monotonic() + 20
    while True:
        theirs, ours = (records(broker.port) for broker in brokers)
        if theirs == ours and len(ours) <= most:
            return ours
        assert time.monotonic() < deadline, f"Kafka has {len(theirs)}, Penstock {len(ours)} records"
        time.sleep(0.3)


def batches(broker: Broker) -> list[tuple[int, ...]]:
    """The headers in the first segment, without fields that depend on the moment of compaction."""
    path = broker.data / f"{TOPIC}-0" / f"{0:020d}.log"
    return [
        (
            header.base_offset,
            header.last_offset,
            header.record_count,
            header.attributes,
            header.max_timestamp,
            header.producer_epoch,
            header.base_sequence,
        )
        for _, header in iterate_headers(path.read_bytes(), str(path))
    ]


def test_the_same_is_left(brokers: tuple[Broker, Broker]) -> None:
    start_ms = int(time.time() * 1000) - HOUR_MS
    producers = []
    for broker in brokers:
        servers = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
        admin = AdminClient(servers)
        for made in admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)]).values():
            made.result(10)
        producers.append(
            [
                Producer({**servers, "linger.ms": 50}),
                Producer({**servers, "linger.ms": 50, "compression.type": "gzip", "enable.idempotence": True}),
            ]
        )
    for number in range(2):
        for of_broker in producers:
            last_ms = produce(of_broker[number], number, start_ms + number * 600_000, 300)
        compacted(brokers, most=40)
        for of_broker in producers:  # closes the last segment
            of_broker[number].produce(TOPIC, b"", b"end", 0, timestamp=last_ms + 1000)
            of_broker[number].flush()
        with_tombstones = compacted(brokers, most=20)
        assert any(value is None for _, _, value, _ in with_tombstones)
        time.sleep(4)
        for of_broker in producers:
            of_broker[number].produce(TOPIC, b"", b"end %d" % number, 0, timestamp=last_ms + 3000)
            of_broker[number].flush()
        without = compacted(brokers, most=len(with_tombstones))
        assert [value for _, _, value, _ in without].count(None) < [v for _, _, v, _ in with_tombstones].count(None)
    theirs, ours = (batches(broker) for broker in brokers)
    assert ours == theirs
    assert any(fields[3] & DELETE_HORIZON_BIT for fields in ours)
