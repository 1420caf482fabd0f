"""Steady transactions of stock producers, and what a consumer of committed records sees of them while brokers die.

Each producer is confluent-kafka with a transactional id and the address. Its transaction has one record for each
partition and stays open for a moment. The consumer reads committed records: the default of confluent-kafka. A pause is
the longest time after a kill without a new record from a partition, so it is the time for which the partition's last
stable offset stands still, and the consumer's own delay.

In the end the consumer must have seen all records of committed transactions once, and none of aborted ones.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.cluster.pause import PATIENCE_S, Arrivals
from bench.load.driver import LoadFailed

OPEN_S = 0.05
_VALUE = struct.Struct(">diq")  # sent, producer, number of the transaction

Transaction = tuple[int, int]
"""(producer, number)"""


class SteadyTransactions:
    """Producers and consumer run in threads of their own for the length of the block."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, producers: int) -> None:
        self._bootstrap_servers, self._topic, self._partitions = bootstrap_servers, topic, partitions
        self.transactional_ids = [f"{topic}-{number}" for number in range(producers)]
        self._seen = Arrivals(partitions)
        self._counts: Counter[Transaction] = Counter()
        self._committed: set[Transaction] = set()
        self._aborted: set[Transaction] = set()
        self._undecided: set[Transaction] = set()
        """Their producer has failed: nobody knows the outcome."""
        self._failed: list[str] = []
        self._stopping = threading.Event()
        self._enough = threading.Event()
        self._consumer = self._thread(self._consume)
        self._producers = [self._thread(partial(self._produce, number)) for number in range(producers)]

    def __enter__(self) -> SteadyTransactions:
        self._consumer.start()
        for thread in self._producers:
            thread.start()
        self.await_seen(time.perf_counter())
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._producers:
            thread.join(PATIENCE_S + 10)
        self._enough.set()
        self._consumer.join(PATIENCE_S + 10)

    def await_seen(self, since_s: float) -> None:
        """Waits until the consumer has a record from each partition that was sent after `since_s`."""
        self._seen.await_all(since_s, "committed record", self._check)

    def longest_pause_s(self, begin_s: float, end_s: float) -> float:
        return self._seen.longest_pause_s(begin_s, end_s)

    def check(self) -> None:
        """After the block."""
        self._check()
        missing = sorted(one for one in self._committed if self._counts[one] != self._partitions)
        if missing:
            raise LoadFailed(f"{len(missing)} committed transactions were not seen once, for example {missing[0]}")
        if wrong := sorted(one for one in self._aborted if self._counts[one]):
            raise LoadFailed(f"{len(wrong)} aborted transactions were seen, for example {wrong[0]}")
        if halves := sorted(one for one in self._undecided if self._counts[one] not in (0, self._partitions)):
            raise LoadFailed(f"{len(halves)} transactions were seen in part, for example {halves[0]}")

    def _check(self) -> None:
        if self._failed:
            raise LoadFailed(self._failed[0])

    # -- threads --------------------------------------------------------------------------

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except KafkaException as error:
                self._failed.append(str(error))

        return threading.Thread(target=guarded, daemon=True)

    def _new_producer(self, number: int) -> Producer:
        name = self.transactional_ids[number]
        settings = {"bootstrap.servers": self._bootstrap_servers, "transactional.id": name, "log_level": 0}
        producer = Producer(settings)
        producer.init_transactions(PATIENCE_S)
        return producer

    def _produce(self, number: int) -> None:
        producer, count = self._new_producer(number), 0
        while not self._stopping.is_set():
            one, count = (number, count), count + 1
            try:
                producer.begin_transaction()
                for index in range(self._partitions):
                    producer.produce(self._topic, _VALUE.pack(time.perf_counter(), *one), partition=index)
                time.sleep(OPEN_S)
                producer.commit_transaction(PATIENCE_S)
                self._committed.add(one)
            except KafkaException as failure:
                error = failure.args[0]
                assert isinstance(error, KafkaError)
                if error.txn_requires_abort():
                    producer.abort_transaction(PATIENCE_S)
                    self._aborted.add(one)
                else:
                    self._undecided.add(one)
                    producer = self._new_producer(number)

    def _consume(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap_servers, "group.id": "bench", "enable.auto.commit": False}
        consumer = Consumer({**settings, "log_level": 0})
        try:
            consumer.assign([TopicPartition(self._topic, number, 0) for number in range(self._partitions)])
            deadline = 0.0
            while not self._enough.is_set() or not self._is_all_seen():
                for message in consumer.consume(1000, timeout=0.01):
                    self._take(message)
                if self._enough.is_set():
                    deadline = deadline or time.perf_counter() + PATIENCE_S
                    if time.perf_counter() > deadline:
                        return  # `check` tells which are missing
        finally:
            consumer.close()

    def _is_all_seen(self) -> bool:
        return all(self._counts[one] >= self._partitions for one in self._committed)

    def _take(self, message: Message) -> None:
        index, value = message.partition(), message.value()
        if message.error() is not None or index is None or not isinstance(value, bytes):
            return  # temporary: the consumer goes on by itself
        sent_s, number, count = _VALUE.unpack(value)
        self._counts[number, count] += 1
        self._seen.add(index, sent_s)
