"""Consume, transform, produce in a process of its own, to be killed: rows of one topic to another, in transactions.

    python copying_member.py LIBRARY BOOTSTRAP GROUP SOURCE SINK TRANSACTIONAL_ID [PARTITION ...]

A row goes to the partition it came from. With partitions it reads these; without, what the group gives it. Says
`committed` or `aborted` on a line for each transaction, and ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from types import FrameType

PATIENCE_S = 30.0
ROWS_PER_TRANSACTION = 20
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 300
TRANSACTION_TIMEOUT_MS = 10_000


class Stop:
    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True


def copy_with_confluent(bootstrap: str, group: str, source: str, sink: str, name: str) -> None:
    from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

    stop = Stop()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    rows: list[Message] = []
    # Rows in hand when partitions are taken away belong to somebody else.
    consumer.subscribe([source], on_revoke=lambda _, partitions: rows.clear(), on_lost=lambda _, lost: rows.clear())
    while not stop.is_set:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            rows.append(message)
            if len(rows) < ROWS_PER_TRANSACTION:
                continue
        if not rows:
            continue
        producer.begin_transaction()
        for row in rows:
            producer.produce(sink, row.value(), partition=row.partition())
        ends = {row.partition(): row.offset() + 1 for row in rows}
        places = [TopicPartition(source, partition, offset) for partition, offset in ends.items()]
        try:
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), PATIENCE_S)
            producer.commit_transaction(PATIENCE_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(PATIENCE_S)
            for place in consumer.committed(consumer.assignment(), PATIENCE_S):
                consumer.seek(TopicPartition(source, place.partition, max(place.offset, 0)))
            print("aborted", flush=True)
        else:
            print("committed", flush=True)
        rows.clear()
    consumer.close()


def copy_with_kafka_python(bootstrap: str, group: str, source: str, sink: str, name: str) -> None:
    from kafka.errors import KafkaError, ProducerFencedError

    from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata

    stop = Stop()
    consumer = KafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=ROWS_PER_TRANSACTION,
    )
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=name,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    producer.init_transactions()
    while not stop.is_set:
        batches = consumer.poll(timeout_ms=100)
        if not batches:
            continue
        producer.begin_transaction()
        try:
            for place, rows in batches.items():
                for row in rows:
                    producer.send(sink, row.value, partition=place.partition)
            offsets = {place: OffsetAndMetadata(rows[-1].offset + 1, "", -1) for place, rows in batches.items()}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.commit_transaction()
        except ProducerFencedError:
            raise
        except KafkaError:
            producer.abort_transaction()
            for place in consumer.assignment():
                consumer.seek(place, consumer.committed(place) or 0)
            print("aborted", flush=True)
        else:
            print("committed", flush=True)
    consumer.close(autocommit=False)
    producer.close()


async def copy_with_aiokafka(
    bootstrap: str, group: str, source: str, sink: str, name: str, partitions: list[int]
) -> None:
    """It names only the group in a transaction, so a member that lost its partitions could not be refused."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    assert partitions, "aiokafka needs partitions of its own"
    stop = Stop()
    # The producer first: it ends what its predecessor left open, and the offsets with it.
    async with (
        AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        ) as producer,
        AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer,
    ):
        consumer.assign([TopicPartition(source, partition) for partition in partitions])
        while not stop.is_set:
            batches = await consumer.getmany(timeout_ms=100, max_records=ROWS_PER_TRANSACTION)
            if not batches:
                continue
            async with producer.transaction():
                for place, rows in batches.items():
                    for row in rows:
                        await producer.send(sink, row.value, partition=place.partition)
                offsets = {place: rows[-1].offset + 1 for place, rows in batches.items()}
                await producer.send_offsets_to_transaction(offsets, group)
            print("committed", flush=True)


def main() -> None:
    library, bootstrap, group, source, sink, name, *partitions = sys.argv[1:]
    if library == "confluent":
        copy_with_confluent(bootstrap, group, source, sink, name)
    elif library == "kafka-python":
        copy_with_kafka_python(bootstrap, group, source, sink, name)
    else:
        asyncio.run(copy_with_aiokafka(bootstrap, group, source, sink, name, list(map(int, partitions))))


if __name__ == "__main__":
    main()
