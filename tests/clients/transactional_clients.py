"""Transactions and what they leave behind, through each of three libraries: one face for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, ClassVar, Protocol, TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka.errors

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as KafkaPartition

R = TypeVar("R")
PATIENCE_S = 45.0
QUIET = {"log_level": 0}


class Transactions(Protocol):
    """A producer with a transactional id. All rows and offsets are of partition 0."""

    refused: ClassVar[tuple[type[Exception], ...]]
    """What a producer raises that may not go on."""

    def __init__(self, servers: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None: ...

    def init(self) -> None: ...

    def begin(self) -> None: ...

    def send(self, topic: str, *values: bytes) -> None:
        """Until the broker has them."""
        ...

    def send_offset(self, group: str, topic: str, offset: int, metadata: Any = None) -> None:
        """`metadata`: of a member, as its library has it; without, the group is named alone."""
        ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Confluent:
    refused = (confluent_kafka.KafkaException,)

    def __init__(self, servers: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._servers = servers
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                **QUIET,
            }
        )

    def init(self) -> None:
        self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes) -> None:
        failures: list[confluent_kafka.KafkaError] = []

        def told(error: confluent_kafka.KafkaError | None, message: object) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            self._producer.produce(topic, value, partition=0, on_delivery=told)
        assert self._producer.flush(PATIENCE_S) == 0
        if failures:
            raise confluent_kafka.KafkaException(failures[0])

    def send_offset(self, group: str, topic: str, offset: int, metadata: Any = None) -> None:
        place = confluent_kafka.TopicPartition(topic, 0, offset)
        if metadata is not None:
            self._producer.send_offsets_to_transaction([place], metadata, PATIENCE_S)
            return
        member = confluent_kafka.Consumer({"bootstrap.servers": self._servers, "group.id": group, **QUIET})
        try:
            self._producer.send_offsets_to_transaction([place], member.consumer_group_metadata(), PATIENCE_S)
        finally:
            member.close()

    def commit(self) -> None:
        _while_retriable(lambda: self._producer.commit_transaction(PATIENCE_S))

    def abort(self) -> None:
        _while_retriable(lambda: self._producer.abort_transaction(PATIENCE_S))

    def close(self) -> None:
        del self._producer


def _while_retriable(call: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class Aiokafka:
    refused = (aiokafka.errors.KafkaError,)

    def __init__(self, servers: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> aiokafka.AIOKafkaProducer:
            return aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )

        self._producer = self._run(make())

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def init(self) -> None:
        self._run(self._producer.start())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, *values: bytes) -> None:
        async def send() -> None:
            for future in [await self._producer.send(topic, value, partition=0) for value in values]:
                await future

        self._run(send())

    def send_offset(self, group: str, topic: str, offset: int, metadata: Any = None) -> None:
        assert metadata is None, "it can name the group alone"
        place = aiokafka.TopicPartition(topic, 0)
        self._run(self._producer.send_offsets_to_transaction({place: offset}, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        with contextlib.suppress(aiokafka.errors.KafkaError, TimeoutError):
            asyncio.run_coroutine_threadsafe(self._producer.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class KafkaPython:
    refused = (kafka.errors.KafkaError,)

    def __init__(self, servers: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            acks="all",
        )

    def init(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes) -> None:
        for future in [self._producer.send(topic, value, partition=0) for value in values]:
            future.get(PATIENCE_S)

    def send_offset(self, group: str, topic: str, offset: int, metadata: Any = None) -> None:
        offsets = {KafkaPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, metadata or group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


LIBRARIES: dict[str, type[Transactions]] = {
    "confluent": Confluent,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}


@contextlib.contextmanager
def producing(library: str, servers: str, transactional_id: str, **options: Any) -> Iterator[Transactions]:
    """It has begun: the producer before it with this id is fenced."""
    producer = LIBRARIES[library](servers, transactional_id, **options)
    try:
        producer.init()
        yield producer
    finally:
        producer.close()


# -- what is read -----------------------------------------------------------------------


def read(library: str, servers: str, topic: str, *, committed: bool, offset: int = 0) -> list[bytes]:
    """All there is at the moment, from `offset` on."""
    isolation = "read_committed" if committed else "read_uncommitted"
    return {"confluent": _read_confluent, "aiokafka": _read_aiokafka, "kafka-python": _read_kafka_python}[library](
        servers, topic, isolation, offset
    )


def _read_confluent(servers: str, topic: str, isolation: str, offset: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reading",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            **QUIET,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return values
    finally:
        consumer.close()
    raise AssertionError(f"no end of {topic} within {PATIENCE_S} s")


def _read_aiokafka(servers: str, topic: str, isolation: str, offset: int) -> list[bytes]:
    async def reading() -> list[bytes]:
        values: list[bytes] = []
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=isolation) as consumer:
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, offset)
            end = (await consumer.end_offsets([place]))[place]
            while await consumer.position(place) < end:
                for found in (await consumer.getmany(place, timeout_ms=200)).values():
                    values += [record.value for record in found]
        return values

    return asyncio.run(asyncio.wait_for(reading(), PATIENCE_S))


def _read_kafka_python(servers: str, topic: str, isolation: str, offset: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level=isolation, enable_auto_commit=False)
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        place = KafkaPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, offset)
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            assert time.monotonic() < deadline
            for found in consumer.poll(200).values():
                values += [record.value for record in found]
    finally:
        consumer.close()
    return values


def committed_offset(servers: str, group: str, topic: str) -> int:
    """As it counts when no transaction is open any more; 0: none."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": group, "isolation.level": "read_committed", **QUIET}
    )
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=PATIENCE_S)
        assert found.error is None, found.error
        return max(int(found.offset), 0)
    finally:
        consumer.close()
