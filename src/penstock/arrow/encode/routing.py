"""The partition of each row: its own, else Kafka's murmur2 of its key, else a sticky one.

The sticky partition of a topic advances by one after a batch's worth of bytes, as in Kafka's own producer (KIP-794),
but without chance: tasks begin at different partitions, and a repeated task chooses the same ones. Slots number the
partitions of all topics. Must not know: how the number of partitions of a topic is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.arrow.encode import loops
from penstock.arrow.encode.columns import (
    PARTITION,
    TOPIC,
    ArrowArray,
    Int32s,
    RecordBatch,
    RecordColumns,
    UnsuitableRows,
    column,
)
from penstock.arrow.encode.layout import NO_PARTITION, TopicSlots


class Router:
    """`topic`: the topic of all rows; None: the column `topic`. `first_sticky` is taken modulo the partition count."""

    def __init__(
        self, topic: str | None, partition_count: Callable[[str], int], first_sticky: int, sticky_bytes: int
    ) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._first_sticky = first_sticky
        self._sticky_bytes = sticky_bytes
        self._loops = loops()
        self._numbers: dict[str, int] = {}
        self._topics = _no_topics()
        self.targets: list[tuple[str, int]] = []
        """(topic, partition) by slot."""

    def route(self, batch: RecordBatch, columns: RecordColumns) -> Int32s:
        """The slot of each row. Raises UnsuitableRows, and the errors of the lookup of partitions."""
        numbers = self._topic_numbers(batch)
        partitions = _partitions(column(batch, PARTITION), batch.num_rows)
        slots = np.empty(batch.num_rows, np.int32)
        row = self._loops.assign_slots(columns, numbers, partitions, self._topics, self._sticky_bytes, slots)
        if row >= 0:
            name = list(self._numbers)[numbers[row]]
            count = self._topics.partition_counts[numbers[row]]
            raise UnsuitableRows(
                f"column partition is {partitions[row]} in row {row}: topic '{name}' has partitions 0 to {count - 1}"
            )
        return slots

    def _topic_numbers(self, batch: RecordBatch) -> Int32s:
        if self._topic is not None:
            return np.full(batch.num_rows, self._number(self._topic), np.int32)
        names = column(batch, TOPIC)
        if names is None:
            raise UnsuitableRows("rows have no column topic, and the option topic is not set: give one of them")
        if names.null_count:
            row = int(names.is_null().to_numpy(zero_copy_only=False).argmax())
            raise UnsuitableRows(f"column topic is null in row {row}: fill it, or set the option topic for all rows")
        encoded = names.dictionary_encode()
        numbers = np.array([self._number(name) for name in encoded.dictionary.to_pylist()], np.int32)
        if not len(numbers):
            return np.empty(0, np.int32)
        found: Int32s = numbers[encoded.indices.to_numpy()]
        return found

    def _number(self, topic: str) -> int:
        number = self._numbers.get(topic)
        if number is None:
            count = self._partition_count(topic)
            number = self._numbers[topic] = len(self._numbers)
            grown = (len(self.targets), count, self._first_sticky % count, 0)
            self._topics = _with(self._topics, grown)
            self.targets += [(topic, partition) for partition in range(count)]
        return number


def _no_topics() -> TopicSlots:
    return TopicSlots(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64))


def _with(topics: TopicSlots, values: tuple[int, int, int, int]) -> TopicSlots:
    columns: tuple[Any, ...] = topics
    return TopicSlots(*(np.append(old, np.array([new], old.dtype)) for old, new in zip(columns, values, strict=True)))


def _partitions(array: ArrowArray | None, rows: int) -> Int32s:
    if array is None:
        return np.full(rows, NO_PARTITION, np.int32)
    # Copied, because the kernels are compiled for writable arrays.
    partitions: Int32s = array.cast("int32").fill_null(NO_PARTITION).to_numpy(zero_copy_only=False).copy()
    return partitions
