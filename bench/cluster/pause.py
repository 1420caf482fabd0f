"""The pauses of a steady stock producer while leaders are killed.

The producer is confluent-kafka with only idempotence and the address set; it writes to all partitions in turn. A pause
is the longest time after a kill without an acknowledgement from a partition. In the end every record must be
acknowledged.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from bench.load.driver import LoadFailed

PATIENCE_S = 90.0
_SENT = struct.Struct(">d")


class Arrivals:
    """When records arrived, by partition, and when the newest of them was sent. One thread adds, others read."""

    def __init__(self, partitions: int) -> None:
        self._arrived_s: list[list[float]] = [[] for _ in range(partitions)]
        self._newest_sent_s = [0.0] * partitions

    def add(self, partition: int, sent_s: float) -> None:
        self._arrived_s[partition].append(time.perf_counter())
        self._newest_sent_s[partition] = max(self._newest_sent_s[partition], sent_s)

    def await_all(self, since_s: float, what: str, check: Callable[[], None]) -> None:
        """Waits until every partition has a record that was sent after `since_s`. `check` raises if none will come."""
        deadline = time.perf_counter() + PATIENCE_S
        while min(self._newest_sent_s) < since_s:
            check()
            if time.perf_counter() > deadline:
                raise LoadFailed(f"no {what} for {PATIENCE_S:.0f} s")
            time.sleep(0.01)

    def longest_pause_s(self, begin_s: float, end_s: float) -> float:
        longest = 0.0
        for times in self._arrived_s:
            previous = max((moment for moment in times if moment <= begin_s), default=begin_s)
            for moment in [one for one in times if begin_s < one <= end_s] + [end_s]:
                longest, previous = max(longest, moment - previous), moment
        return longest


class SteadyProducer:
    """Runs in a separate thread for the length of the block."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, requests_per_s: int) -> None:
        self._topic, self._partitions, self._rate = topic, partitions, requests_per_s
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "log_level": 0})
        self._acknowledged = Arrivals(partitions)
        self._failed: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        partition, value = message.partition(), message.value()
        if error is not None or partition is None or not isinstance(value, bytes):
            self._failed.append(str(error))
        else:
            (sent_s,) = _SENT.unpack_from(value)
            self._acknowledged.add(partition, sent_s)

    def _run(self) -> None:
        begin, count, padding = time.perf_counter(), 0, b"\0" * 92
        while not self._stopping.is_set():
            due = int((time.perf_counter() - begin) * self._rate)
            while count < due:
                partition, value = count % self._partitions, _SENT.pack(time.perf_counter()) + padding
                try:
                    self._producer.produce(self._topic, value, partition=partition, on_delivery=self._on_delivery)
                except BufferError:
                    break
                count += 1
            self._producer.poll(0.002)
        if self._producer.flush(PATIENCE_S):
            self._failed.append(f"not acknowledged within {PATIENCE_S:.0f} s")

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        self.await_acknowledgements(time.perf_counter())
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S + 10)

    def check(self) -> None:
        if self._failed:
            raise LoadFailed(f"{len(self._failed)} records failed: {self._failed[0]}")

    def await_acknowledgements(self, since_s: float) -> None:
        """Waits until every partition has acknowledged a record that was sent after `since_s`."""
        self._acknowledged.await_all(since_s, "acknowledgement", self.check)

    def longest_pause_s(self, begin_s: float, end_s: float) -> float:
        return self._acknowledged.longest_pause_s(begin_s, end_s)
