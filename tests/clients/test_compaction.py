"""A compacted topic as a stock client sees it, with the settings that make compaction prompt."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.testing import Broker

TOPIC = "accounts"
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
}


def consume(bootstrap_servers: str, offset: int) -> dict[int, tuple[bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    result: dict[int, tuple[bytes | None, bytes | None]] = {}
    while (message := consumer.poll(10)) is not None and message.error() is None:
        number, key, value = message.offset(), message.key(), message.value()
        assert number is not None
        assert not isinstance(key, str)
        assert not isinstance(value, str)
        result[number] = (key, value)
    consumer.close()
    return result


def test_the_last_value_of_every_key_is_left_at_its_offset() -> None:
    with Broker({"log.cleaner.backoff.ms": "100"}) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(servers)
        for created in admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)]).values():
            created.result(10)
        producer = Producer({**servers, "compression.type": "zstd", "enable.idempotence": True})
        sent: dict[int, tuple[bytes | None, bytes | None]] = {}
        for number in range(3000):
            key, value = b"key-%d" % (number % 50), None if number % 50 == 7 else b"%d" % number
            producer.produce(TOPIC, value, key, 0)
            sent[number] = (key, value)
            if number % 500 == 499:
                producer.flush()
                time.sleep(0.12)
        sent[3000] = (b"end", b"")
        producer.produce(TOPIC, b"", b"end", 0)  # closes the segment before it
        producer.flush()
        last = {key: number for number, (key, _) in sent.items()}
        expected = {number: sent[number] for number in last.values()}
        deadline = time.monotonic() + 20
        while (left := consume(broker.bootstrap_servers, 0)) != expected:
            assert left.items() <= sent.items()
            assert left.items() >= expected.items()
            assert time.monotonic() < deadline, f"{len(left)} records are left"
            time.sleep(0.1)
        later = {number: record for number, record in expected.items() if number >= 2975}
        assert consume(broker.bootstrap_servers, 1234) == expected, "an offset that is gone leads to the next"
        assert consume(broker.bootstrap_servers, 2975) == later
