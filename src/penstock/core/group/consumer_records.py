"""Kafka's records of consumer groups (KIP-848) in `__consumer_offsets`, as values and as bytes.

    key   int16 type, then plain strings            value  int16 version 0, then flexible fields
    3     group                                     epoch, hash of the subscribed topics
    4     group                                     written by Kafka before 4.1: only tombstones are supported
    5     group, member                             identity and subscription of the member
    6     group                                     epoch of the target assignment, and its creation time
    7     group, member                             target assignment of the member
    8     group, member                             current assignment: epochs, state, partitions with their epochs
    16    group, regular expression                 the topics that match the expression

A record without a value is a tombstone and deletes the entry of its key. Unknown tagged fields are
skipped, so that records of a newer Kafka can be read. Must not know: what a group does with its records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias, TypeVar

from penstock.core.group.assignors import EMPTY, Assignment
from penstock.core.shard.records import Decoder, compact, uvarint
from penstock.model.errors import StorageError

T = TypeVar("T")

LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2


Epochs: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Epochs of partitions, by topic id."""
NO_EPOCHS: Final[Epochs] = {}


def epochs_of(known: Epochs, otherwise: int, *held: Assignment) -> Epochs:
    """The epoch of each held partition: the known one, else `otherwise`."""
    found: dict[bytes, dict[int, int]] = {}
    for assignment in held:
        for topic_id, partitions in assignment.items():
            mine = known.get(topic_id, {})
            found.setdefault(topic_id, {}).update((index, mine.get(index, otherwise)) for index in sorted(partitions))
    return found or NO_EPOCHS


class MemberState(IntEnum):
    """The progress of a member towards its target; see `reconciliation`."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ClassicProtocols(NamedTuple):
    """JoinGroup fields of a classic member, which can be in a consumer group during migration."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberMetadata(NamedTuple):
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()  # sorted
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicProtocols | None = None


class MemberAssignment(NamedTuple):
    """`previous_epoch` is also accepted, because the reply with the new epoch may have been lost."""

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = EMPTY
    pending_revocation: Assignment = EMPTY
    since: Epochs = NO_EPOCHS
    """The epoch of the target with which the member got each partition of both assignments."""


class GroupEpoch(NamedTuple):
    epoch: int
    metadata_hash: int = 0


class TargetEpoch(NamedTuple):
    epoch: int
    timestamp_ms: int = 0


class ResolvedRegex(NamedTuple):
    topics: tuple[str, ...]  # sorted
    version: int
    timestamp_ms: int


class ConsumerGroupMetadata(NamedTuple):
    group: str
    value: GroupEpoch | None

    def encode_key(self) -> bytes:
        return _key(3, self.group)

    def encode_value(self) -> bytes | None:
        return self.value and _encode_group(self.value)


class ConsumerGroupPartitionMetadata(NamedTuple):
    group: str
    value: None = None

    def encode_key(self) -> bytes:
        return _key(4, self.group)

    def encode_value(self) -> None:
        return None


class ConsumerGroupMember(NamedTuple):
    group: str
    member_id: str
    value: MemberMetadata | None

    def encode_key(self) -> bytes:
        return _key(5, self.group, self.member_id)

    def encode_value(self) -> bytes | None:
        return self.value and _encode_member(self.value)


class ConsumerGroupTargetMetadata(NamedTuple):
    group: str
    value: TargetEpoch | None

    def encode_key(self) -> bytes:
        return _key(6, self.group)

    def encode_value(self) -> bytes | None:
        return self.value and _encode_target_epoch(self.value)


class ConsumerGroupTargetMember(NamedTuple):
    group: str
    member_id: str
    value: Assignment | None

    def encode_key(self) -> bytes:
        return _key(7, self.group, self.member_id)

    def encode_value(self) -> bytes | None:
        return None if self.value is None else _VERSION + _encode_assignment(self.value) + _NO_TAGS


class ConsumerGroupCurrentMember(NamedTuple):
    group: str
    member_id: str
    value: MemberAssignment | None

    def encode_key(self) -> bytes:
        return _key(8, self.group, self.member_id)

    def encode_value(self) -> bytes | None:
        return self.value and _encode_current(self.value)


class ConsumerGroupRegex(NamedTuple):
    group: str
    regex: str
    value: ResolvedRegex | None

    def encode_key(self) -> bytes:
        return _key(16, self.group, self.regex)

    def encode_value(self) -> bytes | None:
        return self.value and _encode_regex(self.value)


ConsumerGroupRecord: TypeAlias = (
    ConsumerGroupMetadata
    | ConsumerGroupPartitionMetadata
    | ConsumerGroupMember
    | ConsumerGroupTargetMetadata
    | ConsumerGroupTargetMember
    | ConsumerGroupCurrentMember
    | ConsumerGroupRegex
)

