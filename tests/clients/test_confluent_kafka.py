"""confluent-kafka (librdkafka) against a real process.

Consumers here assign their partitions themselves and commit nothing; groups are in `test_groups_*`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIMEOUT_S = 20


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[Consumer]:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "assigns", "enable.auto.commit": False})
    yield client
    client.close()


@pytest.fixture
def create(admin: AdminClient, topic: str) -> Callable[..., str]:
    def create_topic(partitions: int = 1, **config: str) -> str:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin.create_topics([NewTopic(topic, partitions, config=settings)])[topic].result(TIMEOUT_S)
        return topic

    return create_topic


def produce(bootstrap: str, topic: str, messages: list[dict[str, Any]], **config: Any) -> list[Message]:
    """Delivery reports, in order. Fails on an error."""
    reports: list[tuple[KafkaError | None, Message]] = []
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    for message in messages:
        producer.produce(topic, on_delivery=lambda error, sent: reports.append((error, sent)), **message)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert [error for error, _ in reports if error] == []
    return [sent for _, sent in reports]


def delivery_error(bootstrap: str, topic: str, **message: Any) -> KafkaError:
    """The error in a delivery report. The client would wait half a minute for an unknown topic to turn up."""
    errors: list[KafkaError] = []
    config = {"message.max.bytes": 10_000_000, "topic.metadata.propagation.max.ms": 500}
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    producer.produce(topic, on_delivery=lambda error, _: errors.append(error), **message)
    assert producer.flush(TIMEOUT_S) == 0
    return errors[0]


def consume(consumer: Consumer, topic: str, count: int, offset: int = OFFSET_BEGINNING) -> list[Message]:
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), timeout=1.0):
            assert message.error() is None, message.error()
            found.append(message)
    return found


class TestProduceAndConsume:
    @pytest.mark.parametrize("codec", CODECS)
    def test_every_compression(self, bootstrap: str, topic: str, consumer: Consumer, codec: str) -> None:
        sent = [b"%d " % number + b"x" * 100 for number in range(300)]
        produce(bootstrap, topic, [{"value": value} for value in sent], **{"compression.type": codec})
        assert [message.value() for message in consume(consumer, topic, 300)] == sent

    def test_keys_headers_nulls_and_timestamps(self, bootstrap: str, topic: str, consumer: Consumer) -> None:
        headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None), ("bytes", b"\xff\x00")]
        stamp = 1_600_000_000_123
        reports = produce(
            bootstrap,
            topic,
            [
                {"key": b"k", "value": b"v", "headers": headers, "timestamp": stamp},
                {"key": None, "value": b"no key"},
                {"key": b"tombstone", "value": None},
                {"key": b"", "value": b""},
            ],
        )
        assert [report.offset() for report in reports] == [0, 1, 2, 3]
        full, keyless, tombstone, empty = consume(consumer, topic, 4)
        assert (full.key(), full.value(), full.headers()) == (b"k", b"v", headers)
        assert full.timestamp() == (1, stamp)
        assert (keyless.key(), keyless.value()) == (None, b"no key")
        assert (tombstone.key(), tombstone.value()) == (b"tombstone", None)
        assert (empty.key(), empty.value()) == (b"", b"")

    def test_a_large_message(self, bootstrap: str, topic: str, consumer: Consumer) -> None:
        value = bytes(range(256)) * 3600
        produce(bootstrap, topic, [{"value": value}, {"value": b"after"}])
        assert [message.value() for message in consume(consumer, topic, 2)] == [value, b"after"]

    def test_too_large_a_message_is_refused_by_the_client(self, bootstrap: str, topic: str) -> None:
        with pytest.raises(KafkaException) as refused:
            Producer({"bootstrap.servers": bootstrap}).produce(topic, b"x" * 1_100_000)
        assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE

    def test_too_large_a_message_is_refused_by_the_broker(self, bootstrap: str, topic: str) -> None:
        assert delivery_error(bootstrap, topic, value=b"x" * 1_100_000).code() == KafkaError.MSG_SIZE_TOO_LARGE

    def test_many_small_ones_over_many_partitions(
        self, bootstrap: str, create: Callable[..., str], consumer: Consumer
    ) -> None:
        topic = create(8)
        count = 20_000
        produce(bootstrap, topic, [{"key": b"%d" % n, "value": b"%d" % n} for n in range(count)])
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(8)])
        found: list[tuple[int, int]] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += [(m.partition(), int(m.value())) for m in consumer.consume(5000, 1.0)]
        assert sorted(value for _, value in found) == list(range(count))
        for index in range(8):
            own = [value for partition, value in found if partition == index]
            assert own
            assert own == sorted(own)

    @pytest.mark.parametrize("acks", ["0", "1", "all"])
    def test_acks(self, bootstrap: str, topic: str, consumer: Consumer, acks: str) -> None:
        produce(bootstrap, topic, [{"value": b"%d" % number} for number in range(100)], acks=acks)
        assert [message.value() for message in consume(consumer, topic, 100)] == [b"%d" % n for n in range(100)]

    def test_an_idempotent_producer(self, bootstrap: str, topic: str, consumer: Consumer) -> None:
        messages = [{"value": b"%d" % number} for number in range(2000)]
        produce(bootstrap, topic, messages, **{"enable.idempotence": True, "batch.num.messages": 10})
        assert [message.value() for message in consume(consumer, topic, 2000)] == [b"%d" % n for n in range(2000)]


class TestOffsets:
    def test_watermarks_and_offsets_for_times(self, bootstrap: str, topic: str, consumer: Consumer) -> None:
        base = 1_650_000_000_000
        produce(bootstrap, topic, [{"value": b"v", "timestamp": base + number * 1000} for number in range(10)])
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S) == (0, 10)
        for asked, offset in [(base, 0), (base + 1, 1), (base + 9000, 9), (base + 9001, OFFSET_END)]:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, asked)], timeout=TIMEOUT_S)
            assert found.offset == offset

    def test_seek(self, bootstrap: str, topic: str, consumer: Consumer) -> None:
        produce(bootstrap, topic, [{"value": b"%d" % number} for number in range(10)])
        assert len(consume(consumer, topic, 10)) == 10
        consumer.seek(TopicPartition(topic, 0, 4))
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert (message.offset(), message.value()) == (4, b"4")

    def test_from_the_end_only_what_comes_later(self, bootstrap: str, topic: str, consumer: Consumer) -> None:
        produce(bootstrap, topic, [{"value": b"before"}])
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert consumer.poll(1.0) is None
        produce(bootstrap, topic, [{"value": b"after"}])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.value() == b"after"

    def test_out_of_range(self, bootstrap: str, topic: str) -> None:
        produce(bootstrap, topic, [{"value": b"v"}])
        config = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
        consumer = Consumer({**config, "auto.offset.reset": "error"})
        consumer.assign([TopicPartition(topic, 0, 99)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
        consumer.close()


class TestTopicSettings:
    def test_max_message_bytes(self, bootstrap: str, create: Callable[..., str]) -> None:
        topic = create(max_message_bytes="2000")
        produce(bootstrap, topic, [{"value": b"x" * 1000}])
        assert delivery_error(bootstrap, topic, value=b"x" * 3000).code() == KafkaError.MSG_SIZE_TOO_LARGE

    def test_log_append_time(self, bootstrap: str, create: Callable[..., str], consumer: Consumer) -> None:
        topic = create(message_timestamp_type="LogAppendTime")
        before = time.time() * 1000 - 1
        produce(bootstrap, topic, [{"value": b"v", "timestamp": 1000}])
        (message,) = consume(consumer, topic, 1)
        kind, stamp = message.timestamp()
        assert kind == 2
        assert before <= stamp <= before + 60_000

    @pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
    def test_compression_type_of_the_topic(
        self, bootstrap: str, create: Callable[..., str], consumer: Consumer, codec: str
    ) -> None:
        topic = create(compression_type="zstd")
        sent = [b"%d" % number * 20 for number in range(100)]
        produce(bootstrap, topic, [{"value": value} for value in sent], **{"compression.type": codec})
        assert [message.value() for message in consume(consumer, topic, 100)] == sent


class TestUnknown:
    def test_a_topic_comes_into_being_when_it_is_written_to(self, bootstrap: str, topic: str) -> None:
        started = time.monotonic()
        produce(bootstrap, topic, [{"value": b"v"}])
        assert time.monotonic() - started < 5

    def test_a_topic_that_may_not_be_created(self, broker_process_factory: Callable[..., Any], topic: str) -> None:
        broker = broker_process_factory({"auto.create.topics.enable": "false"})
        error = delivery_error(broker.bootstrap_servers, topic, value=b"v")
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_an_illegal_name(self, bootstrap: str) -> None:
        assert delivery_error(bootstrap, "not legal!", value=b"v").code() == KafkaError.TOPIC_EXCEPTION

    def test_an_unknown_partition(self, bootstrap: str, topic: str) -> None:
        produce(bootstrap, topic, [{"value": b"v"}])
        assert delivery_error(bootstrap, topic, value=b"v", partition=5).code() == KafkaError._UNKNOWN_PARTITION


class TestAdmin:
    def test_create_list_describe_and_delete(self, admin: AdminClient, create: Callable[..., str]) -> None:
        topic = create(3)
        listed = admin.list_topics(timeout=TIMEOUT_S).topics[topic]
        assert sorted(listed.partitions) == [0, 1, 2]
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
        assert len(described.partitions) == 3
        assert not described.is_internal
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics

    @pytest.mark.parametrize(
        ("asked", "code"),
        [
            ({"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
            ({"num_partitions": 1, "replication_factor": 5}, KafkaError.INVALID_REPLICATION_FACTOR),
            ({"num_partitions": 1, "config": {"no.such": "1"}}, KafkaError.INVALID_CONFIG),
            ({"num_partitions": 1, "config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG),
        ],
    )
    def test_what_is_not_created(self, admin: AdminClient, topic: str, asked: dict[str, Any], code: int) -> None:
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([NewTopic(topic, **asked)])[topic].result(TIMEOUT_S)
        assert refused.value.args[0].code() == code
        assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics

    def test_twice_is_once_too_often(self, admin: AdminClient, create: Callable[..., str]) -> None:
        create()
        with pytest.raises(KafkaException) as refused:
            create()
        assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS

    def test_only_validated(self, admin: AdminClient, topic: str) -> None:
        admin.create_topics([NewTopic(topic, 2)], validate_only=True)[topic].result(TIMEOUT_S)
        assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics

    def test_deleting_what_is_not_there(self, admin: AdminClient) -> None:
        with pytest.raises(KafkaException) as refused:
            admin.delete_topics(["never-was"])["never-was"].result(TIMEOUT_S)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_create_partitions(self, bootstrap: str, admin: AdminClient, create: Callable[..., str]) -> None:
        topic = create(1)
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT_S)
        assert len(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == 4
        (sent,) = produce(bootstrap, topic, [{"value": b"v", "partition": 3}])
        assert sent.offset() == 0
        with pytest.raises(KafkaException) as refused:
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
        assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS

    def describe_configs(self, admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
        resource = ConfigResource(kind, name)
        found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        return found

    def test_describe_and_alter_incrementally(self, admin: AdminClient, create: Callable[..., str]) -> None:
        topic = create(retention_ms="1000")
        before = self.describe_configs(admin, ResourceType.TOPIC, topic)
        assert before["retention.ms"].value == "1000"
        assert before["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        assert before["cleanup.policy"].value == "delete"
        assert before["cleanup.policy"].is_default
        changes = [
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("max.message.bytes", "4096", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
        after = self.describe_configs(admin, ResourceType.TOPIC, topic)
        assert after["retention.ms"].value == "604800000"
        assert after["max.message.bytes"].value == "4096"
        assert set(after["cleanup.policy"].value.split(",")) == {"delete", "compact"}

    def test_alter_configs_replaces_all(self, admin: AdminClient, create: Callable[..., str]) -> None:
        topic = create(retention_ms="1000")
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "5000"})
        with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
            admin.alter_configs([resource])[resource].result(TIMEOUT_S)
        after = self.describe_configs(admin, ResourceType.TOPIC, topic)
        assert after["max.message.bytes"].value == "5000"
        assert after["retention.ms"].value == "604800000"

    def test_a_broker_has_settings_too(self, admin: AdminClient) -> None:
        node = str(next(iter(admin.list_topics(timeout=TIMEOUT_S).brokers)))
        found = self.describe_configs(admin, ResourceType.BROKER, node)
        assert found["num.partitions"].value == "1"

    def test_a_bad_setting(self, admin: AdminClient, create: Callable[..., str]) -> None:
        entry = ConfigEntry("max.message.bytes", "-5", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, create(), incremental_configs=[entry])
        with pytest.raises(KafkaException) as refused:
            admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG

    def test_describe_cluster(self, admin: AdminClient, bootstrap: str) -> None:
        cluster = admin.describe_cluster().result(TIMEOUT_S)
        (node,) = cluster.nodes
        assert f"{node.host}:{node.port}" == bootstrap
        assert cluster.controller.id == node.id
        assert cluster.cluster_id

    def test_delete_records_and_list_offsets(self, bootstrap: str, admin: AdminClient, topic: str) -> None:
        base = 1_650_000_000_000
        produce(bootstrap, topic, [{"value": b"v", "timestamp": base + number} for number in range(10)])
        partition = TopicPartition(topic, 0)
        deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
        assert next(iter(deleted.values())).result(TIMEOUT_S).low_watermark == 4
        for spec, offset in [
            (OffsetSpec.earliest(), 4),
            (OffsetSpec.latest(), 10),
            (OffsetSpec.max_timestamp(), 9),
            (OffsetSpec.for_timestamp(base + 6), 6),
        ]:
            found = admin.list_offsets({partition: spec})[partition].result(TIMEOUT_S)
            assert found.offset == offset
