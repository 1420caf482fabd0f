"""Logs that are not what they were: retention, partitions that come, topics created anew, holes, damage.

Records that are left are read, each once and in order; others are an error that names it, unless the query was told
to go on without.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from held_query import Gate, Rows, eventually, held_since, read_topic, start, written
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from spark_topics import Topics

from penstock.records.batch import HEADER_SIZE, iterate_headers
from penstock.spark.source.offsets import topic_id_text
from penstock.wire_client.blocking.cluster import BlockingCluster
from support.processes.broker import BrokerProcess

PROMPT_COMPACTION = {
    "cleanup.policy": "compact",
    "segment.ms": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
}
GO_ON = {"failOnDataLoss": "false"}
# With splits larger than all the buffers between a reader and the gate: it is still reading when the gate is closed.
IN_PIECES = {"kafka.max.partition.fetch.bytes": "20000"}


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """To be stopped, and with compaction that does not wait."""
    with BrokerProcess(tmp_path_factory.mktemp("own"), {"log.cleaner.backoff.ms": "100"}) as process:
        yield process


def fill(topics: Topics, topic: str, numbers: range, partition: int = 0, size: int = 0) -> list[tuple[int, bytes]]:
    """Rows as they are to come out: the numbers are the offsets."""
    rows = [(n, b"%s:%d:%d:" % (topic.encode(), partition, n) + bytes(size)) for n in numbers]
    topics.fill(topic, ((None, value) for _, value in rows), partition, settings={"batch.num.messages": 10})
    return rows


def delete_records(topics: Topics, topic: str, before: int, partition: int = 0) -> None:
    """As retention moves the start of the log."""
    admin = AdminClient({"bootstrap.servers": topics.bootstrap_servers})
    asked = confluent_kafka.TopicPartition(topic, partition, before)
    (done,) = admin.delete_records([asked]).values()
    assert done.result(30).low_watermark == before


def run(spark: SparkSession, topics: Topics, topic: str, directory: Path, options: Mapping[str, str] = {}) -> None:
    start(read_topic(spark, topics.bootstrap_servers, topic, options), directory).awaitTermination()


def failure(spark: SparkSession, topics: Topics, topic: str, directory: Path, options: Mapping[str, str] = {}) -> str:
    with pytest.raises(StreamingQueryException) as failed:
        run(spark, topics, topic, directory, options)
    return str(failed.value)


def topic_id(topics: Topics, topic: str) -> str:
    host, _, port = topics.bootstrap_servers.partition(":")
    cluster = BlockingCluster([(host, int(port))])
    found = topic_id_text(cluster.topics([topic])[topic].topic_id)
    cluster.close()
    return found


def test_retention_passes_the_start_between_runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    expected: Rows = {p: fill(topics, topic, range(100), p) for p in range(2)}
    run(spark, topics, topic, tmp_path)
    for p in range(2):
        expected[p] += fill(topics, topic, range(100, 300), p)
    delete_records(topics, topic, 150, partition=1)
    said = failure(spark, topics, topic, tmp_path)
    assert f"partition 1 of '{topic}' no longer has offset 100: the first available offset is 150" in said
    run(spark, topics, topic, tmp_path, GO_ON | {"maxOffsetsPerTrigger": "100"})
    del expected[1][100:150]
    assert written(tmp_path) == expected


def test_retention_passes_the_first_batch_of_a_query(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """It did not begin where a query would begin today."""
    topic = topics.create()
    fill(topics, topic, range(100))
    run(spark, topics, topic, tmp_path)
    # As after a crash between planning batch 0 and its end, before anything was written.
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    shutil.rmtree(tmp_path / "out")
    delete_records(topics, topic, 60)
    assert f"partition 0 of '{topic}' no longer has offset 0: the first available offset is 60" in failure(
        spark, topics, topic, tmp_path
    )


def test_retention_passes_the_next_batch(spark: SparkSession, topics: Topics, gate: Gate, tmp_path: Path) -> None:
    topic = topics.create()
    expected: Rows = {0: fill(topics, topic, range(300))}
    limit = {"maxOffsetsPerTrigger": "100"}
    gate.close()
    query = start(read_topic(spark, topics.bootstrap_servers, topic, limit), tmp_path, gate)
    held_since(query, gate, 0, 1)
    delete_records(topics, topic, 150)
    gate.open()
    with pytest.raises(
        StreamingQueryException,
        match=f"partition 0 of '{topic}' no longer has offset 100: the first available offset is 150",
    ):
        query.awaitTermination()
    # The batch was planned over what is gone: it is run again, over what is left of it.
    run(spark, topics, topic, tmp_path, GO_ON | limit)
    del expected[0][100:150]
    assert written(tmp_path) == expected


def test_retention_passes_a_reader(spark: SparkSession, topics: Topics, gate: Gate, tmp_path: Path) -> None:
    topic = topics.create()
    expected = fill(topics, topic, range(900), size=2000)
    gate.close()
    query = start(read_topic(spark, topics.bootstrap_servers, topic, GO_ON | IN_PIECES), tmp_path, gate)
    held_since(query, gate, 0, 1)
    delete_records(topics, topic, 850)
    gate.open()
    query.awaitTermination()
    # What the reader had by then, and from the new start of the log on: no row of it twice or out of order.
    rows = written(tmp_path)[0]
    read_before = len(rows) - 50
    assert 0 < read_before < 850
    assert rows == expected[:read_before] + expected[850:]


def test_partition_added_while_running(spark: SparkSession, topics: Topics, gate: Gate, tmp_path: Path) -> None:
    topic = topics.create()
    expected: Rows = {0: fill(topics, topic, range(100))}
    gate.close()
    query = start(read_topic(spark, topics.bootstrap_servers, topic, {}), tmp_path, gate, processingTime="0 seconds")
    try:
        held_since(query, gate, 0, 1)
        topics.admin.add_partitions(topic, 3)
        expected[1] = fill(topics, topic, range(70), 1)
        gate.open()
        eventually(lambda: written(tmp_path) == expected or not query.isActive)
        expected[2] = fill(topics, topic, range(30), 2)
        expected[0] += fill(topics, topic, range(100, 110), 0)
        eventually(lambda: written(tmp_path) == expected or not query.isActive)
        assert query.exception() is None
    finally:
        query.stop()
    assert written(tmp_path) == expected


def test_old_topic_joins_a_query(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    old, topic = topics.create("joins-old", partitions=2), topics.create("joins-new")
    expected: Rows = {0: fill(topics, topic, range(30))}
    run(spark, topics, topic, tmp_path)
    for p in range(2):
        expected[p] = expected.get(p, []) + fill(topics, old, range(300), p)[200:]
        delete_records(topics, old, 200, p)
    run(spark, topics, f"{topic},{old}", tmp_path, {"maxOffsetsPerTrigger": "50"})
    assert written(tmp_path) == expected


def test_topic_created_anew_in_mid_batch(spark: SparkSession, topics: Topics, gate: Gate, tmp_path: Path) -> None:
    topic = topics.create()
    old_id = topic_id(topics, topic)
    fill(topics, topic, range(900), size=2000)
    gate.close()
    query = start(read_topic(spark, topics.bootstrap_servers, topic, IN_PIECES), tmp_path, gate)
    held_since(query, gate, 0, 1)
    topics.admin.delete_topic(topic)
    topics.create(topic)
    new_id = topic_id(topics, topic)
    new = fill(topics, topic, range(50))
    gate.open()
    with pytest.raises(StreamingQueryException, match="was deleted and created again") as failed:
        query.awaitTermination()
    assert f"topic '{topic}'" in str(failed.value)
    assert old_id in str(failed.value)
    assert new_id in str(failed.value)
    # Of the batch that failed nothing was written, and nothing can be read any more; none of it is the new topic's.
    run(spark, topics, topic, tmp_path, GO_ON | IN_PIECES)
    assert written(tmp_path) == {0: new}


def test_topic_created_anew_while_running(spark: SparkSession, topics: Topics, gate: Gate, tmp_path: Path) -> None:
    topic = topics.create()
    old_id = topic_id(topics, topic)
    old = fill(topics, topic, range(50))
    gate.close()
    query = start(read_topic(spark, topics.bootstrap_servers, topic, {}), tmp_path, gate, processingTime="0 seconds")
    held_since(query, gate, 0, 1)
    topics.admin.delete_topic(topic)
    topics.create(topic)
    new = fill(topics, topic, range(60))
    gate.open()
    eventually(lambda: not query.isActive)
    # By who plans the next batch, or by who reads it.
    said = str(query.exception())
    assert f"topic '{topic}' was deleted and created again" in said
    assert old_id in said
    assert topic_id(topics, topic) in said
    run(spark, topics, topic, tmp_path, GO_ON)
    assert written(tmp_path) == {0: old + new}


def test_holes_of_compaction(spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path) -> None:
    topics = Topics(own_broker.bootstrap_servers)
    topic = topics.create("compacted", configs=PROMPT_COMPACTION)
    # Most keys come again later; every 61st does not, and one batch of offsets has none that stays.
    keys = [b"once-%d" % n if n % 61 == 0 and not 300 <= n < 500 else b"key-%d" % (n % 20) for n in range(1000)]
    last = {key: offset for offset, key in enumerate(keys)}
    for first in range(0, 1000, 100):
        topics.fill(topic, ((keys[n], b"%d" % n) for n in range(first, first + 100)))
        time.sleep(0.05)
    expected = [(offset, b"%d" % offset) for offset in sorted(last.values())]
    end = compacted(topics, topic, len(expected))
    # Splits that end in a hole, that begin in one, and two that are nothing else.
    run(spark, topics, topic, tmp_path, {"maxOffsetsPerTrigger": "100"})
    rows = written(tmp_path)[0]
    assert [row for row in rows if row[0] < 1000] == expected
    assert [offset for offset, _ in rows] == sorted({offset for offset, _ in rows})
    assert rows[-1] == (end - 1, b"")
    topics.admin.close()


def compacted(topics: Topics, topic: str, left: int) -> int:
    """Until only so many of the first thousand are left; the end of the log then."""
    deadline = time.monotonic() + 60
    end = 1000
    while True:
        topics.fill(topic, [(b"end", b"")])
        end += 1
        if sum(offset < 1000 for offset in consumed(topics, topic)) == left:
            return end
        assert time.monotonic() < deadline, "nothing is compacted"
        time.sleep(0.2)


def consumed(topics: Topics, topic: str) -> list[int]:
    """By librdkafka."""
    settings = {"bootstrap.servers": topics.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(message.offset())
    consumer.close()
    return found


def test_damage_on_disk(spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path) -> None:
    topics = Topics(own_broker.bootstrap_servers)
    topic = topics.create("damaged", partitions=2)
    expected: Rows = {}
    for p in range(2):
        for first in (0, 100, 200):
            expected.setdefault(p, []).extend(fill(topics, topic, range(first, first + 100), p))
    topics.admin.close()
    assert own_broker.terminate() == 0
    (segment,) = (own_broker.data / f"{topic}-1").glob("*.log")
    data = bytearray(segment.read_bytes())
    at = next(at for at, header in iterate_headers(bytes(data), str(segment)) if header.base_offset >= 100)
    data[at + HEADER_SIZE + 20] ^= 0x10
    segment.write_bytes(data)
    own_broker.start()
    limit = {"maxOffsetsPerTrigger": "200"}
    for options in (limit, limit | GO_ON):  # damage is not a loss: nobody knows what else is wrong
        said = failure(spark, topics, topic, tmp_path, options)
        assert re.search(rf"{topic}-1 at offset 100: broker .* says CORRUPT_MESSAGE", said), said
        assert written(tmp_path) == {p: expected[p][:100] for p in range(2)}
