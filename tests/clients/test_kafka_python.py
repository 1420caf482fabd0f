"""kafka-python against a real process. (It compresses with snappy only where python-snappy is installed.)"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.codec import has_snappy
from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

CODECS = [None, "gzip", "lz4", "zstd", *(["snappy"] if has_snappy() else [])]
TIMEOUT_S = 20


@pytest.fixture
def producer(bootstrap: str) -> Iterator[KafkaProducer]:
    client = KafkaProducer(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[KafkaConsumer]:
    client = KafkaConsumer(bootstrap_servers=bootstrap)
    yield client
    client.close()


def consume(consumer: KafkaConsumer, topic: str, count: int, partitions: int = 1) -> list[Any]:
    assigned = [TopicPartition(topic, index) for index in range(partitions)]
    consumer.assign(assigned)
    consumer.seek_to_beginning(*assigned)
    found: list[Any] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=1000).values():
            found += records
    return found


class TestProduceAndConsume:
    @pytest.mark.parametrize("codec", CODECS)
    def test_every_compression(self, bootstrap: str, topic: str, consumer: KafkaConsumer, codec: str | None) -> None:
        producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec)
        sent = [b"%d " % number + b"x" * 100 for number in range(300)]
        for value in sent:
            producer.send(topic, value)
        producer.flush()
        producer.close()
        assert [record.value for record in consume(consumer, topic, 300)] == sent

    def test_keys_headers_nulls_and_timestamps(
        self, producer: KafkaProducer, topic: str, consumer: KafkaConsumer
    ) -> None:
        headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]
        stamp = 1_600_000_000_123
        first = producer.send(topic, key=b"k", value=b"v", headers=headers, timestamp_ms=stamp)
        producer.send(topic, key=None, value=b"no key")
        producer.send(topic, key=b"tombstone", value=None)
        producer.send(topic, key=b"", value=b"")
        producer.flush()
        assert first.get(TIMEOUT_S).offset == 0
        full, keyless, tombstone, empty = consume(consumer, topic, 4)
        assert (full.key, full.value, list(full.headers)) == (b"k", b"v", headers)
        assert (full.timestamp, full.timestamp_type) == (stamp, 0)
        assert (keyless.key, keyless.value) == (None, b"no key")
        assert (tombstone.key, tombstone.value) == (b"tombstone", None)
        assert (empty.key, empty.value) == (b"", b"")

    def test_large_messages(self, bootstrap: str, topic: str, consumer: KafkaConsumer) -> None:
        producer = KafkaProducer(bootstrap_servers=bootstrap, max_request_size=10_000_000)
        value = bytes(range(256)) * 3600
        producer.send(topic, value).get(TIMEOUT_S)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, b"x" * 1_100_000).get(TIMEOUT_S)
        producer.close()
        assert [record.value for record in consume(consumer, topic, 1)] == [value]

    def test_too_large_for_the_client(self, producer: KafkaProducer, topic: str) -> None:
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, b"x" * 1_100_000).get(TIMEOUT_S)

    @pytest.mark.parametrize("acks", [0, 1, "all"])
    def test_acks(self, bootstrap: str, topic: str, consumer: KafkaConsumer, acks: int | str) -> None:
        producer = KafkaProducer(bootstrap_servers=bootstrap, acks=acks, enable_idempotence=False)
        for number in range(100):
            producer.send(topic, b"%d" % number)
        producer.flush()
        producer.close()
        assert [record.value for record in consume(consumer, topic, 100)] == [b"%d" % n for n in range(100)]

    def test_an_idempotent_producer(self, bootstrap: str, topic: str, consumer: KafkaConsumer) -> None:
        producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, batch_size=256)
        for number in range(1000):
            producer.send(topic, b"%d" % number)
        producer.flush()
        producer.close()
        assert [record.value for record in consume(consumer, topic, 1000)] == [b"%d" % n for n in range(1000)]

    def test_many_partitions_in_one_fetch_session(
        self, producer: KafkaProducer, admin: KafkaAdminClient, topic: str, consumer: KafkaConsumer
    ) -> None:
        admin.create_topics({topic: {"num_partitions": 6}})
        assigned = [TopicPartition(topic, index) for index in range(6)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        for round_ in range(5):
            for index in range(0, 6, 2):
                producer.send(topic, b"%d" % round_, partition=index)
            producer.flush()
            found: list[Any] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < 3 and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=500).values():
                    found += records
            assert sorted(record.partition for record in found) == [0, 2, 4]
            assert {record.value for record in found} == {b"%d" % round_}


class TestOffsets:
    def test_beginning_end_and_times(self, producer: KafkaProducer, topic: str, consumer: KafkaConsumer) -> None:
        base = 1_650_000_000_000
        for number in range(10):
            producer.send(topic, b"v", timestamp_ms=base + number * 1000)
        producer.flush()
        partition = TopicPartition(topic, 0)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 10}
        assert consumer.offsets_for_times({partition: base + 1})[partition].offset == 1
        assert consumer.offsets_for_times({partition: base + 9000})[partition].timestamp == base + 9000
        assert consumer.offsets_for_times({partition: base + 9001})[partition] is None

    def test_seek(self, producer: KafkaProducer, topic: str, consumer: KafkaConsumer) -> None:
        for number in range(10):
            producer.send(topic, b"%d" % number)
        producer.flush()
        assert len(consume(consumer, topic, 10)) == 10
        partition = TopicPartition(topic, 0)
        consumer.seek(partition, 7)
        found = [record.value for record in consumer.poll(timeout_ms=5000)[partition]]
        assert found == [b"7", b"8", b"9"]
        assert consumer.position(partition) == 10

    def test_partitions_and_topics(self, producer: KafkaProducer, topic: str, consumer: KafkaConsumer) -> None:
        producer.send(topic, b"v").get(TIMEOUT_S)
        assert topic in consumer.topics()
        assert consumer.partitions_for_topic(topic) == {0}


def test_a_topic_that_may_not_be_created(broker_process_factory: Callable[..., Any], topic: str) -> None:
    broker = broker_process_factory({"auto.create.topics.enable": "false"})
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, max_block_ms=1000)
    with pytest.raises((UnknownTopicOrPartitionError, KafkaTimeoutError)):
        producer.send(topic, b"v").get(TIMEOUT_S)
    producer.close()


class TestAdmin:
    def test_create_list_describe_and_delete(self, admin: KafkaAdminClient, topic: str) -> None:
        admin.create_topics({topic: {"num_partitions": 3}})
        assert topic in admin.list_topics()
        (described,) = admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        (paged,) = admin.describe_topic_partitions([topic])["topics"]
        assert [partition["leader_id"] for partition in paged["partitions"]] == [1, 1, 1]
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics({topic: {"num_partitions": 3}})
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics([topic])

    def test_create_partitions(self, admin: KafkaAdminClient, topic: str) -> None:
        admin.create_topics([topic])
        admin.create_partitions({topic: 4})
        (described,) = admin.describe_topics([topic])
        assert len(described["partitions"]) == 4
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({topic: 2})

    def test_bad_settings_are_refused(self, admin: KafkaAdminClient, topic: str) -> None:
        with pytest.raises(InvalidConfigurationError):
            admin.create_topics({topic: {"configs": {"no.such": "1"}}})

    def test_describe_alter_and_reset_configs(self, admin: KafkaAdminClient, topic: str) -> None:
        def changed() -> dict[str, str]:
            found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])["topic"][topic]
            return {name: entry["value"] for name, entry in found.items()}

        admin.create_topics({topic: {"configs": {"retention.ms": "1000"}}})
        assert changed() == {"retention.ms": "1000"}
        changes = {"max.message.bytes": "4096", "cleanup.policy": ("APPEND", "compact")}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=changes)])
        expected = {"retention.ms": "1000", "max.message.bytes": "4096", "cleanup.policy": "delete,compact"}
        assert changed() == expected
        admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=["retention.ms"])])
        del expected["retention.ms"]
        assert changed() == expected
        assert topic in admin.list_config_resources()["topic"]

    def test_describe_cluster(self, admin: KafkaAdminClient, bootstrap: str) -> None:
        cluster = admin.describe_cluster()
        assert cluster["cluster_id"]
        (node,) = cluster["brokers"]
        assert f"{node['host']}:{node['port']}" == bootstrap
        assert cluster["controller_id"] == node["broker_id"]

    def test_delete_records_offsets_producers_and_log_dirs(
        self, admin: KafkaAdminClient, producer: KafkaProducer, topic: str
    ) -> None:
        for number in range(10):
            producer.send(topic, b"v", timestamp_ms=1_650_000_000_000 + number)
        producer.flush()
        partition = TopicPartition(topic, 0)
        assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
        for spec, offset in [
            (OffsetSpec.EARLIEST, 4),
            (OffsetSpec.LATEST, 10),
            (OffsetSpec.MAX_TIMESTAMP, 9),
            (1_650_000_000_007, 7),
        ]:
            assert admin.list_partition_offsets({partition: spec})[partition].offset == offset
        (active,) = admin.describe_producers([partition])[partition].active_producers
        assert active.last_sequence == 9
        (log_dir,) = admin.describe_log_dirs([topic])[0]["log_dirs"]
        assert log_dir["topics"][0]["partitions"][0]["partition_size"] > 0
