"""Each client writes with each codec, each other one reads it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka.codec import has_snappy

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

VALUES = [b"%d " % number + b"y" * 60 for number in range(50)]
TIMEOUT_S = 20


def write_confluent(bootstrap: str, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def read_confluent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "assigns", "enable.auto.commit": False})
    consumer.assign([ConfluentTopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(count, 0.5)]
    consumer.close()
    return found


def write_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush()
    producer.close()


def read_kafka_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [record.value for records in consumer.poll(timeout_ms=500).values() for record in records]
    consumer.close()
    return found


def write_aiokafka(bootstrap: str, topic: str, codec: str) -> None:
    async def write() -> None:
        name = None if codec == "none" else codec
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=name) as producer:
            for sent in [await producer.send(topic, value) for value in VALUES]:
                await sent

    asyncio.run(asyncio.wait_for(write(), TIMEOUT_S))


def read_aiokafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            partition = AioTopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            return [(await consumer.getone()).value for _ in range(count)]

    return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


def write_kcat(bootstrap: str, topic: str, codec: str) -> None:
    command = ["kcat", "-b", bootstrap, "-P", "-t", topic, "-z", codec]
    subprocess.run(command, input=b"\n".join(VALUES), check=True, timeout=TIMEOUT_S)


def read_kcat(bootstrap: str, topic: str, count: int) -> list[bytes]:
    command = ["kcat", "-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-c", str(count), "-q"]
    return subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S).stdout.splitlines()


Write = Callable[[str, str, str], None]
Read = Callable[[str, str, int], list[bytes]]
WRITERS: list[Write] = [write_confluent, write_kafka_python, write_aiokafka]
READERS: list[Read] = [read_confluent, read_kafka_python, read_aiokafka]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_every_python_client_reads_every_other(bootstrap: str, topic: str, codec: str) -> None:
    assert_all_read_all(WRITERS, READERS, bootstrap, topic, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_reads_every_client_and_is_read_by_all(bootstrap: str, topic: str, kcat: str, codec: str) -> None:
    assert_all_read_all([*WRITERS, write_kcat], [read_kcat], bootstrap, topic, codec)
    assert_all_read_all([write_kcat], READERS, bootstrap, f"{topic}-kcat", codec)


def assert_all_read_all(writers: list[Write], readers: list[Read], bootstrap: str, topic: str, codec: str) -> None:
    """kafka-python has snappy only where python-snappy is installed, and then takes part in it."""
    left_out = () if codec != "snappy" or has_snappy() else (write_kafka_python, read_kafka_python)
    writers = [write for write in writers if write not in left_out]
    for write in writers:
        write(bootstrap, topic, codec)
    expected = VALUES * len(writers)
    for read in readers:
        if read not in left_out:
            assert read(bootstrap, topic, len(expected)) == expected, read.__name__
