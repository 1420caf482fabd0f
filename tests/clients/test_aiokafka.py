"""aiokafka against a real process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
TIMEOUT_S = 20


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, TIMEOUT_S))


async def produce(bootstrap: str, topic: str, messages: list[dict[str, Any]], **config: Any) -> list[Any]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **config) as producer:
        return [await future for future in [await producer.send(topic, **message) for message in messages]]


async def consume(bootstrap: str, topic: str, count: int, offset: int = 0, **config: Any) -> list[Any]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, **config) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        return [await consumer.getone() for _ in range(count)]


@contextlib.asynccontextmanager
async def admin_client(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    yield admin
    await admin.close()


class TestProduceAndConsume:
    @pytest.mark.parametrize("codec", CODECS)
    def test_every_compression(self, bootstrap: str, topic: str, codec: str | None) -> None:
        async def test() -> None:
            sent = [b"%d " % number + b"x" * 100 for number in range(300)]
            await produce(bootstrap, topic, [{"value": value} for value in sent], compression_type=codec)
            assert [record.value for record in await consume(bootstrap, topic, 300)] == sent

        run(test())

    def test_keys_headers_nulls_and_timestamps(self, bootstrap: str, topic: str) -> None:
        async def test() -> None:
            headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]
            stamp = 1_600_000_000_123
            reports = await produce(
                bootstrap,
                topic,
                [
                    {"key": b"k", "value": b"v", "headers": headers, "timestamp_ms": stamp},
                    {"key": None, "value": b"no key"},
                    {"key": b"tombstone", "value": None},
                    {"key": b"", "value": b""},
                ],
            )
            assert [report.offset for report in reports] == [0, 1, 2, 3]
            assert (reports[0].timestamp, reports[0].timestamp_type) == (stamp, 0)
            full, keyless, tombstone, empty = await consume(bootstrap, topic, 4)
            assert (full.key, full.value, list(full.headers)) == (b"k", b"v", headers)
            assert (full.timestamp, full.timestamp_type) == (stamp, 0)
            assert (keyless.key, keyless.value) == (None, b"no key")
            assert (tombstone.key, tombstone.value) == (b"tombstone", None)
            assert (empty.key, empty.value) == (b"", b"")

        run(test())

    def test_large_messages(self, bootstrap: str, topic: str) -> None:
        async def test() -> None:
            value = bytes(range(256)) * 3600
            await produce(bootstrap, topic, [{"value": value}])
            # Larger than the client allows, and larger than the broker allows.
            for limit in ({}, {"max_request_size": 10_000_000}):
                with pytest.raises(MessageSizeTooLargeError):
                    await produce(bootstrap, topic, [{"value": b"x" * 1_100_000}], **limit)
            assert [record.value for record in await consume(bootstrap, topic, 1)] == [value]

        run(test())

    @pytest.mark.parametrize("acks", [0, 1, "all"])
    def test_acks(self, bootstrap: str, topic: str, acks: int | str) -> None:
        async def test() -> None:
            await produce(bootstrap, topic, [{"value": b"%d" % number} for number in range(100)], acks=acks)
            assert [record.value for record in await consume(bootstrap, topic, 100)] == [b"%d" % n for n in range(100)]

        run(test())

    def test_an_idempotent_producer(self, bootstrap: str, topic: str) -> None:
        async def test() -> None:
            messages = [{"value": b"%d" % number} for number in range(1000)]
            await produce(bootstrap, topic, messages, enable_idempotence=True, max_batch_size=256)
            found = await consume(bootstrap, topic, 1000)
            assert [record.value for record in found] == [b"%d" % n for n in range(1000)]

        run(test())

    def test_a_reader_that_waits_is_woken(self, bootstrap: str, topic: str) -> None:
        async def test() -> None:
            await produce(bootstrap, topic, [{"value": b"first"}])
            waiting = asyncio.ensure_future(consume(bootstrap, topic, 2, fetch_max_wait_ms=10_000))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            await produce(bootstrap, topic, [{"value": b"second"}])
            assert [record.value for record in await asyncio.wait_for(waiting, 5)] == [b"first", b"second"]

        run(test())


class TestOffsets:
    def test_beginning_end_times_and_seek(self, bootstrap: str, topic: str) -> None:
        async def test() -> None:
            base = 1_650_000_000_000
            messages = [{"value": b"%d" % number, "timestamp_ms": base + number * 1000} for number in range(10)]
            await produce(bootstrap, topic, messages)
            partition = TopicPartition(topic, 0)
            async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
                consumer.assign([partition])
                assert await consumer.beginning_offsets([partition]) == {partition: 0}
                assert await consumer.end_offsets([partition]) == {partition: 10}
                found = await consumer.offsets_for_times({partition: base + 1})
                assert (found[partition].offset, found[partition].timestamp) == (1, base + 1000)
                assert (await consumer.offsets_for_times({partition: base + 9001}))[partition] is None
                consumer.seek(partition, 7)
                assert (await consumer.getone()).value == b"7"
                await consumer.seek_to_beginning(partition)
                assert (await consumer.getone()).value == b"0"
                await consumer.seek_to_end(partition)
                assert await consumer.position(partition) == 10

        run(test())

    def test_out_of_range(self, bootstrap: str, topic: str) -> None:
        async def test() -> None:
            await produce(bootstrap, topic, [{"value": b"v"}])
            with pytest.raises(OffsetOutOfRangeError):
                await consume(bootstrap, topic, 1, offset=99, auto_offset_reset="none")

        run(test())


def test_a_topic_that_may_not_be_created(broker_process_factory: Callable[..., Any], topic: str) -> None:
    async def test() -> None:
        broker = broker_process_factory({"auto.create.topics.enable": "false"})
        with pytest.raises((UnknownTopicOrPartitionError, KafkaTimeoutError, KafkaConnectionError)):
            await produce(broker.bootstrap_servers, topic, [{"value": b"v"}], request_timeout_ms=1000)

    run(test())


class TestAdmin:
    def test_topics_and_partitions(self, bootstrap: str, topic: str) -> None:
        async def test() -> None:
            async with admin_client(bootstrap) as admin:
                created = await admin.create_topics([NewTopic(topic, 2, 1)])
                assert [error for _, error, *_ in created.topic_errors] == [0]
                again = await admin.create_topics([NewTopic(topic, 2, 1)])
                assert [error for _, error, *_ in again.topic_errors] == [36]
                assert topic in await admin.list_topics()
                await admin.create_partitions({topic: NewPartitions(5)})
                (described,) = await admin.describe_topics([topic])
                assert len(described["partitions"]) == 5
                deleted = await admin.delete_topics([topic])
                assert [error for _, error in deleted.topic_error_codes] == [0]
                assert topic not in await admin.list_topics()

        run(test())

    def test_configs(self, bootstrap: str, topic: str) -> None:
        async def value(admin: AIOKafkaAdminClient, name: str) -> str:
            (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            ((error, _, _, _, entries),) = response.resources
            assert error == 0
            return next(entry[1] for entry in entries if entry[0] == name)

        async def test() -> None:
            async with admin_client(bootstrap) as admin:
                await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"retention.ms": "1000"})])
                assert await value(admin, "retention.ms") == "1000"
                change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "4096"})
                await admin.alter_configs([change])
                assert await value(admin, "max.message.bytes") == "4096"
                assert await value(admin, "retention.ms") == "604800000"

        run(test())

    def test_the_cluster(self, bootstrap: str) -> None:
        async def test() -> None:
            async with admin_client(bootstrap) as admin:
                cluster = await admin.describe_cluster()
                assert cluster["cluster_id"]
                (node,) = cluster["brokers"]
                assert f"{node['host']}:{node['port']}" == bootstrap

        run(test())

    def test_delete_records(self, bootstrap: str, topic: str) -> None:
        async def test() -> None:
            await produce(bootstrap, topic, [{"value": b"v"} for _ in range(10)])
            partition = TopicPartition(topic, 0)
            async with admin_client(bootstrap) as admin:
                assert await admin.delete_records({partition: RecordsToDelete(4)}) == {partition: 4}

        run(test())
