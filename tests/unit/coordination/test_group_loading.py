"""Which shard a group belongs to, and reading the last value of every key as the plain way would."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.coordination.loading import Records, _add, reference_latest
from penstock.coordination.shard_host import partition_of
from penstock.records.batch import HEADER_SIZE, read_header
from penstock.records.builder import MalformedRecords, Record, build_batch

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"long" * 50])
records = st.builds(
    Record,
    keys,
    st.none() | st.binary(max_size=300),
    st.just((("name", b"value"),)) | st.just(()),
    st.integers(0, 10_000_000),
)


@given(st.lists(st.lists(records, min_size=1, max_size=8), max_size=4))
def test_the_last_value_of_every_key(batches: list[list[Record]]) -> None:
    fast: Records = {}
    plain: Records = {}
    for batch in batches:
        data = build_batch(batch)
        header, payload = read_header(data), data[HEADER_SIZE:]
        _add(header, payload, fast)
        reference_latest(header, payload, plain)
    assert list(fast.items()) == list(plain.items())


@given(st.integers(0, 2**32))
@example(21686040)
def test_damage_is_named_and_never_read_past(seed: int) -> None:
    rng = random.Random(seed)
    data = build_batch([Record(b"k%d" % number, b"v" * number, (), 5) for number in range(20)])
    header, payload = read_header(data), bytearray(data[HEADER_SIZE:])
    for _ in range(3):
        payload[rng.randrange(len(payload))] = rng.randrange(256)
    cut = bytes(payload[: rng.randrange(1, len(payload))])
    latest: Records = {}
    with contextlib.suppress(MalformedRecords):
        _add(header, cut, latest)
    assert sum(len(key) + len(value or b"") for key, value in latest.items()) <= len(cut)


def java_hash(text: str) -> int:
    """String.hashCode, as its documentation says it."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    value = sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 100))
def test_groups_lie_where_kafka_puts_them(group: str, count: int) -> None:
    code = java_hash(group)
    assert partition_of(group, count) == (0 if code == -(2**31) else abs(code)) % count


@pytest.mark.parametrize(
    ("group", "partition"),
    # By hand: "g" is 103; "a group" and the two below have hash codes that java prints as given here.
    [("g", 103 % 50), ("polygenelubricants", 0), ("", 0), ("\U0001f600", abs(1772899 % 2**32) % 50)],
)
def test_some_known_groups(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition
