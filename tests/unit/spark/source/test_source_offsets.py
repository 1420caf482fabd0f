"""Offsets in the checkpoint: the same text for the same offsets, and no guessing at what is not ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.offsets import NO_TOPIC_ID, SourceOffset, UnreadableOffset

A, B = b"\x0f" * 16, b"\xff" * 16


def test_text_is_the_same_for_equal_offsets_and_comes_back() -> None:
    one = SourceOffset(
        "g", {"b": B, "a": A}, {TopicPartition("b", 10): 3, TopicPartition("b", 9): 2, TopicPartition("a", 0): 1}
    )
    other = SourceOffset("g", {"a": A, "b": B}, dict(sorted(one.positions.items())))
    text = json.dumps(one.to_json())
    assert text == json.dumps(other.to_json())
    assert text == (
        '{"version": 1, "group": "g", "topics": {"a": {"id": "Dw8PDw8PDw8PDw8PDw8PDw", "partitions": {"0": 1}}, '
        '"b": {"id": "_____________________w", "partitions": {"9": 2, "10": 3}}}}'
    )
    back = SourceOffset.from_json(json.loads(text))
    assert back == one
    assert json.dumps(back.to_json()) == text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"clicks": {"0": "5"}}, "offsets of version None, but this source reads version 1"),
        ({"logOffset": 5}, "offsets of version None, but this source reads version 1"),
        ({"version": 2, "group": "g", "topics": {}}, "offsets of version 2"),
        ({"version": 1, "topics": {}}, "no readable offsets"),
        ({"version": 1, "group": "g", "topics": {"a": {"id": "??", "partitions": {}}}}, "is not a topic id"),
        (
            {"version": 1, "group": "g", "topics": {"a": {"id": "Dw8PDw8PDw8PDw8PDw8PDw", "partitions": {"x": 1}}}},
            "invalid",
        ),
        ({"version": 1, "group": "g", "topics": []}, "no readable offsets"),
    ],
)
def test_foreign_offsets_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnreadableOffset, match=sentence):
        SourceOffset.from_json(given)


def test_start_of_a_query_and_end_of_its_first_batch() -> None:
    start = SourceOffset("g", {"a": A}, {TopicPartition("a", 0): 1}, is_initial=True)
    first = SourceOffset("g", {"a": A}, {TopicPartition("a", 0): 1}, begin=start.positions)
    later = SourceOffset("g", {"a": A}, {TopicPartition("a", 0): 1})
    assert len({json.dumps(offset.to_json()) for offset in (start, first, later)}) == 3
    for offset in (start, first, later):
        assert SourceOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_offsets_of_sparks_kafka_source() -> None:
    found = SourceOffset.from_json({"a": {"0": 5, "10": 0}, "version": {"0": 1}})
    assert found.positions == {TopicPartition("a", 0): 5, TopicPartition("a", 10): 0, TopicPartition("version", 0): 1}
    assert found.topic_ids == {"a": NO_TOPIC_ID, "version": NO_TOPIC_ID}
    assert found.group == ""


def test_topic_is_told_by_its_id() -> None:
    before = SourceOffset("g", {"a": A, "old": NO_TOPIC_ID}, {})
    assert SourceOffset("g", {"a": B}, {}).is_recreated_since(before, "a")
    assert not SourceOffset("g", {"a": A}, {}).is_recreated_since(before, "a")
    assert not SourceOffset("g", {"old": B}, {}).is_recreated_since(before, "old")
    assert not SourceOffset("g", {"new": B}, {}).is_recreated_since(before, "new")


def test_leader_epochs_are_optional() -> None:
    positions = {TopicPartition("a", 0): 1, TopicPartition("a", 1): 2}
    known = SourceOffset("g", {"a": A}, positions, epochs={TopicPartition("a", 1): 7})
    given = json.loads(json.dumps(known.to_json()))
    assert given["topics"]["a"] == {"id": "Dw8PDw8PDw8PDw8PDw8PDw", "partitions": {"0": 1, "1": 2}, "epochs": {"1": 7}}
    assert SourceOffset.from_json(given) == known
    # As earlier versions wrote them.
    del given["topics"]["a"]["epochs"]
    assert SourceOffset.from_json(given) == SourceOffset("g", {"a": A}, positions)


def test_cluster_and_isolation_level_and_tasks_are_optional() -> None:
    known = SourceOffset("g", {"a": A}, {TopicPartition("a", 0): 1}, cluster="c1", read_committed=True, tasks=4)
    given = json.loads(json.dumps(known.to_json()))
    assert (given["cluster"], given["isolation"], given["tasks"]) == ("c1", "read_committed", 4)
    assert SourceOffset.from_json(given) == known
    assert not {"cluster", "isolation", "tasks"} & SourceOffset("g", {}, {}).to_json().keys()
