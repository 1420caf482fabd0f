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
    epochs_of,
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
    MemberMetadata,
    maybe,
    maybe,
    names,
    names,
    tuples_of_names,
    st.none() | st.text(min_size=1, max_size=20),
    int32,
    maybe,
    st.none() | classic,
)


@st.composite
def currents(draw: st.DrawFn) -> MemberAssignment:
    made = draw(st.builds(MemberAssignment, int32, int32, st.sampled_from(MemberState), assignments, assignments))
    held = epochs_of({}, 0, made.assigned, made.pending_revocation)
    return made._replace(since={topic: {index: draw(int32) for index in found} for topic, found in held.items()})


records = st.one_of(
    st.builds(ConsumerGroupMetadata, names, st.none() | st.builds(GroupEpoch, int32, int64)),
    st.builds(ConsumerGroupPartitionMetadata, names),
    st.builds(ConsumerGroupMember, names, names, st.none() | members),
    st.builds(ConsumerGroupTargetMetadata, names, st.none() | st.builds(TargetEpoch, int32, int64)),
    st.builds(ConsumerGroupTargetMember, names, names, st.none() | assignments),
    st.builds(ConsumerGroupCurrentMember, names, names, st.none() | currents()),
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
    partitions = b"\x03\0\0\0\x01\0\0\0\x05" + b"\x01\0\x09\x03\0\0\0\x03\0\0\0\x03"  # and their epochs, tag 0
    assert value == b"\0\0\0\0\0\x03\0\0\0\x02\x01" + b"\x02" + topic + partitions + b"\x01" + b"\0"


def test_tagged_fields_of_a_newer_kafka_are_skipped() -> None:
    topic = bytes(16)
    unknown = b"\x01\x09\x05\x02\0\0\0\x09"  # one tag: number 9, five bytes
    value = b"\0\0\0\0\0\x03\0\0\0\x02\0" + b"\x02" + topic + b"\x02\0\0\0\x04" + unknown + b"\x01" + b"\0"
    record = decode(b"\0\x08\0\x01g\0\x01m", value)
    held = MemberAssignment(3, 2, assigned={topic: frozenset({4})}, since={topic: {4: 3}})
    assert record == ConsumerGroupCurrentMember("g", "m", held)


def test_a_current_assignment_as_kafka_writes_it() -> None:
    """Bytes that Kafka 4.3.1 wrote; before 4.3 it wrote no epochs, and those are the member's then."""
    topic = bytes.fromhex("bce24c0250be4d04a48c502c394b3479")
    revoking = (
        "000000000002000000020102bce24c0250be4d04a48c502c394b347902000000000100050200000002"
        "02bce24c0250be4d04a48c502c394b34790200000001010005020000000200"
    )
    state = MemberState.UNREVOKED_PARTITIONS
    pair = {topic: frozenset({0})}, {topic: frozenset({1})}
    value = MemberAssignment(2, 2, state, *pair, since={topic: {0: 2, 1: 2}})
    record = ConsumerGroupCurrentMember("s6k1", "a", value)
    assert decode(record.encode_key(), bytes.fromhex(revoking)) == record
    assert encode(record)[1] == bytes.fromhex(revoking)
    later = "000000000003000000020002bce24c0250be4d04a48c502c394b3479020000000001000502000000020100"
    value = MemberAssignment(3, 2, assigned=pair[0], since={topic: {0: 2}})
    assert decode(record.encode_key(), bytes.fromhex(later)) == record._replace(value=value)
    bare = "000000000003000000020002bce24c0250be4d04a48c502c394b347902000000000001" + "00"
    assert decode(record.encode_key(), bytes.fromhex(bare)) == record._replace(
        value=value._replace(since={topic: {0: 3}})
    )


def test_a_member_state_from_the_future_is_unknown() -> None:
    value = b"\0\0\0\0\0\x03\0\0\0\x02\x09\x01\x01\0"
    record = decode(b"\0\x08\0\x01g\0\x01m", value)
    assert isinstance(record, ConsumerGroupCurrentMember)
    assert record.value is not None
    assert record.value.state is MemberState.UNKNOWN


def test_a_value_version_from_the_future_is_refused() -> None:
    with pytest.raises(StorageError, match="version 9"):
        decode(b"\0\x03\0\x01g", b"\0\x09\0\0\0\x01\0")


KAFKAS_MEMBER = "00 00 00 00 0a 77 69 72 65 2d 74 65 73 74 0b 2f 31 32 37 2e 30 2e 30 2e 31 02 02 74 01 "


def test_members_as_kafka_writes_them() -> None:
    """Bytes that Kafka 4.3.1 wrote: of a member that speaks the new protocol, and of one of the classic."""
    plain = bytes.fromhex(KAFKAS_MEMBER + "00 00 ea 60 00 01 00 01 00")
    record = decode(b"\0\x05\0\x03Ex1\0\x01k", plain)
    member = MemberMetadata(None, None, "wire-test", "/127.0.0.1", ("t",), None, 60_000, None)
    assert record == ConsumerGroupMember("Ex1", "k", member)
    protocols = "02 06 72 61 6e 67 65 0e 00 00 00 00 00 01 00 01 74 ff ff ff ff 00 00"
    classic = bytes.fromhex(KAFKAS_MEMBER + "00 00 75 30 00 01 00 1c 01 00 00 27 10" + protocols)
    record = decode(b"\0\x05\0\x03Ex1\0\x01c", classic)
    spoken = ClassicProtocols(10_000, (("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),))
    assert record == ConsumerGroupMember("Ex1", "c", member._replace(rebalance_timeout_ms=30_000, classic=spoken))
