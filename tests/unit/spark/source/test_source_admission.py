"""How a limit is shared among partitions, and when a small batch has to wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.admission import TriggerGate, backlog, limit_bytes, limit_offsets


def at(*offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", partition): offset for partition, offset in enumerate(offsets)}


def test_shares_are_by_backlog() -> None:
    assert limit_offsets(at(0, 100), at(300, 200), 100) == at(75, 125)
    # Nothing to share: all of it.
    assert limit_offsets(at(0, 100), at(30, 120), 100) == at(30, 120)
    # The small are not starved.
    assert limit_offsets(at(0, 0), at(1_000_000, 1), 10) == at(9, 1)
    # One without a backlog stays, even if it became shorter.
    assert limit_offsets(at(10, 0), at(5, 50), 20) == at(5, 20)


def test_bytes_are_shared_by_bytes() -> None:
    # 100 records of 1 KB and 100 of 9 KB wait, a tenth of it may come.
    assert limit_bytes(at(0, 0), at(100, 100), 100_000, dict(zip(at(0, 0), (1000.0, 9000.0), strict=True))) == at(
        10, 10
    )
    assert limit_bytes(at(0, 0), at(5, 5), 100_000, dict.fromkeys(at(0, 0), 1000.0)) == at(5, 5)
    # Never nothing, however large a record is.
    assert limit_bytes(at(0), at(5), 10, dict.fromkeys(at(0), 1000.0)) == at(1)


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), min_size=1, max_size=8), st.integers(1, 10**9)
)
def test_limit_moves_on_and_is_kept(ranges: list[tuple[int, int]], limit: int) -> None:
    start, end = at(*(first for first, _ in ranges)), at(*(first + size for first, size in ranges))
    limited = limit_offsets(start, end, limit)
    waiting = backlog(start, end)
    assert limited.keys() == end.keys()
    assert all(start[tp] < limited[tp] <= end[tp] for tp in waiting)
    # One more for each partition that would have had less than one.
    assert sum(backlog(start, limited).values()) <= limit + len(waiting)


def test_gate() -> None:
    gate = TriggerGate(100, 5000)
    assert not gate.is_open(0, 0)
    assert gate.is_open(1, 10)
    assert not gate.is_open(99, 5009)
    assert gate.is_open(100, 5009)
    assert not gate.is_open(99, 10_008)
    assert gate.is_open(1, 10_009)
    assert not gate.is_open(0, 99_999)
    assert gate.is_open(1, 99_999)
