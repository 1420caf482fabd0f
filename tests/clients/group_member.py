"""A member of a group in a process of its own, to be killed. Says what it does as lines of JSON.

    python group_member.py LIBRARY BOOTSTRAP GROUP TOPIC [option=value ...]

Handles every record, commits every few of them, and leaves the group on SIGTERM. With
`commit=async` (confluent) it does not wait for the answer, which may take as long as a rebalance.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from types import FrameType
from typing import Any

COMMIT_EVERY = 10
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 300
GENERATION_MAGIC = b"CGMDv2:"


class Stop:
    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at": time.time(), **fields}), flush=True)


def run_confluent(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    stop = Stop()
    is_async = options.pop("commit", "sync") == "async"
    timing = {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # In the newer protocol these are the broker's to say.
            **({} if options.get("group.protocol") == "consumer" else timing),
            **options,
        }
    )

    def generation() -> int:
        return _generation(consumer.consumer_group_metadata())

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        say("assigned", partitions=[partition.partition for partition in partitions], generation=generation())

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        say("revoked", partitions=[partition.partition for partition in partitions])

    def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        say("lost", partitions=[partition.partition for partition in partitions])

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
    handled = 0
    while not stop.is_set:
        message = consumer.poll(0.1)
        if message is None or message.error():
            continue
        say("record", partition=message.partition(), offset=message.offset(), generation=generation())
        handled += 1
        if handled % COMMIT_EVERY == 0:
            try:
                consumer.commit(asynchronous=is_async)
            except KafkaException as error:
                say("commit refused", error=error.args[0].name())
    started = time.time()
    consumer.close()
    say("closed", took=time.time() - started)


def _generation(metadata: Any) -> int:
    """librdkafka's serialised group metadata begins with the generation."""
    raw = bytes(metadata)
    assert raw.startswith(GENERATION_MAGIC), raw[:16]
    at = len(GENERATION_MAGIC)
    return int.from_bytes(raw[at : at + 4], sys.byteorder, signed=True)


def run_kafka_python(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    from kafka.errors import CommitFailedError, KafkaError

    from kafka import KafkaConsumer

    stop = Stop()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=COMMIT_EVERY,
    )
    owned: list[int] = []
    while not stop.is_set:
        batches = consumer.poll(timeout_ms=100)
        generation = consumer._coordinator._generation.generation_id
        now_owned = sorted(partition.partition for partition in consumer.assignment())
        if now_owned != owned:
            owned = now_owned
            say("assigned", partitions=owned, generation=generation)
        for records in batches.values():
            for record in records:
                say("record", partition=record.partition, offset=record.offset, generation=generation)
        if batches:
            try:
                consumer.commit()
            except (CommitFailedError, KafkaError) as error:
                say("commit refused", error=type(error).__name__)
    started = time.time()
    consumer.close(autocommit=False)
    say("closed", took=time.time() - started)


async def run_aiokafka(bootstrap: str, group: str, topic: str, options: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.errors import KafkaError

    stop = Stop()
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        metadata_max_age_ms=5_000,
    )
    await consumer.start()
    owned: list[int] = []
    while not stop.is_set:
        batches = await consumer.getmany(timeout_ms=100, max_records=COMMIT_EVERY)
        generation = consumer._coordinator.generation
        now_owned = sorted(partition.partition for partition in consumer.assignment())
        if now_owned != owned:
            owned = now_owned
            say("assigned", partitions=owned, generation=generation)
        for records in batches.values():
            for record in records:
                say("record", partition=record.partition, offset=record.offset, generation=generation)
        if batches:
            try:
                await consumer.commit()
            except KafkaError as error:
                say("commit refused", error=type(error).__name__)
    started = time.time()
    await consumer.stop()
    say("closed", took=time.time() - started)


def main() -> None:
    library, bootstrap, group, topic, *rest = sys.argv[1:]
    options = dict(option.split("=", 1) for option in rest)
    if library == "confluent":
        run_confluent(bootstrap, group, topic, options)
    elif library == "kafka-python":
        run_kafka_python(bootstrap, group, topic, options)
    else:
        asyncio.run(run_aiokafka(bootstrap, group, topic, options))


if __name__ == "__main__":
    main()
