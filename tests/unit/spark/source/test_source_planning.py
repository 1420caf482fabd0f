"""The cluster as the driver sees it: positions as numbers, and losses."""

from __future__ import annotations

import pytest
from fake_cluster import FakeCluster, FakeTime

from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.known import InvalidOption
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import OffsetPlanner

CLICKS = {"subscribe": "clicks"}


def planner(cluster: FakeCluster, time: FakeTime | None = None, **options: str) -> OffsetPlanner:
    time = time or FakeTime()
    return OffsetPlanner(SourceOptions.for_stream(CLICKS | options), cluster, time.clock, time.sleep)


def started(cluster: FakeCluster, **options: str) -> dict[int, int]:
    chosen = SourceOptions.for_stream(CLICKS | options)
    resolved = OffsetPlanner(chosen, cluster, sleep=FakeTime().sleep).resolve(chosen.starting, is_start=True)
    assert resolved.topic_ids.keys() == {"clicks"}
    return {tp.partition: offset for tp, offset in resolved.offsets.items()}


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.create("clicks", 100, 50)
    made.log("clicks", 0).first = 10
    made.log("clicks", 0).timestamps_ms = [1000 + index for index in range(90)]
    made.log("clicks", 1).timestamps_ms = [500] * 50
    return made


def test_where_a_query_begins(cluster: FakeCluster) -> None:
    assert started(cluster) == {0: 100, 1: 50}
    assert started(cluster, startingOffsets="earliest") == {0: 10, 1: 0}
    assert started(cluster, startingOffsets='{"clicks":{"0":33,"1":-1}}') == {0: 33, 1: 50}
    assert started(cluster, startingOffsets='{"clicks":{"0":-2,"1":-2}}') == {0: 10, 1: 0}
    cluster.committed["g"] = {TopicPartition("clicks", 1): 7}
    assert started(cluster, startingOffsets="group", groupId="g") == {0: 10, 1: 7}
    assert started(cluster, startingTimestamp="400") == {0: 10, 1: 0}
    by_timestamp = '{"clicks":{"0":1005,"1":9000}}'
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert started(cluster, startingOffsetsByTimestamp=by_timestamp, **strategy) == {0: 15, 1: 50}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"startingOffsets": '{"other":{"0":1}}'},
            "names topic 'other', which is not subscribed to: the query reads topic 'clicks'",
        ),
        ({"startingOffsets": '{"clicks":{"0":1}}'}, "leaves out partition 1 of 'clicks': name every partition"),
        ({"startingOffsets": '{"clicks":{"0":1,"1":1,"2":1}}'}, "names partition 2 of 'clicks', which the query does"),
        ({"startingTimestamp": "1001"}, "partition 1 of 'clicks' has no record with a timestamp of 1001 or later"),
        ({"subscribe": "clicks,views"}, "there is no topic 'views': create it first"),
    ],
)
def test_where_a_query_cannot_begin(cluster: FakeCluster, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        started(cluster, **options)


def test_what_is_read(cluster: FakeCluster) -> None:
    cluster.create("clicks-eu", 5, topic_id=2)
    cluster.create("__internal-clicks", 5, topic_id=3)
    options = SourceOptions.for_stream({"subscribePattern": "clicks"})
    assert set(OffsetPlanner(options, cluster).existing().topic_ids) == {"clicks", "clicks-eu"}
    options = SourceOptions.for_stream({"assign": '{"clicks":[1]}'})
    assert OffsetPlanner(options, cluster).existing().partitions == (TopicPartition("clicks", 1),)
    options = SourceOptions.for_stream({"assign": '{"clicks":[1,2]}'})
    with pytest.raises(InvalidOption, match="there is no partition 2 of 'clicks'"):
        OffsetPlanner(options, cluster, sleep=FakeTime().sleep).existing()


def test_topics_are_asked_for_now_and_then(cluster: FakeCluster) -> None:
    time = FakeTime()
    asked = planner(cluster, time)
    for _ in range(10):
        asked.found()
        time.sleep(0.05)
    assert cluster.asked_topics == 1
    time.sleep(0.6)
    asked.found()
    assert cluster.asked_topics == 2
