"""A running query without Spark: what it answers to the calls that Spark makes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Producer
from fake_cluster import FakeCluster, FakeTime
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record, build_batch
from penstock.sdk import BlockingAdmin
from penstock.spark.source.columns import source_schema
from penstock.spark.source.current_ends import CurrentEnds
from penstock.spark.source.group_progress import GroupProgress
from penstock.spark.source.latest_ends import LatestEnds
from penstock.spark.source.offsets import DataLoss, SourceOffset
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import OffsetPlanner
from penstock.spark.source.record_sizes import RecordSizes
from penstock.spark.source.splits import Split
from penstock.spark.source.stream_reader import PenstockStreamReader, StreamDriver
from penstock.testing import Broker


class FakeNews:
    """Waits, in steps of a millisecond, until a log has grown."""

    def __init__(self, cluster: FakeCluster, time: FakeTime) -> None:
        self.cluster, self.time = cluster, time
        self.waits_s: list[float] = []

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> bool:
        begin = self.time.now_s
        has_news = False
        while not has_news and self.time.now_s - begin < timeout_s:
            self.time.sleep(0.001)
            has_news = any(log.end > positions[tp] for tp, log in self.cluster.logs.items() if tp in positions)
        self.waits_s.append(self.time.now_s - begin)
        return has_news


class Query:
    """A reader as the process beside Spark's driver has it."""

    def __init__(self, cluster: FakeCluster, **options: str) -> None:
        given = {"subscribe": "clicks", "startingOffsets": "earliest"} | options
        if "subscribePattern" in options:
            del given["subscribe"]
        self.cluster, self.time = cluster, FakeTime()
        self.reader = PenstockStreamReader(given, source_schema(False))
        parsed = SourceOptions.for_stream(given)
        self.news = FakeNews(cluster, self.time)
        planner = OffsetPlanner(parsed, cluster, self.time.clock, self.time.sleep)
        ends = CurrentEnds(parsed, planner, self.time.clock, self.time.sleep)
        latest = LatestEnds(ends, self.news, self.time.clock, self.time.sleep)
        self.reader._driver = StreamDriver(
            parsed,
            planner,
            GroupProgress(cluster, self.time.clock),
            RecordSizes(
                lambda positions: dict.fromkeys(positions, build_batch([Record(None, b"x" * 939)] * 10)),
                self.time.clock,
                lambda work: work(),
            ),
            latest,
            self.time.clock,
        )

    def next(self, start: Mapping[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
        return self.reader.latestOffset(dict(start), limit or self.reader.getDefaultReadLimit())

    def after(self, seconds: float) -> Query:
        self.time.sleep(seconds)
        return self


def positions(offset: Mapping[str, Any], topic: str = "clicks") -> list[int]:
    return list(offset["topics"][topic]["partitions"].values())


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.create("clicks", 300, 100)
    return made


def test_reads_on_and_commits_what_is_finished(cluster: FakeCluster) -> None:
    query = Query(cluster)
    initial = query.reader.initialOffset()
    assert query.reader.initialOffset() == initial
    assert initial["group"].startswith("spark-penstock-")
    first = query.next(initial)
    assert positions(first) == [300, 100]
    assert first["group"] == initial["group"]
    cluster.log("clicks", 0).end = 310
    second = query.after(1).next(first)
    assert positions(second) == [310, 100]
    query.reader.commit(first)
    assert query.after(1).next(second) == second
    assert query.reader.reportLatestOffset() == second
    tps = [TopicPartition("clicks", 0), TopicPartition("clicks", 1)]
    wanted = [(0, 0), (300, 100), (310, 100)]
    assert cluster.commits == [(initial["group"], dict(zip(tps, ends, strict=True))) for ends in wanted]


def test_idle_query_waits_for_news_and_looks_once_a_second(cluster: FakeCluster) -> None:
    query = Query(cluster)
    end = query.next(query.reader.initialOffset())
    assert query.after(1).next(end) == end
    asked, began = cluster.asked_offsets, query.time.now_s
    for _ in range(100):
        assert query.after(0.01).next(end) == end
    elapsed_s = query.time.now_s - began
    assert query.news.waits_s == pytest.approx([0.1] * 100, abs=0.002)
    assert cluster.asked_offsets - asked <= elapsed_s + 1
    assert cluster.asked_topics <= elapsed_s + 3


def test_record_that_arrives_ends_the_wait(cluster: FakeCluster) -> None:
    query = Query(cluster)
    end = query.next(query.reader.initialOffset())
    assert query.after(0.05).next(end) == end

    def arrive() -> None:
        cluster.log("clicks", 1).end = 101

    query.time.at(0.04, arrive)
    began = query.time.now_s
    assert positions(query.after(0.01).next(end)) == [300, 101]
    assert query.time.now_s - began == pytest.approx(0.04, abs=0.002)


def test_only_a_question_that_follows_an_idle_answer_at_once_waits(cluster: FakeCluster) -> None:
    query = Query(cluster)
    end = query.next(query.reader.initialOffset())
    # After a batch; after another source of the query, or its trigger, took its time.
    assert query.next(end) == end
    for _ in range(3):
        assert query.after(0.15).next(end) == end
    assert query.news.waits_s == []
    assert query.after(0.01).next(end) == end
    assert len(query.news.waits_s) == 1


def test_two_looks_have_some_time_between_them(cluster: FakeCluster) -> None:
    """Even if each wait says that there is news, as after a failure."""
    query = Query(cluster)
    end = query.next(query.reader.initialOffset())
    query.news.wait = lambda positions, timeout_s: True  # type: ignore[method-assign]
    asked = cluster.asked_offsets
    for _ in range(5):
        assert query.next(end) == end
    assert cluster.asked_offsets - asked == 5
    assert query.time.slept_s == pytest.approx([0.01] * 5)


def test_query_that_waits_for_more_records_waits_for_news(cluster: FakeCluster) -> None:
    query = Query(cluster, minOffsetsPerTrigger="50", maxTriggerDelay="10s")
    end = query.next(query.reader.initialOffset())
    cluster.log("clicks", 0).end = 310
    for _ in range(4):
        assert query.after(0.01).next(end) == end
    assert len(query.news.waits_s) == 3
    cluster.log("clicks", 0).end = 350
    assert positions(query.after(0.01).next(end)) == [350, 100]


def test_available_now_waits_for_nothing(cluster: FakeCluster) -> None:
    query = Query(cluster)
    query.reader.prepareForTriggerAvailableNow()
    end = query.next(query.reader.initialOffset())
    for _ in range(3):
        assert query.after(0.01).next(end) == end
    assert query.news.waits_s == []


def test_busy_query_does_not_wait(cluster: FakeCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="40")
    end = query.next(query.reader.initialOffset())
    asked = cluster.asked_offsets
    for _ in range(3):
        end = query.next(end)
    assert positions(end) == [120, 40]
    assert query.time.slept_s == []
    assert cluster.asked_offsets == asked


def test_limits(cluster: FakeCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="40")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(40)
    initial = query.reader.initialOffset()
    assert positions(query.next(initial)) == [30, 10]
    # Trigger.Once reads all there is.
    assert positions(query.next(initial, ReadAllAvailable())) == [300, 100]

    query = Query(cluster, maxBytesPerTrigger="100000")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(100_000)
    # About 950 bytes a record: a little more than a hundred of them.
    assert positions(query.next(query.reader.initialOffset())) == [78, 26]

    assert Query(cluster).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_minimum_waits_for_its_delay(cluster: FakeCluster) -> None:
    query = Query(cluster, minOffsetsPerTrigger="50", maxTriggerDelay="10s")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(50)
    end = query.next(query.reader.initialOffset())
    assert positions(end) == [300, 100]
    cluster.log("clicks", 1).end = 149
    assert query.after(1).next(end) == end
    cluster.log("clicks", 1).end = 150
    assert positions(query.after(1).next(end)) == [300, 150]
    end = query.next(end)
    cluster.log("clicks", 1).end = 151
    assert query.after(9).next(end) == end
    assert positions(query.after(2).next(end)) == [300, 151]


def test_available_now_ends_at_what_was_there(cluster: FakeCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="200", minOffsetsPerTrigger="150")
    query.reader.prepareForTriggerAvailableNow()
    first = query.next(query.reader.initialOffset())
    assert positions(first) == [150, 50]
    cluster.log("clicks", 0).end = 1000
    cluster.logs[TopicPartition("clicks", 2)] = cluster.log("clicks", 1)
    second = query.after(5).next(first)
    assert positions(second) == [300, 100]
    # The last call commits the last batch.
    assert query.next(second) == second
    assert list(cluster.commits[-1][1].values()) == [300, 100]


def test_batch_zero_run_again_begins_where_it_began(cluster: FakeCluster) -> None:
    """Its start is not in Spark's checkpoint, and would be another today."""
    starting = {"startingOffsets": '{"clicks":{"0":-1,"1":-2}}'}
    query = Query(cluster, **starting)
    initial = query.reader.initialOffset()
    assert positions(initial) == [300, 0]
    cluster.log("clicks", 0).end = 305
    cluster.logs[TopicPartition("clicks", 2)] = type(cluster.log("clicks", 0))(end=7)
    first = query.after(2).next(initial)
    planned = [repr(split) for split in query.reader.partitions(initial, first)]
    assert planned == ["clicks-0[300, 305)", "clicks-1[0, 100)", "clicks-2[0, 7)"]

    # The driver dies; retention and producers move on before it is started again.
    cluster.log("clicks", 0).end = 310
    cluster.log("clicks", 1).first = 60
    again = Query(cluster, startingOffsets='{"clicks":{"0":-1,"1":-2,"2":-1}}')
    today = again.reader.initialOffset()
    assert positions(today) == [310, 60, 7]
    # Of these 60 are gone: what reads them finds that out.
    assert [repr(split) for split in again.reader.partitions(today, first)] == planned
    second = again.next(first)
    assert [repr(split) for split in again.reader.partitions(first, second)] == ["clicks-0[305, 310)"]


def test_batch_zero_of_a_topic_that_was_created_anew_is_of_the_old_one(cluster: FakeCluster) -> None:
    query = Query(cluster)
    first = query.next(query.reader.initialOffset())
    cluster.delete("clicks")
    cluster.create("clicks", 20, topic_id=2)
    again = Query(cluster)
    splits = again.reader.partitions(again.reader.initialOffset(), first)
    assert [repr(split) for split in splits] == ["clicks-0[0, 300)", "clicks-1[0, 100)"]
    assert {split.topic_id for split in splits if isinstance(split, Split)} == {b"\x01" * 16}


def test_only_the_first_batch_has_its_start_with_it(cluster: FakeCluster) -> None:
    query = Query(cluster)
    first = query.next(query.reader.initialOffset())
    assert first["begin"] == {"clicks": {"0": 0, "1": 0}}
    assert query.after(1).next(first) == first, "else there would be a batch for nothing"
    assert query.reader.partitions(first, first) == []
    cluster.log("clicks", 0).end = 310
    second = query.after(1).next(first)
    assert "begin" not in second
    assert [repr(split) for split in query.reader.partitions(first, second)] == ["clicks-0[300, 310)"]


def test_checkpoint_of_sparks_kafka_source_is_taken_over(cluster: FakeCluster) -> None:
    kafkas = {"clicks": {"1": 7, "0": 120}}
    query = Query(cluster)
    end = query.next(kafkas)
    assert positions(end) == [300, 100]
    assert end["group"].startswith("spark-penstock-")
    assert end["topics"]["clicks"]["id"] == "AQEBAQEBAQEBAQEBAQEBAQ"
    assert [repr(split) for split in query.reader.partitions(kafkas, end)] == ["clicks-0[120, 300)", "clicks-1[7, 100)"]
    assert query.next(kafkas)["group"] == end["group"]
    query.reader.commit(kafkas)
    assert set(cluster.committed) == {end["group"]}
    # A batch that was planned and not finished.
    splits = query.reader.partitions(kafkas, {"clicks": {"1": 9, "0": 120}})
    assert [repr(split) for split in splits] == ["clicks-1[7, 9)"]
    cluster.log("clicks", 0).first = 200
    with pytest.raises(DataLoss, match="no longer has offset 120"):
        Query(cluster).next(kafkas)


def test_new_partition_is_read_from_its_beginning(cluster: FakeCluster) -> None:
    query = Query(cluster)
    end = query.next(query.reader.initialOffset())
    cluster.logs[TopicPartition("clicks", 2)] = type(cluster.log("clicks", 0))(end=7)
    grown = query.after(2).next(end)
    assert positions(grown) == [300, 100, 7]
    assert [repr(split) for split in query.reader.partitions(end, grown)] == ["clicks-2[0, 7)"]


def test_old_topic_that_is_new_to_the_query_begins_where_its_log_does(cluster: FakeCluster) -> None:
    query = Query(cluster, subscribePattern="^(clicks|old)$", maxOffsetsPerTrigger="40")
    end = query.next(query.reader.initialOffset())
    assert positions(end) == [30, 10]
    cluster.create("old", 1_000_000_100, topic_id=2)
    cluster.log("old", 0).first = 1_000_000_000
    grown = query.after(2).next(end)
    # Its share is that of its records, not of its offsets.
    assert positions(grown) == [53, 17]
    assert positions(grown, "old") == [1_000_000_008]
    assert grown["begin"] == {"old": {"0": 1_000_000_000}}
    planned = [repr(split) for split in query.reader.partitions(end, grown)]
    assert planned == ["clicks-0[30, 53)", "clicks-1[10, 17)", "old-0[1000000000, 1000000008)"]

    # Repeated after a crash, it is the same batch, whatever retention has done since.
    cluster.log("old", 0).first = 1_000_000_050
    again = Query(cluster, subscribePattern="^(clicks|old)$")
    assert [repr(split) for split in again.reader.partitions(end, grown)] == planned
    assert "begin" not in query.next(grown)


def test_start_of_a_new_partition_is_that_of_the_first_look(cluster: FakeCluster) -> None:
    query = Query(cluster, minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    end = query.next(query.reader.initialOffset())
    cluster.logs[TopicPartition("clicks", 2)] = type(cluster.log("clicks", 0))(first=5, end=17)
    assert query.after(2).next(end) == end, "too few records"
    cluster.log("clicks", 2).first = 9
    with pytest.raises(DataLoss, match=r"partition 2 of 'clicks' no longer has offset 5: .* offset is 9"):
        query.after(2).next(end)


def test_retention_that_overtakes_a_running_query(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="40")
    end = query.next(query.reader.initialOffset())
    cluster.log("clicks", 0).first = 250
    with pytest.raises(DataLoss, match=r"partition 0 of 'clicks' no longer has offset 30: .* offset is 250"):
        query.after(2).next(end)
    going_on = Query(cluster, failOnDataLoss="false", maxOffsetsPerTrigger="40")
    # No batch of what is gone.
    following = going_on.next(end)
    assert [repr(split) for split in going_on.reader.partitions(end, following)] == [
        "clicks-0[250, 264)",
        "clicks-1[10, 35)",
    ]
    assert following["begin"] == {"clicks": {"0": 250}}
    assert going_on.after(2).next(following) != following
    assert caplog.text.count("no longer has offset 30") == 1


@pytest.mark.parametrize("waiting", [0, 200])
def test_log_that_was_truncated_is_read_again_from_there(cluster: FakeCluster, waiting: int) -> None:
    limits = {"minOffsetsPerTrigger": str(waiting or 1), "maxTriggerDelay": "1h", "failOnDataLoss": "false"}
    log = cluster.log("clicks", 0)
    log.epoch = 1
    query = Query(cluster, **limits)
    end = query.next(query.reader.initialOffset())
    assert end["topics"]["clicks"]["epochs"] == {"0": 1}
    log.epoch, log.epoch_ends = 2, {1: 250}
    if waiting:
        # Too few records for a batch: the truncation is not forgotten meanwhile.
        assert query.after(2).next(end) == end
        assert query.next(end) == end
        log.end = 500
    following = query.after(2).next(end)
    assert following["begin"] == {"clicks": {"0": 250}}
    assert [repr(split) for split in query.reader.partitions(end, following)] == [f"clicks-0[250, {log.end})"]
    (split,) = query.reader.partitions(end, following)
    assert isinstance(split, Split)
    assert split.leader_epoch == 2
    assert query.after(2).next(following) == following


def test_offsets_name_their_cluster_and_isolation_level(cluster: FakeCluster) -> None:
    cluster.cluster_id = "c1"
    query = Query(cluster, **{"kafka.isolation.level": "read_committed"})
    end = query.next(query.reader.initialOffset())
    assert (end["cluster"], end["isolation"]) == ("c1", "read_committed")
    # Offsets of earlier versions are the same offsets.
    old = {name: value for name, value in end.items() if name not in ("cluster", "isolation")}
    assert query.after(2).next(old) == old


def test_new_leader_alone_is_no_batch(cluster: FakeCluster) -> None:
    cluster.log("clicks", 0).epoch = 1
    query = Query(cluster)
    end = query.next(query.reader.initialOffset())
    cluster.log("clicks", 0).epoch, cluster.log("clicks", 0).epoch_ends = 2, {1: 300}
    assert query.after(2).next(end) == end


def test_retention_that_passes_all_there_was(cluster: FakeCluster) -> None:
    query = Query(cluster, failOnDataLoss="false", maxOffsetsPerTrigger="40")
    query.reader.prepareForTriggerAvailableNow()
    end = query.next(query.reader.initialOffset())
    cluster.log("clicks", 0).first = cluster.log("clicks", 0).end = 900
    following = query.after(2).next(end)
    assert positions(following) == [900, 50]
    assert positions(query.after(2).next(following)) == [900, 90]


def test_topic_deleted_while_its_start_is_looked_up(cluster: FakeCluster) -> None:
    query = Query(cluster, failOnDataLoss="false")
    end = query.next(query.reader.initialOffset())
    cluster.log("clicks", 0).end = 310
    cluster.before_offsets = lambda timestamp: cluster.delete("clicks") if timestamp == -2 else None
    assert positions(query.after(2).next(end)) == [310, 100]


def test_restart_goes_on_with_the_group_of_the_checkpoint(cluster: FakeCluster) -> None:
    first = Query(cluster)
    end = first.next(first.reader.initialOffset())
    assert Query(cluster).next(end) == end
    assert Query(cluster, groupId="mine").next(end)["group"] == "mine"
    assert cluster.commits[-1][0] == "mine"


def test_group_to_read_as_is_not_committed_to(cluster: FakeCluster) -> None:
    tps = (TopicPartition("clicks", 0), TopicPartition("clicks", 1))
    cluster.commit_offsets("billing", dict.fromkeys(tps, 90))
    query = Query(cluster, **{"kafka.group.id": "billing", "startingOffsets": "group"})
    initial = query.reader.initialOffset()
    assert positions(initial) == [90, 90]
    end = query.next(initial)
    query.after(1).next(end)
    assert cluster.committed["billing"] == dict.fromkeys(tps, 90)
    assert cluster.committed[end["group"]] == {tps[0]: 300, tps[1]: 100}
    assert end["group"].startswith("spark-penstock-")


def test_topic_created_anew(cluster: FakeCluster) -> None:
    query = Query(cluster)
    end = query.next(query.reader.initialOffset())
    cluster.delete("clicks")
    cluster.create("clicks", 20, topic_id=2)
    with pytest.raises(DataLoss, match="deleted and created again"):
        Query(cluster).next(end)
    going_on = Query(cluster, failOnDataLoss="false", maxOffsetsPerTrigger="15")
    commits = len(cluster.commits)
    now = going_on.next(end)
    assert positions(now) == [15]
    assert [repr(split) for split in going_on.reader.partitions(end, now)] == ["clicks-0[0, 15)"]
    assert len(cluster.commits) == commits, "the old topic's offsets mean nothing in the new one"
    assert positions(going_on.after(1).next(now)) == [20]


def test_retention_that_passed_a_stopped_query(cluster: FakeCluster) -> None:
    query = Query(cluster)
    initial = query.reader.initialOffset()
    cluster.log("clicks", 0).first = 200
    with pytest.raises(DataLoss, match="no longer has offset 0: the first available offset is 200"):
        query.next(initial)
    # The limit is of records that are there.
    going_on = Query(cluster, failOnDataLoss="false", maxOffsetsPerTrigger="100")
    assert positions(going_on.next(initial)) == [250, 50]


def test_splits_are_those_of_the_options_and_the_reader_travels(cluster: FakeCluster) -> None:
    query = Query(cluster, minPartitions="4")
    initial = query.reader.initialOffset()
    end = query.next(initial)
    splits = query.reader.partitions(initial, end)
    assert [repr(split) for split in splits] == [
        "clicks-0[0, 100)",
        "clicks-0[100, 200)",
        "clicks-0[200, 300)",
        "clicks-1[0, 100)",
    ]
    assert all(isinstance(split, Split) and split.topic_id == b"\x01" * 16 for split in splits)
    copy = pickle.loads(pickle.dumps(query.reader))
    assert copy.partitions(initial, end) == splits
    assert query.reader.partitions(end, end) == []


def test_against_a_broker() -> None:
    """The driver as a query has it: real connections."""
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("sizes", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 100})
        for _ in range(500):
            producer.produce("sizes", b"x" * 990)
        assert producer.flush(30) == 0
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "sizes", "groupId": "sized"}
        given |= {"startingOffsets": "earliest", "maxBytesPerTrigger": "100000"}
        reader = PenstockStreamReader(given, source_schema(False))
        initial = reader.initialOffset()
        end = reader.latestOffset(initial, reader.getDefaultReadLimit())
        (position,) = positions(end, "sizes")
        assert 90 <= position <= 101
        assert [split.size for split in reader.partitions(initial, end) if isinstance(split, Split)] == [position]
        reader.latestOffset(end, ReadAllAvailable())
        reader.stop()
        assert list(admin.group_offsets("sized").values()) == [position]


def test_offsets_of_another_source_are_refused(cluster: FakeCluster) -> None:
    with pytest.raises(Exception, match="another version of penstock, or another source, wrote it"):
        Query(cluster).next({"clicks": [5]})
    assert SourceOffset.from_json(Query(cluster).reader.initialOffset()).positions
