"""KIP-848 records: bytes as Kafka writes them, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.group.consumer_records import (
    KEY_TYPES,
    ClassicProtocols,
    ConsumerGroupCurrentMember,
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    ConsumerGroupPartitionMetadata,
    ConsumerGroupRecord,
    ConsumerGroupRegex,
    ConsumerGroupTargetMember,
    ConsumerGroupTargetMetadata,
    GroupEpoch,
    MemberAssignment,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
    TargetEpoch,
    decode,
)
from penstock.model.errors import StorageError


def encode(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    return record.encode_key(), record.encode_value()


names = st.text(max_size=20)
maybe = st.none() | names
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
assignments = st.dictionaries(
    st.binary(min_size=16, max_size=16), st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=5), max_size=4
)
tuples_of_names = st.lists(names, max_size=4).map(tuple)
classic = st.builds(ClassicProtocols, int32, st.lists(st.tuples(names, st.binary(max_size=300)), max_size=3).map(tuple))
members = st.builds(
    MemberMetadata, maybe, maybe, names, names, tuples_of_names, maybe, int32, maybe, st.none() | classic
)
currents = st.builds(MemberAssignment, int32, int32, st.sampled_from(MemberState), assignments, assignments)
records = st.one_of(
    st.builds(ConsumerGroupMetadata, names, st.none() | st.builds(GroupEpoch, int32, int64)),
    st.builds(ConsumerGroupPartitionMetadata, names),
    st.builds(ConsumerGroupMember, names, names, st.none() | members),
    st.builds(ConsumerGroupTargetMetadata, names, st.none() | st.builds(TargetEpoch, int32, int64)),
    st.builds(ConsumerGroupTargetMember, names, names, st.none() | assignments),
    st.builds(ConsumerGroupCurrentMember, names, names, st.none() | currents),
    st.builds(ConsumerGroupRegex, names, names, st.none() | st.builds(ResolvedRegex, tuples_of_names, int64, int64)),
)


@given(records)
def test_a_record_survives_its_bytes(record: ConsumerGroupRecord) -> None:
    key, value = encode(record)
    assert int.from_bytes(key[:2], "big") in KEY_TYPES
    again = decode(key, value)
    assert (type(again), again) == (type(record), record)


@given(records, st.data())
def test_cut_bytes_are_a_storage_error_or_a_record_but_nothing_else(
    record: ConsumerGroupRecord, data: st.DataObject
) -> None:
    key, value = encode(record)
    if value is None:
        return
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    try:
        again = decode(key, cut)
    except StorageError:
        return
    assert type(again) is type(record)


def test_the_bytes_of_a_group_epoch() -> None:
    record = ConsumerGroupMetadata("g", GroupEpoch(7, 1))
    assert encode(record) == (b"\0\x03\0\x01g", b"\0\0\0\0\0\x07\x01\0\x08\0\0\0\0\0\0\0\x01")


def test_the_bytes_of_a_current_assignment() -> None:
    topic = bytes(range(16))
    held = MemberAssignment(3, 2, MemberState.UNREVOKED_PARTITIONS, {topic: frozenset({5, 1})}, {})
    key, value = encode(ConsumerGroupCurrentMember("g", "m", held))
    assert key == b"\0\x08\0\x01g\0\x01m"
    partitions = b"\x03\0\0\0\x01\0\0\0\x05\0"
    assert value == b"\0\0\0\0\0\x03\0\0\0\x02\x01" + b"\x02" + topic + partitions + b"\x01" + b"\0"


def test_tagged_fields_of_a_newer_kafka_are_skipped() -> None:
    topic = bytes(16)
    epochs = b"\x01\0\x05\x02\0\0\0\x09"  # one tag: number 0, five bytes, an array of one epoch
    value = b"\0\0\0\0\0\x03\0\0\0\x02\0" + b"\x02" + topic + b"\x02\0\0\0\x04" + epochs + b"\x01" + b"\0"
    record = decode(b"\0\x08\0\x01g\0\x01m", value)
    assert record == ConsumerGroupCurrentMember("g", "m", MemberAssignment(3, 2, assigned={topic: frozenset({4})}))


def test_a_member_state_from_the_future_is_unknown() -> None:
    value = b"\0\0\0\0\0\x03\0\0\0\x02\x09\x01\x01\0"
    record = decode(b"\0\x08\0\x01g\0\x01m", value)
    assert isinstance(record, ConsumerGroupCurrentMember)
    assert record.value is not None
    assert record.value.state is MemberState.UNKNOWN


def test_a_value_version_from_the_future_is_refused() -> None:
    with pytest.raises(StorageError, match="version 9"):
        decode(b"\0\x03\0\x01g", b"\0\x09\0\0\0\x01\0")
