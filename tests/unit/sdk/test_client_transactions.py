"""Transactions of both producers against a real broker: commits, aborts, offsets of a group, fenced producers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from penstock.sdk import (
    BadSetting,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    ClientClosed,
    ClientError,
    Consumer,
    Delivery,
    DeliveryFailed,
    Producer,
    ProducerFailed,
    ProducerFenced,
    TopicPartition,
    TransactionAborted,
)
from penstock.testing import Broker


class Mishap(Exception):
    pass


@pytest.fixture(scope="module")
def penstock_broker() -> Iterator[Broker]:
    """One that does not wait for more members before a group's first assignment."""
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture
def made(servers: str, topic: str) -> str:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, 1)
    return topic


def values(servers: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    found: list[bytes | None] = []
    with BlockingConsumer(servers, isolation=isolation) as consumer:  # type: ignore[arg-type]
        consumer.assign(topic, at="earliest")
        while not consumer.at_end():
            found += [one.value for one in consumer.poll(timeout_s=0.2)]
    return found


async def test_a_block_commits(servers: str, made: str) -> None:
    async with Producer(servers, transactional_id=f"id-{made}") as producer:
        async with producer.transaction():
            await producer.send(made, "one")
            await producer.submit(made, "two")
            assert values(servers, made) == []
            assert values(servers, made, "read_uncommitted")[0] == b"one"
        assert values(servers, made) == [b"one", b"two"]
        async with producer.transaction():
            await producer.submit(made, "three")
        assert values(servers, made) == [b"one", b"two", b"three"]


async def test_an_exception_aborts(servers: str, made: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Producer(servers, transactional_id=f"id-{made}") as producer:

        async def fail() -> None:
            async with producer.transaction():
                await producer.send(made, "lost")
                for number in range(3):
                    await producer.submit(made, f"never sent {number}")
                raise Mishap

        with pytest.raises(Mishap):
            await fail()
        async with producer.transaction():
            await producer.send(made, "kept")
    assert values(servers, made) == [b"kept"]
    assert b"lost" in values(servers, made, "read_uncommitted")
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_a_cancelled_block_aborts(servers: str, made: str) -> None:
    async with Producer(servers, transactional_id=f"id-{made}") as producer:

        async def work() -> None:
            async with producer.transaction():
                await producer.send(made, "lost")
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with producer.transaction():
            await producer.send(made, "kept")
    assert values(servers, made) == [b"kept"]


def test_the_blocking_twin(servers: str, made: str) -> None:
    def fail() -> None:
        with producer.transaction():
            producer.send(made, "lost")
            raise Mishap

    with Producer.blocking(servers, transactional_id=f"id-{made}") as producer:
        with producer.transaction():
            producer.submit(made, "one")
        with pytest.raises(Mishap):
            fail()
    assert values(servers, made) == [b"one"]


async def test_offsets_are_committed_with_the_records(servers: str, made: str, group: str) -> None:
    output = f"{made}-out"
    with BlockingAdmin(servers) as admin, BlockingProducer(servers) as source:
        admin.create_topic(output, 1)
        source.send_many(made, [])
        for number in range(4):
            source.send(made, str(number))
    partition = TopicPartition(made, 0)
    async with (
        Consumer(servers, group=group, auto_commit=False, auto_offset_reset="earliest") as consumer,
        Producer(servers, transactional_id=f"id-{made}") as producer,
    ):
        await consumer.subscribe(made)
        seen: list[bytes | None] = []

        async def fail() -> None:
            async with producer.transaction() as transaction:
                seen.extend([one.value for one in await consumer.poll(2, timeout_s=20)])
                await producer.submit(output, b"lost")
                await transaction.send_offsets(consumer)
                raise Mishap

        with pytest.raises(Mishap):
            await fail()
        assert await consumer.committed(partition) == {partition: None}
        await consumer.seek("earliest")
        while len(seen) < 6:
            async with producer.transaction() as transaction:
                for record in await consumer.poll(timeout_s=5):
                    seen.append(record.value)
                    await producer.submit(output, (record.value or b"") + b"!")
                await transaction.send_offsets(consumer)
        assert await consumer.committed(partition) == {partition: 4}
        async with producer.transaction() as transaction:
            await transaction.send_offsets(consumer, {partition: 3})
        assert await consumer.committed(partition) == {partition: 3}
    assert seen == [b"0", b"1", b"0", b"1", b"2", b"3"]
    assert values(servers, output) == [b"0!", b"1!", b"2!", b"3!"]


def test_offsets_of_a_blocking_consumer(servers: str, made: str, group: str) -> None:
    with BlockingProducer(servers) as source:
        source.send(made, "x")
    with (
        BlockingConsumer(servers, group=group, auto_commit=False, auto_offset_reset="earliest") as consumer,
        BlockingProducer(servers, transactional_id=f"id-{made}") as producer,
    ):
        consumer.assign(made, at="earliest")
        with producer.transaction() as transaction:
            assert len(consumer.poll(timeout_s=20)) == 1
            transaction.send_offsets(consumer)
        assert list(consumer.committed().values()) == [1]


def test_who_may_send_offsets(servers: str, made: str, group: str) -> None:
    with BlockingProducer(servers, transactional_id=f"id-{made}") as producer:
        for consumer, sentence in (
            (BlockingConsumer(servers), "needs a consumer with a group"),
            (BlockingConsumer(servers, group=group), "needs a consumer with auto_commit=False"),
        ):
            with consumer, pytest.raises(BadSetting, match=sentence), producer.transaction() as transaction:
                transaction.send_offsets(consumer)


def test_a_newer_producer_fences(servers: str, made: str) -> None:
    with (
        BlockingProducer(servers, transactional_id=f"id-{made}") as first,
        BlockingProducer(servers, transactional_id=f"id-{made}") as second,
    ):
        with pytest.raises(ProducerFenced, match="another producer with transactional id"), first.transaction():
            first.submit(made, "zombie")
        with pytest.raises(ProducerFenced):
            first.transaction().__enter__()
        with second.transaction():
            second.send(made, "alive")
    assert values(servers, made) == [b"alive"]


def test_a_fatal_error_is_told_rather_than_what_it_caused(servers: str, made: str) -> None:
    first = BlockingProducer(servers, transactional_id=f"id-{made}")

    def fail() -> None:
        with first.transaction():
            first.send(made, "a")
            with BlockingProducer(servers, transactional_id=f"id-{made}"):
                pass
            raise Mishap

    with pytest.raises(ProducerFenced) as fenced:
        fail()
    assert isinstance(fenced.value.__cause__, Mishap)
    first.close()


def test_a_record_that_is_not_delivered_aborts(servers: str, topic: str) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, 1, configs={"max.message.bytes": "1000"})

    def fail() -> None:
        with producer.transaction():
            producer.submit(topic, b"fits")
            producer.submit(topic, bytes(5000))

    with BlockingProducer(servers, transactional_id=f"id-{topic}") as producer:
        with pytest.raises(TransactionAborted, match="is not committed; the transaction is aborted"):
            fail()
        for _ in range(3):  # librdkafka needs another epoch first, and finds that out in the next transaction
            with suppress(TransactionAborted), producer.transaction():
                producer.submit(topic, b"kept")
    assert set(values(servers, topic)) == {b"kept"}


def test_a_transaction_that_is_open_for_too_long(servers: str, made: str) -> None:
    def dawdle() -> None:
        with producer.transaction():
            producer.send(made, "late")
            time.sleep(2.5)

    producer = BlockingProducer(servers, transactional_id=f"id-{made}", transaction_timeout_ms=1000)
    with producer, pytest.raises((TransactionAborted, ProducerFailed)):
        dawdle()
    assert values(servers, made) == []


def test_outside_of_a_transaction(servers: str, made: str) -> None:
    with BlockingProducer(servers) as plain, pytest.raises(BadSetting, match="give transactional_id"):
        plain.transaction()
    with BlockingProducer(servers, transactional_id=f"id-{made}") as producer:
        with pytest.raises(BadSetting, match="no transaction is open"):
            producer.send(made, "x")
        with producer.transaction() as transaction, pytest.raises(BadSetting, match="already has an open transaction"):
            producer.transaction().__enter__()
        with pytest.raises(BadSetting, match="no transaction is open"):
            transaction.send_offsets(_ConsumerOfOne())  # type: ignore[arg-type]
    with pytest.raises(ClientClosed):
        producer.transaction()


class _ConsumerOfOne:
    def transactional_offsets(self, what: object) -> tuple[dict[TopicPartition, int], object]:
        return {TopicPartition("t", 0): 1}, None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"transactional_id": ""}, "transactional_id must not be empty"),
        ({"transactional_id": "a", "acks": 1}, 'transactions need acks="all"'),
        ({"transactional_id": "a", "idempotent": False}, 'transactions need acks="all"'),
    ],
)
def test_options(servers: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        BlockingProducer(servers, **options)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="isolation must be"):
        BlockingConsumer(servers, isolation="serializable")  # type: ignore[arg-type]


def test_a_time_out_beyond_the_brokers_limit(servers: str, made: str) -> None:
    producer = BlockingProducer(servers, transactional_id=f"id-{made}", transaction_timeout_ms=3_600_000)
    with pytest.raises(ClientError, match=r"transaction\.max\.timeout\.ms"):
        producer.__enter__()
    producer.close()


async def test_records_of_an_abort_are_not_delivered(servers: str, made: str) -> None:
    async with Producer(servers, transactional_id=f"id-{made}", linger_ms=5000) as producer:
        futures: list[asyncio.Future[Delivery]] = []

        async def fail() -> None:
            async with producer.transaction():
                futures.append(await producer.submit(made, "x"))
                raise Mishap

        with pytest.raises(Mishap):
            await fail()
        with pytest.raises(DeliveryFailed, match="its transaction was aborted"):
            await futures[0]
