"""The group of a query: commits when something moved, and never at the query's expense."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import FakeCluster, FakeTime

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.spark.progress import group_of
from penstock.spark.source.group_progress import GroupProgress, new_group
from penstock.spark.source.options import GroupOptions
from penstock.wire_client.requests.errors import BrokerUnreachable


def at(offset: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", 0): offset}


def test_commits_what_moved_and_repeats_it_now_and_then() -> None:
    cluster, time = FakeCluster(), FakeTime()
    progress = GroupProgress(cluster, time.clock)
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
        (ApiError(ErrorCode.UNKNOWN_MEMBER_ID), "it has members. Give the query another groupId"),
    ],
)
def test_failure_is_a_warning_and_is_tried_again_later(
    caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    cluster, time = FakeCluster(), FakeTime()
    progress = GroupProgress(cluster, time.clock)
    cluster.refusal = error
    progress.report("g", at(5))
    progress.report("g", at(6))
    assert caplog.messages == [f"group 'g' does not show the progress of the query: {reason}"]
    cluster.refusal = None
    progress.report("g", at(7))
    assert cluster.commits == []
    time.sleep(31)
    progress.report("g", at(7))
    assert cluster.commits == [("g", at(7))]


def test_offsets_that_others_committed_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    cluster, time = FakeCluster(), FakeTime()
    progress = GroupProgress(cluster, time.clock)
    cluster.commit_offsets("billing", at(90))
    for offset in (0, 5, 5):
        progress.report("billing", at(offset))
        time.sleep(31)
    assert cluster.committed["billing"] == at(90)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (
        "group 'billing' does not show the progress of the query: it has offsets of another consumer (90 for t-0)"
        in warning
    )
    assert "Give the query another groupId" in warning
    del cluster.committed["billing"]
    progress.report("billing", at(6))
    assert cluster.committed["billing"] == at(6)
    # Another query, or the same one with a new checkpoint, knows them for a query's.
    GroupProgress(cluster, time.clock).report("billing", at(7))
    assert cluster.committed["billing"] == at(7)


def test_group_that_somebody_takes_over_later_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    cluster, time = FakeCluster(), FakeTime()
    progress = GroupProgress(cluster, time.clock)
    for offset in range(10):
        progress.report("g", at(offset))
    assert cluster.looks == 1, "not before every commit"
    cluster.commit_offsets("g", at(3))
    time.sleep(6)
    progress.report("g", at(11))
    assert cluster.committed["g"] == at(3)
    assert "left alone" in caplog.text


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
