"""The consumers with partitions assigned by hand: reading, moving, ends, metrics. Groups: test_client_groups.py."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import get_type_hints

import pytest

import penstock
from penstock.sdk import (
    BadSetting,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    ClientClosed,
    Consumer,
    NewRecord,
    TopicPartition,
    UnknownTopic,
)
from penstock.sdk.consumer_config import ConsumerConfig, ConsumerOptions

START_MS = 1_700_000_000_000


def fill(servers: str, topic: str, partitions: int = 1, records: int = 10) -> None:
    """Record n has value n, timestamp START_MS + n seconds, in partition n % partitions."""
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, partitions)
    with BlockingProducer(servers) as producer:
        for number in range(records):
            producer.submit(
                topic,
                str(number),
                key=f"k{number}",
                headers=[("n", str(number))],
                partition=number % partitions,
                timestamp_ms=START_MS + number * 1000,
            )


async def take(consumer: Consumer, count: int) -> list[str]:
    values: list[str] = []
    async with asyncio.timeout(20):
        async for record in consumer:
            values.append(record.text())
            if len(values) == count:
                break
    return values


async def test_iteration_hands_out_whole_records(servers: str, topic: str) -> None:
    fill(servers, topic)
    async with penstock.Consumer(servers) as consumer:
        await consumer.assign(topic, at="earliest")
        record = await anext(consumer)
        assert (record.topic, record.partition, record.offset) == (topic, 0, 0)
        assert (record.key, record.value, record.headers) == (b"k0", b"0", (("n", b"0"),))
        assert record.timestamp_ms == START_MS
        assert record.time == datetime.fromtimestamp(START_MS / 1000, UTC)
        assert not record.is_append_time
        assert record.header("n") == b"0"
        assert record.json() == 0
        assert consumer.position(TopicPartition(topic, 0)) == 1
        assert await take(consumer, 9) == [str(number) for number in range(1, 10)]


async def test_positions(servers: str, topic: str) -> None:
    fill(servers, topic, partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Consumer(servers) as consumer:
        await consumer.assign(zero, at=3)
        assert await take(consumer, 2) == ["6", "8"]
        await consumer.assign(at={zero: 4, one: "latest"})
        assert await take(consumer, 1) == ["8"]
        await consumer.assign(zero, at=datetime.fromtimestamp(START_MS / 1000 + 3.5, UTC))
        assert await take(consumer, 3) == ["4", "6", "8"]
        with pytest.raises(BadSetting, match="is not a position"):
            await consumer.assign(zero, at="yesterday")  # type: ignore[arg-type]
        with pytest.raises(UnknownTopic):
            await consumer.assign(f"{topic}-missing")
        assert await consumer.bounds(one) == (0, 5)
        assert await consumer.offsets_at({one: datetime.now(UTC)}) == {one: None}


async def test_seek_replays_by_offset_and_by_time(servers: str, topic: str) -> None:
    fill(servers, topic)
    async with Consumer(servers) as consumer:
        await consumer.assign(topic, at="earliest")
        assert await take(consumer, 4) == ["0", "1", "2", "3"]
        await consumer.seek(2)
        assert await take(consumer, 2) == ["2", "3"]
        await consumer.seek(datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(seconds=7))
        assert await take(consumer, 3) == ["7", "8", "9"]
        await consumer.seek("earliest")
        assert await take(consumer, 1) == ["0"]
        await consumer.seek("latest")
        assert await consumer.poll(timeout_s=0.3) == []


async def test_poll_and_the_end(servers: str, topic: str) -> None:
    fill(servers, topic)
    async with Consumer(servers) as consumer:
        await consumer.assign(topic, at="earliest")
        assert not await consumer.at_end()
        assert [record.text() for record in await consumer.poll(max_records=3, timeout_s=20)] == ["0", "1", "2"]
        rest: list[str] = []
        async with asyncio.timeout(20):
            while not await consumer.at_end():
                rest += [record.text() for record in await consumer.poll(timeout_s=0.2)]
        assert rest == [str(number) for number in range(3, 10)]
        with BlockingProducer(servers) as producer:
            producer.send(topic, "more")
        assert [record.text() for record in await consumer.poll(timeout_s=20)] == ["more"]


async def test_a_cancelled_wait_loses_nothing(servers: str, topic: str) -> None:
    fill(servers, topic, records=0)
    got: list[str] = []
    async with Consumer(servers) as consumer:
        await consumer.assign(topic, at="earliest")
        with BlockingProducer(servers, linger_ms=0) as producer:
            for number in range(20):
                waiting = asyncio.create_task(anext(consumer))
                await asyncio.sleep(0.01)
                sent = producer.submit(topic, str(number))
                await asyncio.sleep(0.001 * number)  # cancelled before, while and after the record arrives
                if waiting.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await waiting
                else:
                    got.append((await waiting).text())
                await asyncio.wrap_future(sent)
        got += await take(consumer, 20 - len(got))
    assert got == [str(number) for number in range(20)]


async def test_pause_and_resume(servers: str, topic: str) -> None:
    fill(servers, topic, partitions=2, records=20)
    zero = TopicPartition(topic, 0)
    async with Consumer(servers) as consumer:
        await consumer.assign(topic, at="earliest")
        first = await anext(consumer)
        await consumer.pause(zero)
        others: list[int] = []
        for _ in range(5):
            others += [record.partition for record in await consumer.poll(timeout_s=0.2)]
        assert set(others) <= {1}
        await consumer.resume(zero)
        rest: list[str] = []
        async with asyncio.timeout(20):
            while len(rest) < 20 - 1 - len(others):
                rest += [record.text() for record in await consumer.poll(timeout_s=0.2) if record.partition == 0]
        expected = [str(number) for number in range(0, 20, 2)]
        assert rest == (expected[1:] if first.partition == 0 else expected)


def test_blocking(servers: str, topic: str) -> None:
    fill(servers, topic)
    with Consumer.blocking(servers) as consumer:
        consumer.assign(topic, at="earliest")
        values = []
        for record in consumer:
            values.append(record.text())
            if len(values) == 10:
                break
        assert values == [str(number) for number in range(10)]
    with pytest.raises(ClientClosed):
        consumer.poll()
    consumer.close()


async def test_after_close(servers: str, topic: str) -> None:
    consumer = Consumer(servers)
    await consumer.close()
    await consumer.close()
    with pytest.raises(ClientClosed):
        await consumer.assign(topic)


async def test_without_a_group(servers: str, topic: str) -> None:
    fill(servers, topic)
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        with pytest.raises(BadSetting, match="needs a group"):
            await consumer.subscribe(topic)
        await consumer.assign(topic)
        assert await take(consumer, 1) == ["0"]
        with pytest.raises(BadSetting, match="needs a group"):
            await consumer.commit()


async def test_metrics(servers: str, topic: str) -> None:
    fill(servers, topic, records=2000)
    async with Consumer(servers, metrics_interval_ms=200) as consumer:
        await consumer.assign(topic, at="earliest")
        await take(consumer, 500)
        partition = TopicPartition(topic, 0)
        deadline = time.monotonic() + 20
        while not consumer.metrics().lag:
            await consumer.poll(max_records=1, timeout_s=0.2)
            assert time.monotonic() < deadline
        metrics = consumer.metrics()
        position = consumer.position(partition)
        assert position is not None
        assert metrics.lag[partition] == metrics.total_lag == 2000 - position
        while consumer.metrics().fetch_rate == 0 and time.monotonic() < deadline:
            await consumer.seek("earliest")
            await consumer.poll(timeout_s=0.3)
        metrics = consumer.metrics()
    assert metrics.records_consumed > 500
    assert metrics.bytes_consumed > 0
    assert metrics.fetch_rate > 0
    assert metrics.fetch_requests_rate > 0
    assert metrics.fetch_latency_ms > 0
    assert metrics.commits == metrics.rebalances == 0


def test_strategies_and_what_they_become() -> None:
    def classic(strategy: object) -> object:
        return ConsumerConfig(group="g", strategy=strategy).librdkafka()["partition.assignment.strategy"]  # type: ignore[arg-type]

    assert [classic(name) for name in ("range", "round-robin", "sticky", "cooperative-sticky")] == [
        "range",
        "roundrobin",
        "cooperative-sticky",
        "cooperative-sticky",
    ]
    new = ConsumerConfig(group="g", strategy="range", group_protocol="consumer").librdkafka()
    assert (new["group.protocol"], new["group.remote.assignor"]) == ("consumer", "range")
    assert "session.timeout.ms" not in new
    assert ConsumerConfig(group="g", group_protocol="consumer").librdkafka()["group.remote.assignor"] == "uniform"
    assert ConsumerConfig().librdkafka()["enable.auto.commit"] is False
    assert get_type_hints(ConsumerOptions).keys() == ConsumerConfig.__dataclass_fields__.keys()
    with pytest.raises(BadSetting, match="strategy must be one of"):
        BlockingConsumer(group="g", strategy="best")  # type: ignore[arg-type]


async def test_many_records_are_iterated_in_order(servers: str, topic: str) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, 1)
    with BlockingProducer(servers) as producer:
        producer.send_many(topic, [NewRecord(str(number)) for number in range(20_000)])
    async with Consumer(servers) as consumer:
        await consumer.assign(topic, at="earliest")
        assert await take(consumer, 20_000) == [str(number) for number in range(20_000)]
