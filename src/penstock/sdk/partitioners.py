"""Which partition a record goes to.

`"hash"` runs inside librdkafka: a key always goes to the same partition (murmur2, as Kafka's Java client
counts it); records without a key stay with one partition for a batch and then move on, which spreads them
evenly and keeps batches whole. `"round-robin"` gives each record to the next partition, key or not. Anything
else is a callable. The last two need the number of partitions, which the producer asks for and refreshes.
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
        """From 0 to partition_count - 1."""


Partitioner: TypeAlias = Literal["hash", "round-robin"] | CustomPartitioner


def hash_partition(key: bytes, partition_count: int) -> int:
    """Where `"hash"` and Kafka's Java client send this key."""
    return murmur2(key, partition_count)


class RoundRobinPartitioner:
    """Each topic has a turn of its own."""

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
    """None: librdkafka decides."""
    if partitioner == "hash":
        return None
    if partitioner == "round-robin":
        return RoundRobinPartitioner()
    if callable(partitioner):
        return partitioner
    raise ValueError(f'partitioner is "hash", "round-robin" or a callable, not {partitioner!r}')
