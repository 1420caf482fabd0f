"""The subscriptions and assignments inside JoinGroup and SyncGroup, and the range assignor.

    subscription  version int16 | topics [string] | user data nullable bytes | later fields, ignored
    assignment    version int16 | (topic string, partitions [int32]) [] | user data nullable bytes

The coordinator passes both on unread. They are written in version 0, which every client reads.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from penstock.model.errors import ProtocolError
from penstock.model.topic_partition import TopicPartition

_NO_USER_DATA = struct.pack(">i", -1)


def encode_subscription(topics: Sequence[str]) -> bytes:
    out = bytearray(struct.pack(">hi", 0, len(topics)))
    for topic in topics:
        _write_string(topic, out)
    return bytes(out + _NO_USER_DATA)


def decode_subscription(data: bytes) -> tuple[str, ...]:
    try:
        _, count = struct.unpack_from(">hi", data)
        at = 6
        topics = []
        for _ in range(count):
            topic, at = _read_string(data, at)
            topics.append(topic)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a member's subscription cannot be decoded: {error}") from error
    return tuple(topics)


def encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    out = bytearray(struct.pack(">hi", 0, len(topics)))
    for topic, indexes in topics.items():
        _write_string(topic, out)
        out += struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return bytes(out + _NO_USER_DATA)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decodes an assignment. Empty bytes mean an empty assignment."""
    if not data:
        return ()
    try:
        _, count = struct.unpack_from(">hi", data)
        at = 6
        partitions: list[TopicPartition] = []
        for _ in range(count):
            topic, at = _read_string(data, at)
            (size,) = struct.unpack_from(">i", data, at)
            indexes = struct.unpack_from(f">{max(size, 0)}i", data, at + 4)
            at += 4 + 4 * len(indexes)
            partitions += (TopicPartition(topic, index) for index in indexes)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"the assignment cannot be decoded: {error}") from error
    return tuple(partitions)


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Kafka's range assignor: each member gets a range of each topic, and the first members one partition more."""
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        size, more = divmod(partition_counts.get(topic, 0), len(members))
        at = 0
        for number, member in enumerate(members):
            end = at + size + (number < more)
            assigned[member] += (TopicPartition(topic, index) for index in range(at, end))
            at = end
    return assigned


def _write_string(text: str, out: bytearray) -> None:
    data = text.encode()
    out += struct.pack(">h", len(data)) + data


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    end = at + 2 + size
    if size < 0 or end > len(data):
        raise struct.error(f"string of {size} bytes at {at}")
    return data[at + 2 : end].decode(), end
