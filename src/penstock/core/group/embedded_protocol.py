"""Data of classic consumers in JoinGroup and SyncGroup: subscription and assignment.

    subscription  version int16 | topics [string] | user data bytes | from 1: owned [topic, [int32]]
                  | from 2: generation int32 | from 3: rack string
    assignment    version int16 | [topic, [int32]] | user data bytes

Strings and bytes may be null; newer versions only append. A coordinator reads the data only when
a group moves between the two protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, error
from typing import NamedTuple, TypeAlias

from penstock.core.shard.records import Fields, string
from penstock.model.errors import ApiError, ErrorCode

_INT16 = Struct(">h")
_INT32 = Struct(">i")

Partitions: TypeAlias = Mapping[str, frozenset[int]]
"""By topic name."""


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: Partitions
    rack_id: str | None = None


def read_subscription(metadata: bytes) -> Subscription:
    """Parse a subscription; INCONSISTENT_GROUP_PROTOCOL if malformed."""
    try:
        fields, version = _open(metadata)
        topics = tuple(fields.string() for _ in range(fields.int32()))
        _skip_user_data(fields)
        owned = _read_partitions(fields) if version >= 1 else {}
        if version >= 2:
            fields.int32()
        rack_id = fields.nullable_string() if version >= 3 else None
    except (IndexError, UnicodeDecodeError, error) as problem:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"malformed subscription: {problem}") from problem
    return Subscription(version, topics, owned, rack_id)


def read_assignment(data: bytes) -> tuple[Partitions, bool]:
    """Return the partitions and whether there is user data; INCONSISTENT_GROUP_PROTOCOL if malformed."""
    if not data:
        return {}, False
    try:
        fields, _ = _open(data)
        return _read_partitions(fields), _skip_user_data(fields)
    except (IndexError, UnicodeDecodeError, error) as problem:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"malformed assignment: {problem}") from problem


def write_assignment(version: int, partitions: Partitions) -> bytes:
    parts = [_INT16.pack(version), _INT32.pack(len(partitions))]
    for topic, held in sorted(partitions.items()):
        parts += (string(topic), _INT32.pack(len(held)), *(_INT32.pack(index) for index in sorted(held)))
    parts.append(_INT32.pack(-1))
    return b"".join(parts)


def _open(data: bytes) -> tuple[Fields, int]:
    (version,) = _INT16.unpack_from(data)
    return Fields(data, 2), version


def _read_partitions(fields: Fields) -> Partitions:
    found: dict[str, frozenset[int]] = {}
    for _ in range(fields.int32()):
        topic = fields.string()
        held = frozenset(fields.int32() for _ in range(fields.int32()))
        if held:
            found[topic] = found.get(topic, frozenset()) | held
    return found


def _skip_user_data(fields: Fields) -> bool:
    """Return whether there was user data."""
    size = fields.int32()
    if size > 0:
        fields.skip(size)
    return size > 0
