"""The producers against a real broker: acknowledgements, partitions, failures, metrics."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import get_type_hints

import pytest

import penstock
from penstock.sdk import (
    Admin,
    BadSetting,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    ClientClosed,
    DeliveryFailed,
    NewRecord,
    Producer,
    Refused,
    Unreachable,
    hash_partition,
)
from penstock.sdk.producer_engine import ProducerConfig, ProducerOptions
from penstock.testing import Broker


def create(servers: str, topic: str, partitions: int = 1, **configs: str) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(
            topic, partitions, configs={name.replace("_", "."): value for name, value in configs.items()}
        )


def everything(servers: str, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """(partition, offset, key, value) of all records."""
    found = []
    with BlockingConsumer(servers) as consumer:
        consumer.assign(topic, at="earliest")
        while not consumer.at_end():
            found += [(one.partition, one.offset, one.key, one.value) for one in consumer.poll(timeout_s=0.2)]
    return sorted(found)


async def test_send_is_acknowledged(servers: str, topic: str) -> None:
    create(servers, topic)
    async with penstock.Producer(servers) as producer:
        first = await producer.send(topic, "hello", key="k", headers={"trace": b"1"}, timestamp_ms=1_700_000_000_000)
        second = await producer.send(topic, b"again")
    assert (first.topic, first.partition, first.offset, first.timestamp_ms) == (topic, 0, 0, 1_700_000_000_000)
    assert second.offset == 1
    assert second.timestamp_ms is not None
    assert abs(second.timestamp_ms - time.time() * 1000) < 60_000
    assert 0 < first.latency_ms < 10_000
    assert everything(servers, topic) == [(0, 0, b"k", b"hello"), (0, 1, None, b"again")]


async def test_submit_fills_batches_and_keeps_order(servers: str, topic: str) -> None:
    create(servers, topic)
    async with Producer(servers, metrics_interval_ms=100) as producer:
        futures = [await producer.submit(topic, b"%d" % number) for number in range(3000)]
        deliveries = await asyncio.gather(*futures)
        assert [one.offset for one in deliveries] == list(range(3000))
        many = await producer.send_many(topic, [NewRecord(b"x", key=b"k"), NewRecord(None, key="k")])
        assert [one.offset for one in many] == [3000, 3001]


def test_blocking(servers: str, topic: str) -> None:
    create(servers, topic)
    with Producer.blocking(servers) as producer:
        assert producer.send(topic, "a").offset == 0
        future = producer.submit(topic, "b")
        assert future.result(10).offset == 1
        assert [one.offset for one in producer.send_many(topic, [NewRecord("c"), NewRecord("d")])] == [2, 3]
        producer.submit(topic, "e")
        producer.flush()
    assert [value for *_, value in everything(servers, topic)] == [b"a", b"b", b"c", b"d", b"e"]
    with pytest.raises(ClientClosed, match="closed"):
        producer.send(topic, "late")


def test_leaving_the_block_waits_for_what_was_submitted(servers: str, topic: str) -> None:
    create(servers, topic)
    with BlockingProducer(servers, linger_ms=300) as producer:
        futures = [producer.submit(topic, b"x") for _ in range(10)]
        assert not any(future.done() for future in futures)
    assert [future.result(0).offset for future in futures] == list(range(10))


def test_hash_is_kafkas_and_stable(servers: str, topic: str) -> None:
    create(servers, topic, 5)
    keys = [b"user-%d" % number for number in range(50)]
    with BlockingProducer(servers) as producer:
        deliveries = producer.send_many(topic, [NewRecord(b"v", key=key) for key in keys])
    assert [one.partition for one in deliveries] == [hash_partition(key, 5) for key in keys]
    # Kafka's own numbers: Utils.toPositive(Utils.murmur2(key)) % 5
    assert [hash_partition(key, 5) for key in (b"21", b"foobar", b"a-little-bit-long-string")] == [
        (-973932308 & 0x7FFFFFFF) % 5,
        (-790332482 & 0x7FFFFFFF) % 5,
        (-985981536 & 0x7FFFFFFF) % 5,
    ]


async def test_round_robin_gives_each_partition_its_turn(servers: str, topic: str) -> None:
    create(servers, topic, 3)
    async with Producer(servers, partitioner="round-robin") as producer:
        deliveries = await producer.send_many(topic, [NewRecord(b"v", key=b"same") for _ in range(9)])
    assert [one.partition for one in deliveries] == [0, 1, 2] * 3


async def test_a_partitioner_of_ones_own(servers: str, topic: str) -> None:
    create(servers, topic, 4)
    asked: list[tuple[str, bytes | None, bytes | None, int]] = []

    def by_length(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        asked.append((topic, key, value, partition_count))
        return len(value or b"")

    async with Producer(servers, partitioner=by_length) as producer:
        assert (await producer.send(topic, "abc", key="k")).partition == 3
        assert (await producer.send(topic, b"")).partition == 0
        assert (await producer.send(topic, "abcdefgh", partition=1)).partition == 1
        with pytest.raises(DeliveryFailed, match=r"chose partition 4 of .*, which has 0 to 3"):
            await producer.send(topic, "abcd")
    assert asked[0] == (topic, b"k", b"abc", 4)


async def test_a_topic_is_created_on_the_way(servers: str, topic: str) -> None:
    async with Producer(servers, partitioner="round-robin") as producer:
        assert (await producer.send(topic, b"first")).offset == 0
    async with Admin(servers) as admin:
        assert len((await admin.topic(topic)).partitions) == 1


def test_too_large_a_record_says_what_to_do(servers: str, topic: str) -> None:
    create(servers, topic, max_message_bytes="1000")
    with (
        BlockingProducer(servers) as producer,
        pytest.raises(Refused, match=r"not delivered.*max\.message\.bytes"),
    ):
        producer.send(topic, b"x" * 5000)


def test_no_broker_is_said_in_one_sentence(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    producer = BlockingProducer(address, delivery_timeout_ms=700, linger_ms=0)
    with pytest.raises(Unreachable, match=f"no broker answers at {address}"):
        producer.send("t", b"x")
    producer.close()
    with pytest.raises(Unreachable):
        BlockingAdmin(address, timeout_s=1).topics()
    assert capfd.readouterr() == ("", "")  # librdkafka's own lines go to our logger
    assert ("penstock.sdk", logging.ERROR) in {(one.name, one.levelno) for one in caplog.get_records("call")}


def test_a_bad_setting_is_refused_at_once() -> None:
    with pytest.raises(BadSetting, match="compression"):
        BlockingProducer(compression="brotli")  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=r"no\.such\.setting"):
        BlockingProducer(settings={"no.such.setting": 1})
    with pytest.raises(BadSetting, match="partitioner"):
        BlockingProducer(partitioner="random")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        BlockingProducer(linger=1)  # type: ignore[call-arg]


def test_the_defaults_are_those_promised() -> None:
    named = ProducerConfig().librdkafka()
    assert named["batch.size"] == 16_384
    assert named["linger.ms"] == 10
    assert named["acks"] == "all"
    assert named["enable.idempotence"] is True
    assert "retries" not in named  # librdkafka's: until the delivery timeout
    assert ProducerConfig(acks=1).librdkafka()["enable.idempotence"] is False
    assert get_type_hints(ProducerOptions).keys() == ProducerConfig.__dataclass_fields__.keys()


async def test_metrics(servers: str, topic: str) -> None:
    create(servers, topic)
    async with Producer(servers, compression="gzip", metrics_interval_ms=200) as producer:
        assert producer.metrics().send_rate == 0
        payload = b"the same words again and again " * 20
        deadline = time.monotonic() + 20
        while producer.metrics().compression_ratio == 0:
            await producer.send_many(topic, [NewRecord(payload) for _ in range(200)])
            assert time.monotonic() < deadline
        metrics = producer.metrics()
    assert metrics.records_sent >= 200
    assert metrics.bytes_sent == metrics.records_sent * len(payload)
    assert metrics.send_rate > 0
    assert metrics.byte_rate > metrics.send_rate
    assert metrics.error_rate == metrics.records_failed == 0
    assert 0 < metrics.latency.p50_ms <= metrics.latency.p99_ms <= metrics.latency.max_ms
    assert 0 < metrics.batch_size_bytes < 16_384
    assert metrics.batch_records > 5
    assert metrics.compression_ratio > 5
    assert metrics.broker_rtt_ms > 0


async def test_a_full_buffer_makes_send_wait(servers: str, topic: str) -> None:
    create(servers, topic)
    async with Producer(servers, settings={"queue.buffering.max.messages": 50}) as producer:
        deliveries = await producer.send_many(topic, [NewRecord(b"x" * 100) for _ in range(500)])
    assert [one.offset for one in deliveries] == list(range(500))


async def test_a_cancelled_send_does_not_disturb_the_others(servers: str, topic: str) -> None:
    create(servers, topic)
    async with Producer(servers, linger_ms=100) as producer:
        cancelled = asyncio.create_task(producer.send(topic, b"a"))
        kept = asyncio.create_task(producer.send(topic, b"b"))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        assert (await kept).offset == 1


def test_retries_survive_a_restart_of_the_broker(tmp_path: object) -> None:
    first = Broker(data=str(tmp_path)).start()
    port = first.port
    with BlockingProducer(f"127.0.0.1:{port}") as producer:
        assert producer.send("t", b"before").offset == 0
        first.stop()
        future = producer.submit("t", b"during")
        time.sleep(0.3)
        assert not future.done()
        with Broker(data=str(tmp_path), port=port):
            assert future.result(30).offset == 1
            assert producer.send("t", b"after").offset == 2
