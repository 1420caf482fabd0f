"""Records between librdkafka and the application, and the application's progress.

A record is buffered, then handed out, then done. When the application asks for more, the records that it has are done.
So an automatic commit never covers a record that was not handled (at least once). For a revoked partition everything is
dropped. The fetching thread and the reading thread use this, hence the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.records import Record


class Handout:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffer: deque[Record] = deque()
        self._current: dict[TopicPartition, int] = {}
        self._done: dict[TopicPartition, int] = {}
        self._positions: dict[TopicPartition, int] = {}
        self.records = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._buffer)

    def add(self, records: Iterable[Record]) -> None:
        with self._lock:
            self._buffer.extend(records)

    def finish(self) -> None:
        """Marks all records that were handed out as done."""
        with self._lock:
            self._done.update(self._current)
            self._current.clear()

    def take(self, max_records: int) -> list[Record]:
        taken: list[Record] = []
        with self._lock:
            while self._buffer and len(taken) < max_records:
                record = self._buffer.popleft()
                taken.append(record)
                self._current[record.topic_partition] = record.offset + 1
                self.records += 1
                self.size_bytes += len(record.key or b"") + len(record.value or b"")
            self._positions.update(self._current)
        return taken

    def take_done(self) -> dict[TopicPartition, int]:
        """Returns the offsets to commit, and clears them."""
        with self._lock:
            done, self._done = self._done, {}
        return done

    def has_done(self) -> bool:
        return bool(self._done)

    def positions(self) -> dict[TopicPartition, int]:
        """The offset after the last record handed out, by partition."""
        with self._lock:
            return dict(self._positions)

    def first_buffered(self, partition: TopicPartition) -> int | None:
        with self._lock:
            return next((record.offset for record in self._buffer if record.topic_partition == partition), None)

    def forget(self, partitions: Iterable[TopicPartition], *, buffered_only: bool = False) -> None:
        gone = set(partitions)
        with self._lock:
            self._buffer = deque(record for record in self._buffer if record.topic_partition not in gone)
            if not buffered_only:
                for offsets in (self._current, self._done, self._positions):
                    for partition in gone:
                        offsets.pop(partition, None)

    def forget_all(self) -> None:
        with self._lock:
            for held in (self._buffer, self._current, self._done, self._positions):
                held.clear()