KEY_TYPES: Final = (3, 4, 5, 6, 7, 8, 16)

_VERSION: Final = b"\0\0"
_NO_TAGS: Final = b"\0"


def decode(key: bytes, value: bytes | None) -> ConsumerGroupRecord:
    """Decode a record whose key type is one of `KEY_TYPES`; StorageError if it is malformed."""
    try:
        return _decode(key, value)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise StorageError(f"malformed consumer group record with key {key.hex()}: {error}") from error


def _decode(key: bytes, value: bytes | None) -> ConsumerGroupRecord:
    reader = _Reader(key)
    kind = reader.int16()
    group_id = reader.plain_string()
    body = None
    if value is not None:
        body = _Reader(value)
        version = body.int16()
        if version != 0:
            raise StorageError(f"consumer group record of type {kind} has value version {version}: a newer writer?")
    match kind:
        case 3:
            return ConsumerGroupMetadata(group_id, _maybe(body, _decode_group))
        case 4:
            return ConsumerGroupPartitionMetadata(group_id)
        case 5:
            return ConsumerGroupMember(group_id, reader.plain_string(), _maybe(body, _decode_member))
        case 6:
            return ConsumerGroupTargetMetadata(group_id, _maybe(body, _decode_target_epoch))
        case 7:
            return ConsumerGroupTargetMember(group_id, reader.plain_string(), _maybe(body, _decode_assignment))
        case 8:
            return ConsumerGroupCurrentMember(group_id, reader.plain_string(), _maybe(body, _decode_current))
        case 16:
            return ConsumerGroupRegex(group_id, reader.plain_string(), _maybe(body, _decode_regex))
    raise StorageError(f"not a consumer group record: type {kind}")


def _maybe(body: _Reader | None, read: Callable[[_Reader], T]) -> T | None:
    return None if body is None else read(body)


CONSUMER_DECODERS: Final[dict[int, Decoder]] = dict.fromkeys(KEY_TYPES, decode)


# --- values: encoder and decoder side by side ---


def _encode_group(value: GroupEpoch) -> bytes:
    tags = _tags((0, struct.pack(">q", value.metadata_hash))) if value.metadata_hash else _NO_TAGS
    return _VERSION + struct.pack(">i", value.epoch) + tags


def _decode_group(body: _Reader) -> GroupEpoch:
    epoch = body.int32()
    tagged = body.tagged()
    return GroupEpoch(epoch, _Reader(tagged[0]).int64() if 0 in tagged else 0)


def _encode_target_epoch(value: TargetEpoch) -> bytes:
    tags = _tags((0, struct.pack(">q", value.timestamp_ms))) if value.timestamp_ms else _NO_TAGS
    return _VERSION + struct.pack(">i", value.epoch) + tags


def _decode_target_epoch(body: _Reader) -> TargetEpoch:
    epoch = body.int32()
    tagged = body.tagged()
    return TargetEpoch(epoch, _Reader(tagged[0]).int64() if 0 in tagged else 0)


def _encode_member(value: MemberMetadata) -> bytes:
    tags = _NO_TAGS
    if value.classic is not None:
        protocols = _array((_string(name) + compact(data) + _NO_TAGS) for name, data in value.classic.protocols)
        # A nullable struct begins with a byte that marks it as present.
        body = b"\x01" + struct.pack(">i", value.classic.session_timeout_ms) + protocols + _NO_TAGS
        tags = _tags((0, body))
    return b"".join(
        (
            _VERSION,
            _nullable_string(value.instance_id),
            _nullable_string(value.rack_id),
            _string(value.client_id),
            _string(value.client_host),
            _array(_string(name) for name in value.topic_names),
            _nullable_string(value.topic_regex),
            struct.pack(">i", value.rebalance_timeout_ms),
            _nullable_string(value.server_assignor),
            tags,
        )
    )


def _decode_member(body: _Reader) -> MemberMetadata:
    instance_id, rack_id = body.nullable_string(), body.nullable_string()
    client_id, client_host = body.string(), body.string()
    topic_names = body.array(body.string)
    topic_regex = body.nullable_string() or None  # Kafka writes an empty string for none
    rebalance_timeout_ms = body.int32()
    server_assignor = body.nullable_string()
    classic = None
    tagged = body.tagged()
    if 0 in tagged:
        inner = _Reader(tagged[0])
        if inner.int8() > 0:  # Kafka also writes a null struct, as one byte
            classic = ClassicProtocols(inner.int32(), inner.array(inner.protocol))
    return MemberMetadata(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topic_names,
        topic_regex,
        rebalance_timeout_ms,
        server_assignor,
        classic,
    )


