"""Splits: what Spark's Kafka source would cut, and never a record twice or not at all."""

from __future__ import annotations

import pickle
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.offsets import SourceOffset
from penstock.spark.source.splits import TASK_RECORDS, Split, SplitGroup, Task, cut, ranges_between, together


def offset(*positions: int, topic_id: int = 1) -> SourceOffset:
    return SourceOffset(
        "g", {"t": bytes([topic_id]) * 16}, {TopicPartition("t", p): at for p, at in enumerate(positions)}
    )


def shape(splits: list[Split]) -> list[tuple[int, int, int]]:
    return [(split.partition, split.start, split.end) for split in splits]


def test_ranges() -> None:
    assert shape(ranges_between(offset(5, 7), offset(5, 9, 3))) == [(1, 7, 9), (2, 0, 3)]
    # A log that became shorter, and one that vanished, have nothing.
    assert shape(ranges_between(offset(5, 7), offset(4))) == []
    # Of a topic created anew everything is read.
    again = ranges_between(offset(50, 7), offset(5, 9, topic_id=2))
    assert shape(again) == [(0, 0, 5), (1, 0, 9)]
    assert again[0].topic_id == b"\x02" * 16
    assert pickle.loads(pickle.dumps(again)) == again
    assert repr(again[0]) == "t-0[0, 5)"


def test_batch_begins_where_its_end_says() -> None:
    begin = {TopicPartition("t", 0): 8, TopicPartition("t", 2): 1000}
    end = replace(offset(9, 9, 1003), begin=begin)
    planned = [(0, 8, 9), (1, 7, 9), (2, 1000, 1003)]
    assert shape(ranges_between(offset(5, 7), end)) == planned
    assert shape(ranges_between(offset(5, 7), SourceOffset.from_json(end.to_json()))) == planned
    # Spark asks for the same offset twice if another source of the query has new records.
    assert ranges_between(end, end) == []
    assert shape(ranges_between(end, offset(9, 9, 1005))) == [(2, 1003, 1005)]
    # A log that was truncated is read again from there.
    assert shape(ranges_between(offset(5, 7), replace(offset(5, 6), begin={TopicPartition("t", 1): 4}))) == [(1, 4, 6)]


def parts(ranges: list[tuple[int, int]], least: int | None, most: int | None = None) -> list[tuple[int, int, int]]:
    return shape(cut([Split("t", index, *edges) for index, edges in enumerate(ranges)], least, most))


def test_one_split_for_a_partition_that_has_something() -> None:
    assert parts([(0, 9), (4, 4), (2, 7)], None) == [(0, 0, 9), (2, 2, 7)]
    assert parts([(0, 9), (2, 7)], 2) == [(0, 0, 9), (1, 2, 7)]


def test_min_partitions_divides_what_is_large() -> None:
    assert parts([(10, 20)], 3) == [(0, 10, 13), (0, 13, 16), (0, 16, 20)]
    # A small one stays whole, and does not take from what the large one is divided into.
    assert parts([(0, 3), (0, 900)], 4) == [(0, 0, 3), (1, 0, 300), (1, 300, 600), (1, 600, 900)]
    # By size, rounded: 2 and 3 of 5.
    assert [partition for partition, _, _ in parts([(0, 400), (0, 600)], 5)] == [0, 0, 1, 1, 1]


def test_max_records_divides_evenly_and_min_partitions_further() -> None:
    assert parts([(0, 10), (0, 4)], None, 4) == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 4)]
    assert parts([(0, 40)], 4, 20) == [(0, 0, 10), (0, 10, 20), (0, 20, 30), (0, 30, 40)]


def splits_of(task: Task) -> tuple[Split, ...]:
    return task.splits if isinstance(task, SplitGroup) else (task,)


def tasks_of(sizes: list[int], tasks: int | None, least: int | None = None, most: int | None = None) -> list[list[int]]:
    """The partitions of each task."""
    splits = cut([Split("t", index, 0, size) for index, size in enumerate(sizes)], least, most)
    return [[split.partition for split in splits_of(task)] for task in together(splits, tasks, least, most)]


def test_small_splits_share_a_task() -> None:
    assert tasks_of([2] * 6, 2) == [[0, 2, 4], [1, 3, 5]]
    assert tasks_of([2] * 6, 6) == [[0], [1], [2], [3], [4], [5]]
    assert tasks_of([2] * 6, None) == [[0], [1], [2], [3], [4], [5]]
    # About the same number of records each.
    assert tasks_of([1, 9, 1, 8, 2, 1], 2) == [[0, 1, 2], [3, 4, 5]]
    assert tasks_of([5], 4) == [[0]]
    assert tasks_of([], 4) == []


def test_many_records_are_worth_more_tasks() -> None:
    assert len(tasks_of([TASK_RECORDS] * 6, 2)) == 6
    assert len(tasks_of([TASK_RECORDS // 2] * 6, 2)) == 3
    assert tasks_of([3 * TASK_RECORDS, 1, 1], 1) == [[0], [1], [2]]


def test_options_that_ask_for_more_tasks_win() -> None:
    assert tasks_of([2] * 6, 2, least=4) == [[0, 4], [1, 5], [2], [3]]
    assert tasks_of([200, 2, 2], 1, least=5) == [[0], [0], [0], [1], [2]]
    assert tasks_of([2] * 6, 1, most=5) == [[0, 1], [2, 3], [4, 5]]
    assert tasks_of([20, 2, 2], 1, most=10) == [[0], [0], [1, 2]]


def test_tasks_of_a_repeated_batch_are_the_same() -> None:
    end = replace(offset(*range(1, 40)), tasks=3)
    start = offset(*[0] * 39)
    first = together(ranges_between(start, end), end.tasks)
    again = SourceOffset.from_json(end.to_json())
    assert together(ranges_between(start, again), again.tasks) == first
    assert len(first) == 3
    assert pickle.loads(pickle.dumps(first)) == first
    assert repr(together(ranges_between(offset(5, 7), offset(6, 9)), 1)) == "[t-0[5, 6) t-1[7, 9)]"


@given(
    st.lists(st.integers(1, 1000), max_size=30),
    st.integers(1, 10),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_every_split_is_in_exactly_one_task(sizes: list[int], tasks: int, least: int | None, most: int | None) -> None:
    splits = cut([Split("t", index, 7, 7 + size) for index, size in enumerate(sizes)], least, most)
    planned = together(splits, tasks, least, most)
    assert sorted(map(repr, splits)) == sorted(repr(split) for task in planned for split in splits_of(task))
    assert most is None or all(task.size <= most for task in planned)
    assert len(planned) >= min(len(splits), tasks, least or tasks)
    for task in planned:
        partitions = [split.partition for split in splits_of(task)]
        assert partitions == sorted(set(partitions))


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_every_offset_is_in_exactly_one_split(
    ranges: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    whole = [Split("t", index, first, first + size) for index, (first, size) in enumerate(ranges)]
    splits = cut(whole, least, most)
    assert splits == cut(whole, least, most)
    assert all(split.size > 0 for split in splits)
    assert most is None or all(split.size <= most for split in splits)
    for split in whole:
        mine = [part for part in splits if part.partition == split.partition]
        offsets = [offset for part in mine for offset in range(part.start, part.end)]
        assert offsets == list(range(split.start, split.end))
