from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ProtocolError
from penstock.model.topic_partition import TopicPartition
from penstock.wire_client.requests.subscription import (
    assign_ranges,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def test_bytes_as_kafka_writes_them() -> None:
    assert encode_subscription(["ab"]) == b"\0\0\0\0\0\1\0\2ab\xff\xff\xff\xff"
    assigned = [TopicPartition("t", 1), TopicPartition("t", 3)]
    assert encode_assignment(assigned) == b"\0\0\0\0\0\1\0\1t\0\0\0\2\0\0\0\1\0\0\0\3\xff\xff\xff\xff"


@given(st.lists(names, max_size=5))
def test_subscriptions_come_back(topics: list[str]) -> None:
    assert decode_subscription(encode_subscription(topics)) == tuple(topics)


def test_newer_versions_are_read_as_far_as_they_are_known() -> None:
    assert decode_subscription(b"\0\3\0\0\0\1\0\1t" + b"\xff\xff\xff\xff" + b"\0\0\0\0\0\0\0\1") == ("t",)


def test_nothing_assigned() -> None:
    assert decode_assignment(b"") == ()
    assert decode_assignment(encode_assignment([])) == ()


@given(st.binary(max_size=40))
def test_bytes_that_are_neither_are_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(ProtocolError):
            assert isinstance(decode(data), tuple)


@pytest.mark.parametrize(
    ("count", "sizes"), [(6, {"a": 2, "b": 2, "c": 2}), (7, {"a": 3, "b": 2, "c": 2}), (2, {"a": 1, "b": 1, "c": 0})]
)
def test_ranges_are_neighbours_and_the_first_get_more(count: int, sizes: dict[str, int]) -> None:
    assigned = assign_ranges(dict.fromkeys("cab", ("t",)), {"t": count})
    assert {member: len(partitions) for member, partitions in assigned.items()} == sizes
    assert [p.partition for member in "abc" for p in assigned[member]] == list(range(count))


def test_a_member_gets_only_what_it_subscribed_to() -> None:
    assigned = assign_ranges({"a": ["x"], "b": ["x", "y"]}, {"x": 2, "y": 2, "z": 9})
    assert assigned["a"] == [("x", 0)]
    assert assigned["b"] == [("x", 1), ("y", 0), ("y", 1)]