def _encode_current(value: MemberAssignment) -> bytes:
    head = struct.pack(">iib", value.epoch, value.previous_epoch, value.state)
    since = epochs_of(value.since, max(value.epoch, 0), value.assigned, value.pending_revocation)
    assigned = _encode_assignment(value.assigned, since)
    return b"".join((_VERSION, head, assigned, _encode_assignment(value.pending_revocation, since), _NO_TAGS))


def _decode_current(body: _Reader) -> MemberAssignment:
    epoch, previous_epoch, number = body.int32(), body.int32(), body.int8()
    known = {int(state) for state in MemberState}
    state = MemberState(number) if number in known else MemberState.UNKNOWN
    since: dict[bytes, dict[int, int]] = {}
    assigned, pending = _decode_assignment(body, since), _decode_assignment(body, since)
    # Kafka before 4.3 wrote no epochs of partitions; the member's epoch counts then.
    complete = epochs_of(since, max(epoch, 0), assigned, pending)
    return MemberAssignment(epoch, previous_epoch, state, assigned, pending, complete)


def _encode_regex(value: ResolvedRegex) -> bytes:
    topics = _array(_string(name) for name in value.topics)
    return _VERSION + topics + struct.pack(">qq", value.version, value.timestamp_ms) + _NO_TAGS


def _decode_regex(body: _Reader) -> ResolvedRegex:
    return ResolvedRegex(body.array(body.string), body.int64(), body.int64())


def _encode_assignment(value: Assignment, since: Epochs = NO_EPOCHS) -> bytes:
    encoded: list[bytes] = []
    for topic_id, partitions in sorted(value.items()):
        ordered = sorted(partitions)
        epochs = since.get(topic_id)
        tags = _tags((0, _int32s([epochs[index] for index in ordered]))) if epochs else _NO_TAGS
        encoded.append(topic_id + _int32s(ordered) + tags)
    return _array(encoded)


def _decode_assignment(body: _Reader, since: dict[bytes, dict[int, int]] | None = None) -> Assignment:
    """Decode an assignment. Partition epochs are added to `since`."""
    found: dict[bytes, frozenset[int]] = {}
    for topic_id, partitions, epochs in body.array(body.topic_partitions):
        found[topic_id] = frozenset(partitions)
        if since is not None and len(epochs) == len(partitions):
            since.setdefault(topic_id, {}).update(zip(partitions, epochs, strict=True))
    return found or EMPTY


# --- bytes ---


def _key(kind: int, *strings: str) -> bytes:
    parts = [struct.pack(">h", kind)]
    for text in strings:
        data = text.encode()
        parts += (struct.pack(">h", len(data)), data)
    return b"".join(parts)


def _int32s(values: Sequence[int]) -> bytes:
    return uvarint(len(values) + 1) + struct.pack(f">{len(values)}i", *values)


def _string(text: str) -> bytes:
    return compact(text.encode())


def _nullable_string(text: str | None) -> bytes:
    return b"\0" if text is None else _string(text)


def _array(items: Iterable[bytes]) -> bytes:
    encoded = list(items)
    return uvarint(len(encoded) + 1) + b"".join(encoded)


def _tags(*fields: tuple[int, bytes]) -> bytes:
    return uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(body)) + body for tag, body in fields)


class _Reader:
    """A cursor over the bytes of one record; reading past the end is an IndexError or struct.error."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _number(self, fmt: str, size: int) -> int:
        value: int = struct.unpack_from(fmt, self._data, self._at)[0]
        self._at += size
        return value

    def int8(self) -> int:
        return self._number(">b", 1)

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def int64(self) -> int:
        return self._number(">q", 8)

    def raw(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise IndexError("a field runs past the end of the record")
        piece = bytes(self._data[self._at : end])
        self._at = end
        return piece

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def plain_string(self) -> str:
        return self.raw(self.int16()).decode()

    def string(self) -> str:
        return self.raw(self.uvarint() - 1).decode()

    def nullable_string(self) -> str | None:
        length = self.uvarint()
        return None if length == 0 else self.raw(length - 1).decode()

    def array(self, item: Callable[[], T]) -> tuple[T, ...]:
        return tuple(item() for _ in range(self.uvarint() - 1))

    def protocol(self) -> tuple[str, bytes]:
        pair = self.string(), self.raw(self.uvarint() - 1)
        self.tagged()
        return pair

    def int32s(self) -> tuple[int, ...]:
        count = max(self.uvarint() - 1, 0)
        values: tuple[int, ...] = struct.unpack_from(f">{count}i", self._data, self._at)
        self._at += 4 * count
        return values

    def topic_partitions(self) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
        topic_id, partitions = self.raw(16), self.int32s()
        tagged = self.tagged()
        return topic_id, partitions, _Reader(tagged[0]).int32s() if 0 in tagged else ()

    def tagged(self) -> dict[int, bytes]:
        return {self.uvarint(): self.raw(self.uvarint()) for _ in range(self.uvarint())}
