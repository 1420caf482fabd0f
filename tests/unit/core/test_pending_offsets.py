"""Offsets of open transactions: the order of the log decides, whoever commits last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.group.pending_offsets import PendingOffsets
from penstock.core.group.records import OffsetCommit

A, B, C = 1, 2, 3


def commit(offset: int, group: str = "g", topic: str = "t", partition: int = 0) -> OffsetCommit:
    return OffsetCommit(group, topic, partition, offset, -1, "", 0)


T0, T1, H0 = ("g", "t", 0), ("g", "t", 1), ("h", "t", 0)


def test_what_a_transaction_has_committed_counts_at_its_end() -> None:
    pending = PendingOffsets()
    pending.add(A, commit(1))
    pending.add(A, commit(2))
    pending.add(A, commit(5, partition=1))
    pending.add(B, commit(9, group="h"))
    assert (len(pending), pending.has(T0), pending.has_group("h")) == (2, True, True)
    assert set(pending.of_group("g")) == {T0, T1}
    assert pending.end(A, is_commit=True) == [commit(2), commit(5, partition=1)]
    assert (len(pending), pending.has(T0), pending.has_group("g"), pending.of_group("g")) == (1, False, False, [])
    assert pending.end(A, is_commit=True) == []
    assert pending.end(B, is_commit=False) == []
    assert not pending


def test_a_later_commit_is_not_taken_back_by_an_earlier_one() -> None:
    pending = PendingOffsets()
    pending.add(A, commit(1))
    pending.add(B, commit(2))
    assert pending.end(B, is_commit=True) == [commit(2)]
    assert not pending.has(T0)
    assert pending.end(A, is_commit=True) == []
    pending.add(A, commit(1))
    pending.add(B, commit(2))
    assert pending.end(A, is_commit=True) == [commit(1)]
    assert pending.has(T0), "the later one is still open"
    assert pending.end(B, is_commit=True) == [commit(2)]


def test_one_who_commits_again_comes_last() -> None:
    pending = PendingOffsets()
    pending.add(A, commit(1))
    pending.add(B, commit(2))
    pending.add(A, commit(3))
    assert pending.end(A, is_commit=True) == [commit(3)]
    assert pending.end(B, is_commit=True) == []


def test_an_abort_leaves_the_others_alone() -> None:
    pending = PendingOffsets()
    pending.add(A, commit(1))
    pending.add(B, commit(2))
    assert pending.end(B, is_commit=False) == []
    assert pending.has(T0)
    assert pending.end(A, is_commit=True) == [commit(1)]


def test_a_commit_outside_of_transactions_discards_what_came_before_it() -> None:
    pending = PendingOffsets()
    pending.add(A, commit(1))
    pending.add(A, commit(5, partition=1))
    pending.add(B, commit(2))
    pending.supersede(T0)
    pending.supersede(("nobody", "t", 0))
    assert (len(pending), pending.has(T0), pending.has(T1)) == (1, False, True)
    assert pending.end(A, is_commit=True) == [commit(5, partition=1)]
    assert pending.end(B, is_commit=True) == []


producers = st.sampled_from([A, B, C])
places = st.sampled_from([T0, T1, H0])
acts = (
    st.tuples(st.just("add"), producers, places)
    | st.tuples(st.just("supersede"), producers, places)
    | st.tuples(st.sampled_from(["commit", "abort"]), producers, places)
)


@given(st.lists(acts, max_size=40))
def test_against_a_list(history: list[tuple[str, int, tuple[str, str, int]]]) -> None:
    pending = PendingOffsets()
    waiting: list[tuple[int, OffsetCommit]] = []  # in the order of the log
    for offset, (act, producer_id, place) in enumerate(history):
        match act:
            case "add":
                waiting = [one for one in waiting if one[0] != producer_id or one[1][:3] != place]
                waiting.append((producer_id, commit(offset, *place)))
                pending.add(producer_id, commit(offset, *place))
            case "supersede":
                waiting = [one for one in waiting if one[1][:3] != place]
                pending.supersede(place)
            case "abort":
                waiting = [one for one in waiting if one[0] != producer_id]
                assert pending.end(producer_id, is_commit=False) == []
            case "commit":
                counts = [one for producer, one in waiting if producer == producer_id]
                assert sorted(pending.end(producer_id, is_commit=True)) == sorted(counts)
                behind = {one[:3]: one.offset for one in counts}
                waiting = [
                    (producer, one)
                    for producer, one in waiting
                    if producer != producer_id and one.offset > behind.get(one[:3], -1)
                ]
        open_places = {one[:3] for _, one in waiting}
        assert len(pending) == len({producer for producer, _ in waiting})
        for group in ("g", "h"):
            assert set(pending.of_group(group)) == {one for one in open_places if one[0] == group}
            assert pending.has_group(group) == any(one[0] == group for one in open_places)
        assert all(pending.has(one) == (one in open_places) for one in (T0, T1, H0))
