"""A task's rows, through encoder and producer, into a real broker and back."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from confluent_kafka import Consumer  # noqa: E402
from confluent_kafka import TopicPartition as StockPartition  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from penstock.arrow.encode.columns import UnsuitableRows  # noqa: E402
from penstock.model.errors import ApiError  # noqa: E402
from penstock.model.topic_partition import TopicPartition  # noqa: E402
from penstock.records.batch import HEADER_SIZE, iterate_headers  # noqa: E402
from penstock.records.builder import Record, iterate_records  # noqa: E402
from penstock.records.compression import NAMES, decompress  # noqa: E402
from penstock.sdk import BlockingAdmin  # noqa: E402
from penstock.spark.sink.delivery import AtLeastOnce, Slice, describe  # noqa: E402
from penstock.spark.sink.lanes import PartitionWritten  # noqa: E402
from penstock.spark.sink.options import SinkOptions  # noqa: E402
from penstock.spark.sink.producing import DeliveryFailed  # noqa: E402
from penstock.spark.sink.writers import TaskRefused, TaskWritten, batch_writer, totals, write_slice  # noqa: E402
from penstock.testing import Broker  # noqa: E402
from penstock.wire_client.blocking.cluster import BlockingCluster, FetchStream  # noqa: E402
from penstock.wire_client.requests.partitioner import partition_for_key  # noqa: E402

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": 3}) as running:
        yield running


def write(broker: Broker, batches: list[pa.RecordBatch], task: int = 0, **options: str) -> TaskWritten:
    named = {name.replace("__", "."): value for name, value in options.items()}
    parsed = SinkOptions.parse({"kafka.bootstrap.servers": broker.bootstrap_servers, **named})
    return write_slice(AtLeastOnce(parsed), parsed, Slice(None, None, task), batches)


def test_topics_are_asked_for_once_by_all_tasks_of_a_worker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real = BlockingCluster.topics

    def topics(self: BlockingCluster, names: Any = None) -> Any:
        asked.append(names)
        return real(self, names)

    rows = pa.RecordBatch.from_pydict({"value": [b"x"]})
    with BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("asked-once", 2)
        write(broker, [rows], topic="asked-once")
        monkeypatch.setattr(BlockingCluster, "topics", topics)
        for task in range(5):
            write(broker, [rows], task, topic="asked-once")
        assert asked == []
        # A task that fails may have old metadata: the next attempt succeeds.
        admin.add_partitions("asked-once", 3)
        far = pa.RecordBatch.from_pydict({"value": [b"y"], "partition": pa.array([2], pa.int32())})
        with pytest.raises(UnsuitableRows, match="has partitions 0 to 1"):
            write(broker, [far], topic="asked-once")
        write(broker, [far], topic="asked-once")
    assert asked == [["asked-once"]]
    assert [record.value for record in read(broker, "asked-once")[2]] == [b"y"]


def read(broker: Broker, topic: str) -> dict[int, list[Record]]:
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    cluster = BlockingCluster([(host, int(port))])
    found: dict[int, list[Record]] = {}
    for partition in range(len(cluster.topics([topic])[topic].partitions)):
        tp = TopicPartition(topic, partition)
        end = cluster.list_offsets({tp: -1})[tp].offset
        records = found[partition] = []
        if not end:
            continue
        stream = FetchStream(cluster, tp, 0, end, read_committed=False)
        for chunk in stream:
            for at, header in iterate_headers(chunk.records, "fetched"):
                payload = bytes(chunk.records[at + HEADER_SIZE : at + header.size_bytes])
                records += iterate_records(header, decompress(header.compression, payload))
            stream.advance(records[-1].offset + 1)
            if records[-1].offset + 1 >= end:
                break
    cluster.close()
    return found


@pytest.mark.parametrize("codec", NAMES)
def test_rows_arrive_whole_and_in_order(broker: Broker, codec: str) -> None:
    topic = f"rows-{codec}"
    batches = [
        pa.record_batch({"key": [b"k%d" % (n % 7) for n in part], "value": [b"%d" % n * 50 for n in part]})
        for part in (range(3000), range(3000, 5000))
    ]
    written = write(broker, batches, topic=topic, kafka__compression__type=codec, kafka__batch__size="16384")
    found = read(broker, topic)
    for partition, records in found.items():
        expected = [n for n in range(5000) if partition_for_key(b"k%d" % (n % 7), 3) == partition]
        assert [record.value for record in records] == [b"%d" % n * 50 for n in expected]
    assert written.partitions == tuple(
        PartitionWritten(topic, partition, len(records), len(records) - 1)
        for partition, records in found.items()
        if records
    )


def test_every_column_arrives(broker: Broker) -> None:
    when = datetime(2020, 1, 2, 3, 4, 5, 678_000, UTC)
    batch = pa.record_batch(
        {
            "value": pa.array(["text", None], pa.string()),
            "key": pa.array([None, b"\x00"], pa.binary()),
            "topic": pa.array(["columns-a", "columns-b"]),
            "partition": pa.array([2, 1], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], HEADERS_TYPE),
            "timestamp": pa.array([when, None], pa.timestamp("us", "UTC")),
        }
    )
    written = write(broker, [batch])
    assert [entry[:3] for entry in written.partitions] == [("columns-a", 2, 1), ("columns-b", 1, 1)]
    (first,) = read(broker, "columns-a")[2]
    assert first == Record(None, b"text", (("h", b"1"), ("h", None)), round(when.timestamp() * 1000), 0)
    (second,) = read(broker, "columns-b")[1]
    assert second[:3] == (b"\x00", None, ())
    assert second.timestamp_ms > first.timestamp_ms


def test_timestamps_that_kafka_has_not_got(broker: Broker) -> None:
    """Before 1970: none, which is -1, as those who copied them out of a topic had it. Of another type: now."""
    early = pa.array([-5_000_000, -1000, -1, 0, -(1 << 62)], pa.timestamp("us", "UTC"))
    columns = {"value": ["v"] * 5, "topic": ["early"] * 5, "partition": pa.array([0] * 5, pa.int32())}
    write(broker, [pa.record_batch({**columns, "timestamp": early})])
    assert [record.timestamp_ms for record in read(broker, "early")[0]] == [-1, -1, -1, 0, -1]
    columns |= {"topic": ["texts"] * 5, "timestamp": ["yesterday"] * 5}
    write(broker, [pa.record_batch(columns)])
    assert all(record.timestamp_ms > 1_700_000_000_000 for record in read(broker, "texts")[0])


@pytest.mark.parametrize("codec", NAMES)
def test_librdkafka_reads_what_was_written(broker: Broker, codec: str) -> None:
    topic = f"stock-{codec}"
    headers = [
        None if n % 2 else [{"key": "n", "value": b"%d" % n}, {"key": "none", "value": None}] for n in range(500)
    ]
    batch = pa.record_batch(
        {
            "key": [b"%d" % n for n in range(500)],
            "value": pa.array([None if n % 3 == 0 else b"value %d" % n for n in range(500)], pa.binary()),
            "headers": pa.array(headers, HEADERS_TYPE),
            "timestamp": pa.array([n * 1_000_000 for n in range(500)], pa.timestamp("us", "UTC")),
            "partition": pa.array([n % 3 for n in range(500)], pa.int32()),
        }
    )
    write(broker, [batch], topic=topic, kafka__compression__type=codec, kafka__batch__size="5000")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "check.crcs": True})
    found: dict[int, list[tuple[object, ...]]] = {}
    for partition in range(3):
        consumer.assign([StockPartition(topic, partition, 0)])
        rows = found[partition] = []
        while len(rows) < len(range(partition, 500, 3)):
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            rows.append((message.key(), message.value(), message.headers(), message.timestamp()[1]))
    consumer.close()
    for partition, rows in found.items():
        assert rows == [
            (
                b"%d" % n,
                None if n % 3 == 0 else b"value %d" % n,
                None if n % 2 else [("n", b"%d" % n), ("none", None)],
                n * 1000,
            )
            for n in range(partition, 500, 3)
        ]


def test_the_option_topic_wins_over_the_column(broker: Broker) -> None:
    batch = pa.record_batch({"value": ["v"], "topic": pa.array([None], pa.string())})
    assert [entry.topic for entry in write(broker, [batch], topic="winner").partitions] == ["winner"]


def test_rows_without_key_fill_one_partition_after_the_other(broker: Broker) -> None:
    batch = pa.record_batch({"value": [b"x" * 100] * 1000})
    write(broker, [batch], task=1, topic="sticky", kafka__batch__size="16384")
    counts = {partition: len(records) for partition, records in read(broker, "sticky").items()}
    assert sum(counts.values()) == 1000
    assert min(counts.values()) > 200


def test_a_batch_that_the_topic_finds_too_large_is_split(broker: Broker) -> None:
    with Broker({"num.partitions": 1, "message.max.bytes": 20_000}) as small:
        values = [b"%05d" % n * 30 for n in range(2000)]
        write(small, [pa.record_batch({"value": values})], topic="split", kafka__batch__size="100000")
        assert [record.value for record in read(small, "split")[0]] == values
        with pytest.raises(DeliveryFailed, match=r"large-0: a record makes a batch of .* bytes .*max\.message\.bytes"):
            write(small, [pa.record_batch({"value": [b"x" * 30_000]})], topic="large")


def test_a_value_larger_than_a_batch_goes_alone(broker: Broker) -> None:
    values = [b"a", b"b" * 300_000, b"c"]
    write(broker, [pa.record_batch({"value": values, "partition": pa.array([0] * 3, pa.int32())})], topic="alone")
    assert [record.value for record in read(broker, "alone")[0]] == values


def test_no_rows_ask_nothing_of_the_broker() -> None:
    nothing = pa.record_batch({"value": pa.array([], pa.string())})
    parsed = SinkOptions.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "none"})
    assert write_slice(AtLeastOnce(parsed), parsed, Slice(None, None, 0), [nothing]) == TaskWritten(())


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"value": ["v", "v"], "topic": pa.array(["bad", None])}, "column topic is null in row 1"),
        ({"value": ["v"]}, "no column topic"),
        (
            {"value": ["v"], "topic": ["bad"], "partition": pa.array([3], pa.int32())},
            "column partition is 3 in row 0: topic 'bad' has partitions 0 to 2",
        ),
        (
            {"value": ["v"], "topic": ["bad"], "partition": pa.array([-1], pa.int32())},
            "column partition is -1 in row 0",
        ),
        (
            {"value": ["v"], "topic": ["bad"], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE)},
            "row 0 has a header without a key",
        ),
        ({"value": [1], "topic": ["bad"]}, "column value is int64: cast it to binary or string"),
    ],
)
def test_rows_that_cannot_be_written_are_named(broker: Broker, columns: dict[str, object], sentence: str) -> None:
    with pytest.raises(UnsuitableRows, match=sentence):
        write(broker, [pa.record_batch(columns)])


def test_a_batch_write_is_refused_by_the_driver_and_not_tried_again(broker: Broker) -> None:
    schema = StructType().add("value", "string").add("topic", "string")
    writer = batch_writer({"kafka.bootstrap.servers": broker.bootstrap_servers}, schema, overwrite=False)
    bad = pa.record_batch({"value": ["v"], "topic": pa.array([None], pa.string())})
    good = pa.record_batch({"value": ["v"], "topic": ["refused"]})
    batches = iter([good, bad, good])
    refused = pickle.loads(pickle.dumps(writer.write(batches)))
    assert isinstance(refused, TaskRefused)
    assert next(batches, None) is None, "Spark wants its rows taken"
    written = writer.write(iter([good]))
    with pytest.raises(UnsuitableRows, match=r"^column topic is null in row 0: [^()]*$"):
        writer.commit([written, refused])
    with pytest.raises(UnsuitableRows, match=r"\(and similar errors in 1 more tasks\)$"):
        writer.commit([refused, None, refused])
    writer.abort([written, refused])
    writer.commit([written])


def test_a_topic_that_is_not_there_is_an_error_when_the_broker_creates_none() -> None:
    rows = pa.record_batch({"value": ["v"]})
    with Broker({"auto.create.topics.enable": False}) as strict:
        with pytest.raises(DeliveryFailed, match=r"topic 'missing' does not exist.*penstock topics create missing"):
            write(strict, [rows], topic="missing")
        with pytest.raises(ApiError, match="not a topic name"):
            write(strict, [rows], topic="no/topic")


def test_a_writer_that_has_the_slice_already_only_takes_the_rows() -> None:
    class Repeat(AtLeastOnce):
        def begin(self, slice_: Slice) -> bool:
            assert slice_ == Slice("q", 7, 3)
            return False

    parsed = SinkOptions.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    left = iter([pa.record_batch({"value": ["v"]})] * 2)
    assert write_slice(Repeat(parsed), parsed, Slice("q", 7, 3), left) == TaskWritten((), is_repeat=True, query_id="q")
    assert next(left, None) is None


def test_totals_add_up_over_tasks() -> None:
    one = TaskWritten((PartitionWritten("a", 0, 10, 9), PartitionWritten("b", 1, 5, 4)))
    two = TaskWritten((PartitionWritten("a", 0, 7, 30),))
    added = totals([one, None, two])
    assert added == [PartitionWritten("a", 0, 17, 30), PartitionWritten("b", 1, 5, 4)]
    assert describe(added) == (
        "a: 17 records in 1 partitions (0 up to offset 30); b: 5 records in 1 partitions (1 up to offset 4)"
    )
