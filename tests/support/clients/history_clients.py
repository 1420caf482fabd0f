"""librdkafka's producers and consumers, writing down what they are told (`history`).

Idempotent producers at a steady rate, numbers counting up by partition; consumers that read partitions from their
start without a group. Settings are librdkafka's own but for idempotence, patience, and `auto.offset.reset=error`: a
consumer that finds its position outside of the log must say so instead of starting anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from support.clients.history import UNKNOWN_OFFSET, Acknowledged, Failed, History, Read, Reset, Sent, Stored

PATIENCE_S = 120.0
# A broker that is silent, but whose connections are open, is noticed by time alone: 60 s unless told otherwise.
IMPATIENT = {"socket.timeout.ms": 8000}
TICK_S = 0.01


def parse(value: object) -> tuple[str, int]:
    """Producer and number of a record that a `SteadyProducer` made."""
    assert isinstance(value, bytes), value
    producer, _, number = value.split(b":")[:3]
    return producer.decode(), int(number)


class _Client(threading.Thread):
    """A thread that runs until told to stop; what it died of is raised where it is joined."""

    def __init__(self, name: str, history: History) -> None:
        super().__init__(daemon=True, name=name)
        self.history = history
        self.stopping = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._failure = error

    def work(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self, timeout_s: float = PATIENCE_S + 10) -> None:
        self.stopping.set()
        self.join(timeout_s)
        self.check()
        assert not self.is_alive(), f"{self.name} did not end"

    def on_error(self, error: KafkaError) -> None:
        self.history.client_errors.append(f"{error.name()}, {self.name}: {error.str()}")
        if error.fatal():
            self._failure = AssertionError(f"{self.name}: fatal: {error}")


class SteadyProducer(_Client):
    """`rate` records a second, round robin over the partitions, whether or not earlier ones are answered."""

    def __init__(
        self,
        name: str,
        history: History,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        *,
        rate: float = 200.0,
        value_bytes: int = 200,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, history)
        self._topic, self._partitions = topic, partitions
        self._rate, self._padding = rate, b"." * value_bytes
        self.acknowledged_count = 0
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "message.timeout.ms": int(PATIENCE_S * 1000),
            "log_level": 0,
            "error_cb": self.on_error,
            **(settings or {}),
        }

    def work(self) -> None:
        producer = Producer(self._settings)
        numbers = [0] * self._partitions
        begin, count = time.monotonic(), 0
        while not self.stopping.is_set():
            due = int((time.monotonic() - begin) * self._rate)
            while count < due:
                self._send(producer, count % self._partitions, numbers)
                count += 1
            producer.poll(TICK_S)
        assert producer.flush(PATIENCE_S) == 0, f"{self.name}: not all of it was answered"

    def _send(self, producer: Producer, partition: int, numbers: list[int]) -> None:
        number = numbers[partition]
        numbers[partition] += 1
        value = b"%s:%d:%d:" % (self.name.encode(), partition, number) + self._padding
        while True:
            now = time.monotonic()
            try:
                producer.produce(self._topic, value, partition=partition, on_delivery=self._on_delivery)
            except BufferError:  # a long pause: wait for room, as an application would
                producer.poll(TICK_S)
                if self.stopping.is_set():
                    return
            else:
                self.history.sent.append(Sent(now, self.name, partition, number))
                return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        now = time.monotonic()
        partition = message.partition()
        assert partition is not None
        producer, number = parse(message.value())
        if error is not None:
            self.history.failed.append(Failed(now, producer, partition, number, str(error)))
            return
        offset = message.offset()
        if offset is None or offset < 0:
            offset = UNKNOWN_OFFSET
        self.history.acknowledged.append(Acknowledged(now, producer, partition, number, offset))
        self.acknowledged_count += 1

    def await_progress(self, records: int = 50, timeout_s: float = 60.0) -> None:
        """Until so many more are acknowledged."""
        goal, deadline = self.acknowledged_count + records, time.monotonic() + timeout_s
        while self.acknowledged_count < goal:
            self.check()
            last = self.history.client_errors[-3:]
            assert time.monotonic() < deadline, f"{self.name}: no acknowledgements for {timeout_s:.0f} s; {last}"
            time.sleep(0.01)


class Reader(_Client):
    """All partitions from offset 0 on, until told to stop."""

    def __init__(
        self,
        name: str,
        history: History,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        *,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, history)
        self._topic, self._partitions = topic, partitions
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
            "error_cb": self.on_error,
            **(settings or {}),
        }

    def work(self) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.assign([TopicPartition(self._topic, partition, 0) for partition in range(self._partitions)])
            while not self.stopping.is_set():
                for message in consumer.consume(500, timeout=0.05):
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Message) -> None:
        now, partition, error = time.monotonic(), message.partition(), message.error()
        if error is None:
            offset = message.offset()
            assert partition is not None
            assert offset is not None
            self.history.read.append(Read(now, self.name, partition, offset, *parse(message.value())))
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self.history.resets.append(Reset(now, self.name, -1 if partition is None else partition, str(error)))
        else:
            self.history.client_errors.append(f"{error.name()}, {self.name}: {error.str()}")


class Traffic:
    """Producers and a reader on one topic, running in the block; stopped and all answered when it ends."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        *,
        producers: int = 2,
        rate: float = 200.0,
        value_bytes: int = 200,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.history = History()
        self.producers = [
            SteadyProducer(
                f"producer-{number}",
                self.history,
                bootstrap_servers,
                topic,
                partitions,
                rate=rate / producers,
                value_bytes=value_bytes,
                settings=settings,
            )
            for number in range(producers)
        ]
        self.reader = Reader("reader", self.history, bootstrap_servers, topic, partitions, settings=settings)
        self.began_s = self.ended_s = time.monotonic()

    @property
    def _clients(self) -> list[_Client]:
        return [*self.producers, self.reader]

    def await_progress(self, records: int = 50, timeout_s: float = 60.0) -> None:
        for producer in self.producers:
            producer.await_progress(records, timeout_s)

    def pause(self, seconds: float) -> None:
        """Let it run."""
        time.sleep(seconds)
        for client in self._clients:
            client.check()

    def __enter__(self) -> Traffic:
        self.began_s = time.monotonic()
        for client in self._clients:
            client.start()
        try:
            self.await_progress(1)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_s = time.monotonic()
        if error is not None:
            self._end()
            return
        for producer in self.producers:
            producer.stop()
        self.reader.stop()

    def _end(self) -> None:
        """A test that failed: do not wait for answers."""
        for client in self._clients:
            client.stopping.set()


@contextmanager
def _reading(bootstrap_servers: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "read-back",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def read_back(bootstrap_servers: str, topic: str, partitions: int, timeout_s: float = 60.0) -> dict[int, list[Stored]]:
    """The log of every partition up to its high watermark."""
    log: dict[int, list[Stored]] = {partition: [] for partition in range(partitions)}
    unfinished = dict.fromkeys(range(partitions))
    deadline = time.monotonic() + timeout_s
    with _reading(bootstrap_servers) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        while unfinished:
            for message in consumer.consume(5000, timeout=0.5):
                partition, error = message.partition(), message.error()
                assert partition is not None
                if error is None:
                    offset = message.offset()
                    assert offset is not None
                    log[partition].append(Stored(offset, *parse(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.pop(partition, None)
                elif not error.retriable():
                    raise KafkaException(error)
            assert time.monotonic() < deadline, f"{topic}: not read to its end: {list(unfinished)}"
    return log
