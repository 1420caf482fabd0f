"""The ends of the logs beside a query's offsets: losses, and answers that only look like one."""

from __future__ import annotations

import pytest
from fake_cluster import FakeCluster, FakeTime

from penstock.model.errors import PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.current_ends import PATIENCE_S, CurrentEnds
from penstock.spark.source.offsets import DataLoss, SourceOffset
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import OffsetPlanner


def comparing(cluster: FakeCluster, time: FakeTime | None = None, **options: str) -> CurrentEnds:
    time = time or FakeTime()
    chosen = SourceOptions.for_stream({"subscribe": "clicks"} | options)
    return CurrentEnds(chosen, OffsetPlanner(chosen, cluster, time.clock, time.sleep), time.clock, time.sleep)


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.create("clicks", 100, 50)
    return made


def at(cluster: FakeCluster, *positions: int) -> SourceOffset:
    return SourceOffset(
        "g", dict(cluster.topic_ids), {TopicPartition("clicks", p): offset for p, offset in enumerate(positions)}
    )


def test_ends(cluster: FakeCluster) -> None:
    ends = comparing(cluster).since(at(cluster, 20, 50), "g")
    assert ends == at(cluster, 100, 50)


def test_topic_created_anew_is_named_with_both_ids(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    start = at(cluster, 20, 50)
    cluster.delete("clicks")
    cluster.create("clicks", 200, 200, topic_id=9)
    with pytest.raises(
        DataLoss,
        match=r"topic 'clicks' was deleted and created again: .*id AQEBAQEBAQEBAQEBAQEBAQ, .*id "
        r"CQkJCQkJCQkJCQkJCQkJCQ, .*failOnDataLoss=false.*new checkpointLocation",
    ):
        comparing(cluster).since(start, "g")
    ends = comparing(cluster, failOnDataLoss="false").since(start, "g")
    assert ends == at(cluster, 200, 200)
    assert "was deleted and created again" in caplog.text


def test_what_vanished_is_named(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    start = at(cluster, 20, 50)
    cluster.delete("clicks")
    with pytest.raises(DataLoss, match=r"partition 0 of 'clicks' is gone or .*; partition 1 of 'clicks' is gone or"):
        comparing(cluster).since(start, "g")
    assert comparing(cluster, failOnDataLoss="false").since(start, "g") == SourceOffset("g", {}, {})
    assert "partition 1 of 'clicks' is gone or no longer subscribed to. Continuing" in caplog.text


def test_log_that_became_shorter(cluster: FakeCluster) -> None:
    time = FakeTime()
    with pytest.raises(
        DataLoss, match=r"partition 1 of 'clicks' became shorter: the query is at offset 51, .*ends at 50"
    ):
        comparing(cluster, time).since(at(cluster, 20, 51), "g")
    assert sum(time.slept_s) >= PATIENCE_S, "asked again before it is believed"
    assert time.slept_s[:3] == [0.01, 0.02, 0.04]
    ends = comparing(cluster, failOnDataLoss="false").since(at(cluster, 20, 51), "g")
    assert ends.positions[TopicPartition("clicks", 1)] == 50


@pytest.mark.parametrize("is_fatal", ["true", "false"])
def test_log_that_only_seems_shorter(cluster: FakeCluster, is_fatal: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its leader has just returned, and learns its high watermark from followers."""
    time = FakeTime()
    cluster.log("clicks", 1).end = 40
    time.at(9.0, lambda: setattr(cluster.log("clicks", 1), "end", 53))
    ends = comparing(cluster, time, failOnDataLoss=is_fatal).since(at(cluster, 20, 50), "g")
    assert ends == at(cluster, 100, 53), "nothing is read twice"
    assert caplog.text == ""


@pytest.mark.parametrize("is_fatal", ["true", "false"])
def test_topic_that_only_seems_gone(cluster: FakeCluster, is_fatal: str, caplog: pytest.LogCaptureFixture) -> None:
    time, start = FakeTime(), at(cluster, 20, 50)
    topic_id, logs = cluster.topic_ids.pop("clicks"), dict(cluster.logs)
    cluster.logs.clear()

    def come_back() -> None:
        cluster.topic_ids["clicks"] = topic_id
        cluster.logs |= logs

    time.at(9.0, come_back)
    assert comparing(cluster, time, failOnDataLoss=is_fatal).since(start, "g") == at(cluster, 100, 50)
    assert caplog.text == ""


def test_each_loss_has_its_own_patience(cluster: FakeCluster) -> None:
    time = FakeTime()
    cluster.log("clicks", 1).end = 40
    time.at(8.0, lambda: setattr(cluster.log("clicks", 0), "end", 15))
    time.at(12.0, lambda: setattr(cluster.log("clicks", 0), "end", 101))
    ends = comparing(cluster, time, failOnDataLoss="false").since(at(cluster, 20, 50), "g")
    assert ends == at(cluster, 101, 40)


def test_what_is_no_longer_subscribed_to_needs_no_second_look(cluster: FakeCluster) -> None:
    cluster.create("views", 7, topic_id=2)
    start = SourceOffset("g", dict(cluster.topic_ids), {TopicPartition("views", 0): 7})
    time = FakeTime()
    with pytest.raises(DataLoss, match=r"partition 0 of 'views' is gone or no longer subscribed to"):
        comparing(cluster, time).since(start, "g")
    assert sum(time.slept_s) < 1


def test_topic_that_is_deleted_between_two_questions(cluster: FakeCluster) -> None:
    asked, start = comparing(cluster), at(cluster, 20, 50)
    asked.since(start, "g")
    cluster.delete("clicks")
    with pytest.raises(PenstockError, match="partition 0 of 'clicks' is gone"):
        asked.since(start, "g")
