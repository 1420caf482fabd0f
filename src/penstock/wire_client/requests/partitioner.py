"""The partitioner: Kafka's murmur2 of the key, or round robin without a key.

The Java client, kafka-python and aiokafka have the same hash, so that all send a key to the same partition.
(librdkafka's default differs: set partitioner=murmur2_random there.)
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    size = len(data)
    h = (_SEED ^ size) & _MASK
    whole = size & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class RoundRobin:
    """One counter per topic. The first record of each topic goes to partition 0."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def choose(self, topic: str, partition_count: int) -> int:
        number = self._next.get(topic, 0)
        self._next[topic] = number + 1
        return number % partition_count

    def forget(self, topic: str) -> None:
        self._next.pop(topic, None)
