"""Records of `__consumer_offsets`: byte for byte Kafka's, every version it ever wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.group.records import (
    CLASSIC_DECODERS,
    GroupMetadata,
    GroupTombstone,
    OffsetCommit,
    OffsetTombstone,
    StoredMember,
)
from penstock.core.shard.records import decode
from penstock.model.errors import StorageError

TOPIC = "__consumer_offsets"

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    StoredMember,
    names,
    st.none() | names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    int32,
    st.binary(max_size=50),
    st.binary(max_size=50),
)


def test_an_offset_commit_byte_for_byte() -> None:
    record = OffsetCommit("g", "t", 3, 42, 7, "note", 1_700_000_000_000)
    assert record.encode_key().hex() == "000100016700017400000003"
    assert record.encode_value().hex() == ("0003000000000000002a000000070004" + b"note".hex() + "0000018bcfe56800")
    with_topic = record._replace(topic_id=b"0123456789abcdef")
    assert with_topic.encode_value().hex() == (
        "0004000000000000002a0000000705" + b"note".hex() + "0000018bcfe56800" + "010010" + with_topic.topic_id.hex()
    )
    with_expiry = record._replace(expire_timestamp_ms=1_700_000_000_001, leader_epoch=-1)
    assert with_expiry.encode_value().hex() == (
        "0001000000000000002a0004" + b"note".hex() + "0000018bcfe568000000018bcfe56801"
    )
    assert decode(TOPIC, record.encode_key(), with_expiry.encode_value(), CLASSIC_DECODERS) == with_expiry


def test_a_group_byte_for_byte() -> None:
    member = StoredMember("m", None, "c", "/h", 60_000, 10_000, b"\1", b"\2\3")
    record = GroupMetadata("g", "consumer", 5, "range", "m", 1_700_000_000_000, (member,))
    assert record.encode_key().hex() == "0002000167"
    assert record.encode_value() == (
        b"\0\3" b"\0\x08consumer" b"\0\0\0\5" b"\0\5range" b"\0\1m" + bytes.fromhex("0000018bcfe56800")
        + b"\0\0\0\1" b"\0\1m" b"\xff\xff" b"\0\1c" b"\0\2/h" + b"\0\0\xea\x60" b"\0\0\x27\x10"
        + b"\0\0\0\1\1" b"\0\0\0\2\2\3"
    )  # fmt: skip


topic_ids = st.sampled_from((b"", b"0123456789abcdef"))


@given(names, names, int32, int64, int32, names, st.integers(0, 2**63 - 1), topic_ids)
def test_offsets_come_back(
    group: str, topic: str, partition: int, offset: int, epoch: int, note: str, at_ms: int, topic_id: bytes
) -> None:
    record = OffsetCommit(group, topic, partition, offset, epoch, note, at_ms, topic_id=topic_id)
    assert decode(TOPIC, record.encode_key(), record.encode_value(), CLASSIC_DECODERS) == record
    gone = OffsetTombstone(group, topic, partition)
    assert decode(TOPIC, record.encode_key(), gone.encode_value(), CLASSIC_DECODERS) == gone


@given(names, names, int32, st.none() | names, st.none() | names, int64, st.lists(members, max_size=3))
def test_groups_come_back(
    group: str,
    kind: str,
    generation: int,
    protocol: str | None,
    leader: str | None,
    at_ms: int,
    stored: list[StoredMember],
) -> None:
    record = GroupMetadata(group, kind, generation, protocol, leader, at_ms, tuple(stored))
    assert decode(TOPIC, record.encode_key(), record.encode_value(), CLASSIC_DECODERS) == record
    assert decode(TOPIC, record.encode_key(), None, CLASSIC_DECODERS) == GroupTombstone(group)


KEY = OffsetCommit("g", "t", 0, 0, 0, "", 0).encode_key()
OFFSET = (42).to_bytes(8, "big")
TIME = (9).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("value", "epoch", "expire_ms"),
    [
        (b"\0\0" + OFFSET + b"\0\1n" + TIME, -1, -1),
        (b"\0\1" + OFFSET + b"\0\1n" + TIME + TIME, -1, 9),
        (b"\0\2" + OFFSET + b"\0\1n" + TIME, -1, -1),
        (b"\0\3" + OFFSET + b"\0\0\0\7" + b"\0\1n" + TIME, 7, -1),
        (b"\0\4" + OFFSET + b"\0\0\0\7" + b"\2n" + TIME + b"\0", 7, -1),
        (b"\0\4" + OFFSET + b"\0\0\0\7" + b"\2n" + TIME + b"\1\0\x10" + bytes(16), 7, -1),
    ],
    ids=["v0", "v1", "v2", "v3", "v4", "v4 with a topic id"],
)
def test_every_version_of_an_offset_is_read(value: bytes, epoch: int, expire_ms: int) -> None:
    assert decode(TOPIC, KEY, value, CLASSIC_DECODERS) == OffsetCommit("g", "t", 0, 42, epoch, "n", 9, expire_ms)


GENERATION = (5).to_bytes(4, "big")
TIMEOUT = (10_000).to_bytes(4, "big")


@pytest.mark.parametrize(
    "value",
    [
        b"\0\0\0\1c" + GENERATION + b"\0\1r\0\1m" + b"\0\0\0\1" + b"\0\1m\0\1i\0\1h" + TIMEOUT + b"\0\0\0\1s\0\0\0\1a",
        b"\0\1\0\1c" + GENERATION + b"\0\1r\0\1m" + b"\0\0\0\1" + b"\0\1m\0\1i\0\1h" + TIMEOUT * 2
        + b"\0\0\0\1s\0\0\0\1a",
        b"\0\2\0\1c" + GENERATION + b"\0\1r\0\1m" + TIME + b"\0\0\0\1" + b"\0\1m\0\1i\0\1h" + TIMEOUT * 2
        + b"\0\0\0\1s\0\0\0\1a",
        b"\0\3\0\1c" + GENERATION + b"\0\1r\0\1m" + TIME + b"\0\0\0\1" + b"\0\1m\xff\xff\0\1i\0\1h" + TIMEOUT * 2
        + b"\0\0\0\1s\0\0\0\1a",
        b"\0\4\2c" + GENERATION + b"\2r\2m" + TIME + b"\2" + b"\2m\0\2i\2h" + TIMEOUT * 2 + b"\2s\2a\0" + b"\0",
    ],
    ids=["v0", "v1", "v2", "v3", "v4"],
)  # fmt: skip
def test_every_version_of_a_group_is_read(value: bytes) -> None:
    record = decode(TOPIC, GroupTombstone("g").encode_key(), value, CLASSIC_DECODERS)
    assert isinstance(record, GroupMetadata)
    member = StoredMember("m", None, "i", "h", 10_000, 10_000, b"s", b"a")
    assert record[:5] == ("g", "c", 5, "r", "m")
    assert record.members == (member,)
    assert record.state_timestamp_ms in (-1, 9)


def test_what_nobody_knows_is_left_alone_and_damage_is_named() -> None:
    assert decode(TOPIC, b"\x00\x63anything", b"\0\0", CLASSIC_DECODERS) is None
    with pytest.raises(StorageError, match="cannot be decoded"):
        decode(TOPIC, KEY, b"\0\3\0", CLASSIC_DECODERS)
    with pytest.raises(StorageError, match="cannot be decoded"):
        decode(TOPIC, b"\0\1\0\x09short", None, CLASSIC_DECODERS)
