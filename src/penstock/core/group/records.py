"""Records of `__consumer_offsets` in Kafka's binary format, so that Kafka's tools can read them.

Key and value each begin with an int16. The key's int16 is the type of the record:

    key 1  group string | topic string | partition int32     a committed offset
    key 2  group string                                      a classic group
    (3 to 16: groups of the KIP-848 protocol, `consumer_records`)

A null value deletes. Offsets are written as value version 4 with the id of their topic (version 3 if
the id is unknown, version 1 if the client set a retention time), groups as version 3. Every version
that Kafka ever wrote can be read.
Must not know: groups in memory.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from penstock.core.shard.records import Decoder, Fields, compact, nullable_string, string

OFFSET_KEYS: Final = (0, 1)
GROUP_KEY: Final = 2
FIRST_FLEXIBLE: Final = 4  # value version of both kinds

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_OFFSET_HEAD = Struct(">hqi")  # version, offset, leader epoch
_OFFSET_HEAD_V1 = Struct(">hq")
_TOPIC_ID_TAG: Final = 0
NO_TOPIC_ID: Final = bytes(16)
_TOPIC_ID_FIELD: Final = b"\1\0\20"  # one tagged field: count, tag, size


class OffsetCommit(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1  # -1: the broker's retention applies
    topic_id: bytes = b""  # empty: unknown

    def encode_key(self) -> bytes:
        return _offset_key(self.group, self.topic, self.partition)

    def encode_value(self) -> bytes:
        metadata = string(self.metadata)
        if self.expire_timestamp_ms >= 0:
            # Only version 1 has a field for it.
            times = _INT64.pack(self.commit_timestamp_ms) + _INT64.pack(self.expire_timestamp_ms)
            return _OFFSET_HEAD_V1.pack(1, self.offset) + metadata + times
        committed = _INT64.pack(self.commit_timestamp_ms)
        if not self.topic_id:
            return _OFFSET_HEAD.pack(3, self.offset, self.leader_epoch) + metadata + committed
        head = _OFFSET_HEAD.pack(4, self.offset, self.leader_epoch)
        return head + compact(self.metadata.encode()) + committed + _TOPIC_ID_FIELD + self.topic_id


class OffsetTombstone(NamedTuple):
    group: str
    topic: str
    partition: int

    def encode_key(self) -> bytes:
        return _offset_key(self.group, self.topic, self.partition)

    def encode_value(self) -> None:
        return None


class TransactionalCommit(NamedTuple):
    """An offset that counts when the transaction of its producer commits. In the log it is an `OffsetCommit` in a
    transactional batch: the batch names the producer."""

    producer_id: int
    commit: OffsetCommit

    @property
    def group(self) -> str:
        return self.commit.group

    def encode_key(self) -> bytes:
        return self.commit.encode_key()

    def encode_value(self) -> bytes:
        return self.commit.encode_value()


class StoredMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes  # metadata for the chosen protocol
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A classic group after a rebalance: stable with its members, or empty."""

    group: str
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]

    def encode_key(self) -> bytes:
        return _group_key(self.group)

    def encode_value(self) -> bytes:
        parts = [
            _INT16.pack(3),
            string(self.protocol_type),
            _INT32.pack(self.generation),
            nullable_string(self.protocol_name),
            nullable_string(self.leader),
            _INT64.pack(self.state_timestamp_ms),
            _INT32.pack(len(self.members)),
        ]
        for member in self.members:
            parts += (
                string(member.member_id),
                nullable_string(member.instance_id),
                string(member.client_id),
                string(member.client_host),
                _INT32.pack(member.rebalance_timeout_ms),
                _INT32.pack(member.session_timeout_ms),
                _INT32.pack(len(member.subscription)),
                member.subscription,
                _INT32.pack(len(member.assignment)),
                member.assignment,
            )
        return b"".join(parts)


class GroupTombstone(NamedTuple):
    group: str

    def encode_key(self) -> bytes:
        return _group_key(self.group)

    def encode_value(self) -> None:
        return None


def decode_offset(key: bytes, value: bytes | None) -> OffsetCommit | OffsetTombstone:
    at = Fields(key, 2)
    group, topic, partition = at.string(), at.string(), at.int32()
    if value is None:
        return OffsetTombstone(group, topic, partition)
    fields, version = _open(value)
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= 3 else -1
    metadata = fields.string()
    committed_ms = fields.int64()
    expire_ms = fields.int64() if version == 1 else -1
    topic_id = fields.tags().get(_TOPIC_ID_TAG, NO_TOPIC_ID)
    if topic_id == NO_TOPIC_ID:
        topic_id = b""
    return OffsetCommit(group, topic, partition, offset, leader_epoch, metadata, committed_ms, expire_ms, topic_id)


def decode_group(key: bytes, value: bytes | None) -> GroupMetadata | GroupTombstone:
    group = Fields(key, 2).string()
    if value is None:
        return GroupTombstone(group)
    fields, version = _open(value)
    protocol_type = fields.string()
    generation = fields.int32()
    protocol_name = fields.nullable_string()
    leader = fields.nullable_string()
    state_timestamp_ms = fields.int64() if version >= 2 else -1
    members = tuple(_read_member(fields, version) for _ in range(fields.length(_INT32)))
    return GroupMetadata(group, protocol_type, generation, protocol_name, leader, state_timestamp_ms, members)


CLASSIC_DECODERS: Final[dict[int, Decoder]] = {
    **dict.fromkeys(OFFSET_KEYS, decode_offset),
    GROUP_KEY: decode_group,
}


def _read_member(fields: Fields, version: int) -> StoredMember:
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id = fields.string()
    client_host = fields.string()
    rebalance_timeout_ms = fields.int32() if version >= 1 else -1
    session_timeout_ms = fields.int32()
    if rebalance_timeout_ms < 0:
        rebalance_timeout_ms = session_timeout_ms
    subscription = fields.data()
    assignment = fields.data()
    fields.tags()
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _open(value: bytes) -> tuple[Fields, int]:
    (version,) = _INT16.unpack_from(value)
    return Fields(value, 2, flexible=version >= FIRST_FLEXIBLE), version


def _offset_key(group: str, topic: str, partition: int) -> bytes:
    return b"\0\1" + string(group) + string(topic) + _INT32.pack(partition)


def _group_key(group: str) -> bytes:
    return b"\0\2" + string(group)
