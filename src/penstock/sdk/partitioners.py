"""Partitioners: the choice of a partition for a record.

`"hash"` runs inside librdkafka. A key always goes to the same partition (murmur2, as in Kafka's Java client). Records
without a key stay with one partition for a batch and then change, which spreads them evenly and keeps batches large.
`"round-robin"` sends each record to the next partition, with or without a key. Any callable is a custom partitioner.
The last two need the number of partitions, which the producer asks for and refreshes.
"""

from __future__ import annotations

import itertools
import threading
from typing import Literal, Protocol, TypeAlias

from confluent_kafka import murmur2

__all__ = ["NATIVE", "CustomPartitioner", "Partitioner", "RoundRobinPartitioner", "hash_partition", "resolve"]

NATIVE = "murmur2_random"


class CustomPartitioner(Protocol):
    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, /) -> int:
        """Returns a number from 0 to partition_count - 1."""


Partitioner: TypeAlias = Literal["hash", "round-robin"] | CustomPartitioner


def hash_partition(key: bytes, partition_count: int) -> int:
    """The partition to which `"hash"` and Kafka's Java client send this key."""
    return murmur2(key, partition_count)


class RoundRobinPartitioner:
    """Counts separately for each topic."""

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}
        self._lock = threading.Lock()

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        turn = self._turns.get(topic)
        if turn is None:
            with self._lock:
                turn = self._turns.setdefault(topic, itertools.count())
        return next(turn) % partition_count


def resolve(partitioner: Partitioner) -> CustomPartitioner | None:
    """The partitioner to call. None means that librdkafka decides."""
    if partitioner == "hash":
        return None
    if partitioner == "round-robin":
        return RoundRobinPartitioner()
    if callable(partitioner):
        return partitioner
    raise ValueError(f'partitioner must be "hash", "round-robin" or a callable, not {partitioner!r}')
