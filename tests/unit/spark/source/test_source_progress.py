"""The group of a query: commits when something moved, and never at the query's expense."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import FakeCluster, FakeTime

from penstock.client.errors import BrokerUnreachable
from penstock.client.fetching import TopicPartition
from penstock.model.errors import ApiError, ErrorCode
from penstock.spark.options import GroupOptions
from penstock.spark.progress import GroupProgress, group_of, new_group


def at(offset: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", 0): offset}


def test_commits_what_moved_and_repeats_it_now_and_then() -> None:
    cluster, time = FakeCluster(), FakeTime()
    progress = GroupProgress(cluster.commit_offsets, time.clock)
    for offset in (5, 5, 5, 6):
        progress.report("g", at(offset))
    assert cluster.commits == [("g", at(5)), ("g", at(6))]
    time.sleep(3601)
    progress.report("g", at(6))
    assert len(cluster.commits) == 3
    progress.report("g", {})
    assert len(cluster.commits) == 3


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BrokerUnreachable("nobody at a:1"), "nobody at a:1"),
        (ApiError(ErrorCode.UNKNOWN_MEMBER_ID), "it has members of its own. Give the query another groupId"),
    ],
)
def test_failure_is_a_warning_and_is_tried_again_later(
    caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    cluster, time = FakeCluster(), FakeTime()
    progress = GroupProgress(cluster.commit_offsets, time.clock)
    cluster.refusal = error
    progress.report("g", at(5))
    progress.report("g", at(6))
    assert caplog.messages == [f"the progress of the query is not shown by group 'g': {reason}"]
    cluster.refusal = None
    progress.report("g", at(7))
    assert cluster.commits == []
    time.sleep(31)
    progress.report("g", at(7))
    assert cluster.commits == [("g", at(7))]


def test_group_is_made_up_once_unless_named() -> None:
    assert new_group(GroupOptions("mine", "p")) == "mine"
    made = new_group(GroupOptions(None, "p"))
    assert made.startswith("p-")
    assert len(made) == 10
    assert made != new_group(GroupOptions(None, "p"))


@pytest.mark.parametrize(
    ("progress", "group"),
    [
        (None, None),
        ({"sources": []}, None),
        ({"sources": [{"endOffset": None}, {"endOffset": '{"a":{"0":1}}'}]}, None),
        ({"sources": [{"endOffset": 5}, {"endOffset": json.dumps({"version": 1, "group": "g", "topics": {}})}]}, "g"),
        ({"sources": [{"endOffset": {"version": 1, "group": "g", "topics": {}}}]}, "g"),
    ],
)
def test_group_of_a_query(progress: Any, group: str | None) -> None:
    assert group_of(SimpleNamespace(lastProgress=progress)) == group
