"""A reader of committed rows that watches all partitions of a topic while transactions write them."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


class CommittedReader:
    """librdkafka's consumer from the first row on. Rows are numbers."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(partitions)]
        self.count = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "watching",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(1000, 0.2):
                if message.error() is None:
                    self.rows[message.partition()].append(int(message.value()))
                    self.count += 1

    def wait_for(self, count: int, timeout_s: float) -> None:
        """Until so many are read, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while self.count < count and time.monotonic() < deadline:
            time.sleep(0.05)

    def __enter__(self) -> CommittedReader:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(10)
        self._consumer.close()
