"""The ends of the logs beside a query's offsets: losses, and answers that only look like one."""

from __future__ import annotations

from dataclasses import replace

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


def known_epochs(start: SourceOffset, *epochs: int) -> SourceOffset:
    return replace(start, epochs={TopicPartition("clicks", p): epoch for p, epoch in enumerate(epochs)})


def elect(cluster: FakeCluster, partition: int, epoch: int, at_offset: int) -> None:
    """A leader whose log has that end."""
    log = cluster.log("clicks", partition)
    log.epoch_ends[log.epoch] = at_offset
    log.epoch = epoch


def test_log_that_was_truncated_and_has_grown_again(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.log("clicks", 0).epoch = cluster.log("clicks", 1).epoch = 3
    start = comparing(cluster).since(at(cluster, 20, 40), "g")
    assert start == known_epochs(at(cluster, 100, 50), 3, 3)
    elect(cluster, 0, 4, at_offset=90)
    elect(cluster, 1, 5, at_offset=50)
    cluster.log("clicks", 0).end = 120
    sentence = r"partition 0 of 'clicks' was truncated to offset 90, and the query is at offset 100: .* epoch 4"
    with pytest.raises(DataLoss, match=sentence):
        comparing(cluster).since(start, "g")
    going_on = comparing(cluster, failOnDataLoss="false")
    ends = going_on.since(start, "g")
    assert ends == replace(known_epochs(at(cluster, 120, 50), 4, 5), begin={TopicPartition("clicks", 0): 90})
    assert going_on.since(start, "g") == ends
    assert caplog.text.count("was truncated") == 1, "one warning, however often the batch has to wait"
    assert going_on.since(ends, "g").begin is None


def test_leader_that_has_everything_is_asked_once(cluster: FakeCluster) -> None:
    cluster.log("clicks", 0).epoch = 3
    asked = comparing(cluster)
    start = asked.since(at(cluster, 100, 50), "g")
    elect(cluster, 0, 4, at_offset=100)
    for _ in range(3):
        assert asked.since(start, "g").epochs[TopicPartition("clicks", 0)] == 4
    assert cluster.asked_epochs == 1


def test_leader_that_does_not_know_the_epoch_proves_nothing(cluster: FakeCluster) -> None:
    cluster.log("clicks", 0).epoch = 4
    start = known_epochs(at(cluster, 100, 50), 3)
    assert comparing(cluster).since(start, "g").begin is None


def test_checkpoint_without_epochs_is_compared_by_length(cluster: FakeCluster) -> None:
    cluster.log("clicks", 0).epoch = 4
    cluster.log("clicks", 0).epoch_ends = {3: 10}
    assert comparing(cluster).since(at(cluster, 100, 50), "g").begin is None
    assert cluster.asked_epochs == 0


def test_answer_of_a_leader_that_was_replaced_does_not_count(cluster: FakeCluster) -> None:
    time = FakeTime()
    log = cluster.log("clicks", 0)
    log.epoch, log.end = 3, 90
    start = known_epochs(at(cluster, 100, 50), 4)
    time.at(5.0, lambda: (setattr(log, "epoch", 4), setattr(log, "end", 101)))
    assert comparing(cluster, time).since(start, "g").positions[TopicPartition("clicks", 0)] == 101
    log.epoch, log.end = 3, 101
    with pytest.raises(DataLoss, match=r"epoch of partition 0 of 'clicks' is 3, and the query has read .* 4"):
        comparing(cluster).since(start, "g")


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
