"""The streaming source in a real Spark session against a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from penstock.sdk import TopicPartition
from penstock.spark.progress import group_of
from penstock.spark.source.query_watch import FinishedTo, QueryWatch

if TYPE_CHECKING:
    from spark.conftest import Topics


def stream(spark: SparkSession, topics: Topics, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", topics.bootstrap_servers)
    return reader.options(**({"subscribe": topic, "startingOffsets": "earliest"} | options)).load()


def run(frame: DataFrame, directory: Path) -> StreamingQuery:
    """To the end of what is there, into Parquet."""
    writer = frame.writeStream.format("parquet").option("path", str(directory / "out"))
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def written(spark: SparkSession, directory: Path) -> list[int]:
    rows = spark.read.parquet(str(directory / "out")).select("value").collect()
    return sorted(int(bytes(row.value)) for row in rows)


def fill(topics: Topics, topic: str, numbers: range, partition: int = -1) -> None:
    topics.fill(topic, ((b"%d" % n, b"%d" % n) for n in numbers), partition)


def committed(topics: Topics, group: str, topic: str) -> dict[int, int]:
    """As any Kafka client sees it."""
    return {tp.partition: offset for tp, offset in topics.admin.group_offsets(group).items() if tp.topic == topic}


def eventually(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def test_available_now_in_limited_batches_goes_on_from_its_checkpoint(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    fill(topics, topic, range(300), 0)
    fill(topics, topic, range(300, 400), 1)
    query = run(stream(spark, topics, topic, maxOffsetsPerTrigger="100"), tmp_path)
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [100] * 4
    assert written(spark, tmp_path) == list(range(400))
    # A quarter of the backlog, a quarter of the batch.
    end = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert end["version"] == 1
    assert end["topics"][topic]["partitions"] == {"0": 75, "1": 25}
    group = end["group"]
    assert group_of(query) == group
    # Also of the last batch, although the query has ended.
    assert committed(topics, group, topic) == {0: 300, 1: 100}

    # A record for each partition, and a partition that was not there.
    fill(topics, topic, range(400, 410), 0)
    topics.admin.add_partitions(topic, 3)
    fill(topics, topic, range(410, 420), 2)
    query = run(stream(spark, topics, topic), tmp_path)
    assert written(spark, tmp_path) == list(range(420))
    assert group_of(query) == group
    assert committed(topics, group, topic) == {0: 310, 1: 100, 2: 10}

    # Nothing new: nothing written.
    run(stream(spark, topics, topic), tmp_path)
    assert written(spark, tmp_path) == list(range(420))


def test_small_ranges_of_many_partitions_share_tasks(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=40)
    for partition in range(40):
        fill(topics, topic, range(5 * partition, 5 * partition + 5), partition)
    rows = stream(spark, topics, topic, maxOffsetsPerTrigger="80").withColumn("task", f.spark_partition_id())
    run(rows, tmp_path)
    found = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset", "task", "value").collect()
    assert sorted((row.partition, row.offset) for row in found) == [(p, at) for p in range(40) for at in range(5)]
    assert written(spark, tmp_path) == list(range(200))
    assert {row.task for row in found} == {0, 1}, "the session has two cores"
    end = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert end["tasks"] == 2
    # As many tasks as are asked for.
    asked = spark.read.format("penstock").option("kafka.bootstrap.servers", topics.bootstrap_servers)
    assert asked.option("subscribe", topic).option("minPartitions", "7").load().rdd.getNumPartitions() == 7


def test_what_is_told_late_of_a_run_does_not_set_the_next_one_back(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(partitions=1)
    group = f"{topic}-told-late"
    may_tell, is_told, tell = threading.Event(), threading.Event(), QueryWatch._report

    def late(watch: QueryWatch, run: Any, one: FinishedTo, *, is_last: bool) -> None:
        is_first = group in one.end_offset and not is_told.is_set()
        if is_first:
            may_tell.wait(60)
        tell(watch, run, one, is_last=is_last)
        if is_first:
            is_told.set()

    monkeypatch.setattr(QueryWatch, "_report", late)
    for numbers in (range(10), range(10, 30)):
        fill(topics, topic, numbers)
        run(stream(spark, topics, topic, groupId=group), tmp_path)
    assert committed(topics, group, topic) == {0: 30}
    may_tell.set()
    assert is_told.wait(60)
    assert committed(topics, group, topic) == {0: 30}


def test_batch_that_was_not_finished_is_read_again(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    fill(topics, topic, range(100), 0)
    run(stream(spark, topics, topic, groupId="unfinished"), tmp_path)
    # As after a crash between planning batch 0 and its end.
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    fill(topics, topic, range(100, 150), 1)
    run(stream(spark, topics, topic, groupId="unfinished"), tmp_path)
    assert written(spark, tmp_path) == list(range(150))
    assert committed(topics, "unfinished", topic) == {0: 100, 1: 50}


def test_checkpoint_of_sparks_kafka_source_is_taken_over(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    fill(topics, topic, range(20), 0)
    run(stream(spark, topics, topic), tmp_path)
    # The rest of the checkpoint is Spark's, and the same.
    log = tmp_path / "checkpoint" / "offsets" / "0"
    *lines, _ = log.read_text().splitlines()
    log.write_text("\n".join([*lines, json.dumps({topic: {"0": 20, "1": 0}}, separators=(",", ":"))]))
    (log.parent / ".0.crc").unlink(missing_ok=True)
    fill(topics, topic, range(20, 30), 1)
    query = run(stream(spark, topics, topic), tmp_path)
    assert written(spark, tmp_path) == list(range(30))
    group = group_of(query)
    assert group is not None
    assert committed(topics, group, topic) == {0: 20, 1: 10}


def test_running_query_starts_at_latest_and_shows_its_lag(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    fill(topics, topic, range(10), 0)
    frame = stream(spark, topics, topic, startingOffsets="latest", groupIdPrefix="lagging")
    query = (
        frame.writeStream.format("memory")
        .queryName("source_latest")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        eventually(lambda: query.lastProgress is not None)
        group = group_of(query)
        assert group is not None
        assert group.startswith("lagging-")
        eventually(lambda: committed(topics, group, topic) == {0: 10, 1: 0})
        fill(topics, topic, range(10, 20), 0)
        fill(topics, topic, range(20, 30), 1)
        eventually(lambda: committed(topics, group, topic) == {0: 20, 1: 10})
        rows = spark.sql("SELECT cast(value AS string) AS value FROM source_latest").collect()
        assert sorted(int(row.value) for row in rows) == list(range(10, 30))
    finally:
        query.stop()


def test_sql_table_with_headers(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, [(None, b"1")], headers=[("trace", b"a")])
    spark.sql("CREATE TABLE IF NOT EXISTS source_topics USING penstock OPTIONS (includeHeaders 'true')")
    try:
        frame = spark.sql(
            f"SELECT value, headers FROM STREAM source_topics WITH (subscribe = '{topic}', "
            f"startingOffsets = 'earliest', `kafka.bootstrap.servers` = '{topics.bootstrap_servers}')"
        )
        run(frame, tmp_path)
    finally:
        spark.sql("DROP TABLE source_topics")
    (row,) = spark.read.parquet(str(tmp_path / "out")).collect()
    assert (bytes(row.value), [(h.key, bytes(h.value)) for h in row.headers]) == (b"1", [("trace", b"a")])


def test_user_schema_and_a_start_from_a_group(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    fill(topics, topic, range(20))
    group = f"{topic}-readers"
    topics.admin.set_group_offsets(group, {TopicPartition(topic, 0): 15})
    options = {"subscribe": topic, "startingOffsets": "group", "kafka.group.id": group, "maxBytesPerTrigger": "1"}
    options["groupId"] = f"{topic}-query"
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", topics.bootstrap_servers)
    query = run(reader.options(**options).schema("offset bigint, value binary").load(), tmp_path)
    assert spark.read.parquet(str(tmp_path / "out")).columns == ["offset", "value"]
    assert written(spark, tmp_path) == list(range(15, 20))
    # No batch is without a record, however small the limit is.
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [1] * 5
    assert committed(topics, group, topic) == {0: 15}, "not the query's"
    assert committed(topics, f"{topic}-query", topic) == {0: 20}


@pytest.mark.parametrize("fails", [True, False])
def test_topic_created_anew(spark: SparkSession, topics: Topics, tmp_path: Path, fails: bool) -> None:
    topic = topics.create()
    fill(topics, topic, range(50))
    run(stream(spark, topics, topic), tmp_path)
    topics.admin.delete_topic(topic)
    topics.create(topic)
    fill(topics, topic, range(50, 60))
    if not fails:
        run(stream(spark, topics, topic, failOnDataLoss="false"), tmp_path)
        assert written(spark, tmp_path) == list(range(60))
        return
    with pytest.raises(Exception, match=rf"topic '{topic}' was deleted and created again.*failOnDataLoss=false"):
        run(stream(spark, topics, topic), tmp_path)


def test_plans_do_not_show_keys_and_logins(spark: SparkSession, topics: Topics) -> None:
    secrets = {
        "kafka.sasl.jaas.config": "jaas-hunter22",
        "kafka.sasl.password": "password-hunter22",
        "kafka.ssl.keystore.key": "keystore-hunter22",
        "kafka.ssl.key.pem": "pem-hunter22",
    }
    frame = stream(spark, topics, "unread", **secrets)
    plan: Any = frame._jdf.queryExecution()
    for shown in (plan.toString(), plan.logical().treeString(), plan.analyzed().treeString()):
        assert "hunter22" not in shown
    assert "subscribe=unread" in plan.analyzed().treeString(), "options are shown"
