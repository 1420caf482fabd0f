"""Records that a task reads of its split, from a log in memory: exact edges, holes, and records that are gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import with_prefix
from penstock.records.builder import Record, build_batch
from penstock.sdk import BlockingAdmin
from penstock.spark.source import reading
from penstock.spark.source.columns import arrow_schema, source_schema
from penstock.spark.source.offsets import DataLoss
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.reading import joined, read_split, read_task
from penstock.spark.source.splits import Split, SplitGroup
from penstock.testing import Broker
from penstock.wire_client.blocking import connection, fetch_stream
from penstock.wire_client.blocking.connection import ReceiveBuffer
from penstock.wire_client.blocking.fetch_stream import FetchedChunk
from penstock.wire_client.blocking.joint_fetch import JointFetch
from penstock.wire_client.requests.errors import LogTruncated, NoSuchTopic, OffsetOutOfRange, TopicRecreated


class FakeLog:
    """Batches of ten; `first` moves as retention does it."""

    def __init__(self) -> None:
        self.first, self.end = 0, 100
        self.failure: Exception | None = None
        self.failures: list[Exception] = []
        """Each once."""
        self.hole: range = range(0)

    def __call__(self, cluster: object, tp: TopicPartition, start: int, end: int, **options: Any) -> Any:
        return FakeStream(self, tp, start, end)


class FakeStream:
    def __init__(self, log: FakeLog, tp: TopicPartition, start: int, end: int) -> None:
        self.log, self.tp, self.position, self.end = log, tp, start, end

    def advance(self, next_offset: int) -> None:
        self.position = next_offset

    def __iter__(self) -> Iterator[FetchedChunk]:
        while self.position < self.end:
            if self.log.failures:
                raise self.log.failures.pop()
            if self.log.failure is not None:
                raise self.log.failure
            if not self.log.first <= self.position <= self.log.end:
                raise OffsetOutOfRange(self.tp, self.position, self.log.first, self.log.end)
            base = self.position // 10 * 10
            while base in self.log.hole:
                base += 10
            records = [Record(None, b"%d" % offset) for offset in range(base, base + 10)]
            yield FetchedChunk(memoryview(with_prefix(build_batch(records), base, 0)), [], 100, 100, self.log.first)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    made = FakeLog()
    monkeypatch.setattr(reading, "FetchStream", made)
    monkeypatch.setattr(reading, "spare_the_heap", lambda kind: None)
    return made


def offsets(start: int, end: int, **options: str) -> list[int]:
    chosen = SourceOptions.for_batch({"subscribe": "t"} | options)
    found: list[int] = []
    for batch in read_split(Split("t", 0, start, end), chosen, arrow_schema(source_schema(False))):
        assert batch.schema.names[:2] == ["key", "value"]
        found += batch.column("offset").to_pylist()
        assert [b"%d" % offset for offset in batch.column("offset").to_pylist()] == batch.column("value").to_pylist()
    return found


def test_exactly_the_split(log: FakeLog) -> None:
    assert offsets(13, 37) == list(range(13, 37))
    assert offsets(20, 30) == list(range(20, 30))
    log.hole = range(20, 40)
    assert offsets(15, 45) == [*range(15, 20), *range(40, 45)]
    assert offsets(15, 30) == [*range(15, 20)]
    assert offsets(7, 7) == []


def test_typed_values(log: FakeLog) -> None:
    """These are numbers, and no objects."""
    options = SourceOptions.for_batch({"subscribe": "t", "valueFormat": "json", "valueSchema": "id long"})
    schema = arrow_schema(source_schema(False, options.values))
    (rows,) = pa.Table.from_batches(read_task(Split("t", 0, 13, 15), options, schema)).to_batches()
    assert rows.select(["offset", "value", "badValue"]).to_pylist() == [
        {"offset": 13, "value": None, "badValue": b"13"},
        {"offset": 14, "value": None, "badValue": b"14"},
    ]
    few = pa.schema([schema.field("offset")])
    assert pa.Table.from_batches(read_task(Split("t", 0, 13, 15), options, few)).schema == few


def test_retention_that_passed_the_split(log: FakeLog, caplog: pytest.LogCaptureFixture) -> None:
    log.first = 40
    with pytest.raises(
        DataLoss, match=r"partition 0 of 't' no longer has offset 13: .*available offset is 40\. To continue"
    ):
        offsets(13, 57)
    assert offsets(13, 57, failOnDataLoss="false") == list(range(40, 57))
    assert offsets(13, 37, failOnDataLoss="false") == []
    assert "no longer has offset 13: the first available offset is 40. Continuing" in caplog.text


def test_log_that_became_shorter(log: FakeLog) -> None:
    log.end = 20
    with pytest.raises(
        DataLoss, match="offset 30 is outside t-0: it begins at 0 and ends before 20: the log became shorter"
    ):
        offsets(30, 50)
    assert offsets(30, 50, failOnDataLoss="false") == []


def test_log_that_came_back_shorter(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Planned up to 20, and the log has 10: a loss, not a broker to wait for."""
    monkeypatch.setattr(fetch_stream, "SHORT_S", 0.3)
    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(10):
            producer.produce("t", b"%d" % number)
        assert producer.flush(30) == 0
        servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        for start in (5, 10, 15):
            with pytest.raises(
                DataLoss, match="begins at 0 and ends before 10: the log became shorter while it was read up to 20"
            ):
                offsets(start, 20, **servers)
            assert offsets(start, 20, failOnDataLoss="false", **servers) == list(range(start, 10))
    assert "Continuing, because failOnDataLoss is false" in caplog.text


def test_log_that_was_truncated(log: FakeLog) -> None:
    """Up to there the records are those of the batch. Others are for the next batch."""
    log.failures = [LogTruncated(("t", 0), 30, 50, 5)]
    with pytest.raises(DataLoss, match="t-0 was truncated to offset 30"):
        offsets(13, 50)
    log.failures = [LogTruncated(("t", 0), 30, 50, 5)]
    assert offsets(13, 50, failOnDataLoss="false") == list(range(13, 30))


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (TopicRecreated("t", b"\x01" * 16, b"\x02" * 16), "topic 't' was deleted and created again"),
        (ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 't' does not exist"), "topic 't' does not exist"),
    ],
)
def test_topic_that_is_gone(log: FakeLog, failure: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATIENCE_S", 0.3)
    log.failure = failure
    with pytest.raises(DataLoss, match=sentence):
        offsets(0, 10)
    assert offsets(0, 10, failOnDataLoss="false") == []


def test_topic_that_only_seems_gone(log: FakeLog, caplog: pytest.LogCaptureFixture) -> None:
    """By the metadata of a broker that has just returned."""
    log.failures = [TopicRecreated("t", b"\x01" * 16, b"\x02" * 16), NoSuchTopic("topic 't' does not exist")]
    assert offsets(3, 25) == list(range(3, 25))
    assert caplog.text == ""


def test_other_errors_are_not_taken_for_a_loss(log: FakeLog) -> None:
    log.failure = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
        offsets(0, 10, failOnDataLoss="false")


def test_chunks_of_a_split_share_one_block_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "spare_the_heap", lambda kind: None)
    monkeypatch.setattr(connection.thread_buffer(), "_kept", bytearray(1))
    blocks: list[object] = []

    def take(buffer: ReceiveBuffer, size: int, real: Any = ReceiveBuffer.take) -> memoryview:
        taken: memoryview = real(buffer, size)
        blocks.append(taken.obj)
        return taken

    monkeypatch.setattr(ReceiveBuffer, "take", take)
    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 10})
        for number in range(400):
            producer.produce("t", b"%d" % number)
        assert producer.flush(30) == 0
        small = {"kafka.max.partition.fetch.bytes": "1000", "kafka.bootstrap.servers": broker.bootstrap_servers}
        assert offsets(0, 400, **small) == list(range(400))
    assert len(blocks) > 5
    assert len({id(block) for block in blocks}) == 1


# -- several splits in a task -----------------------------------------------------------------


class Rows:
    """The records that tasks with several splits read of a topic in a broker, by partition."""

    def __init__(self, broker: Broker, topic: str, **options: str) -> None:
        given = {"subscribe": topic, "kafka.bootstrap.servers": broker.bootstrap_servers} | options
        self.options = SourceOptions.for_batch(given)
        self.topic = topic
        self.batches: list[int] = []
        """The rows of each Arrow batch."""

    def __call__(self, *edges: tuple[int, int]) -> dict[int, list[int]]:
        splits = tuple(Split(self.topic, number, *edge) for number, edge in enumerate(edges))
        found: dict[int, list[int]] = {}
        for batch in read_task(SplitGroup(splits), self.options, arrow_schema(source_schema(False))):
            self.batches.append(batch.num_rows)
            for row in batch.to_pylist():
                assert (row["topic"], row["value"]) == (self.topic, b"%d-%d" % (row["partition"], row["offset"]))
                found.setdefault(row["partition"], []).append(row["offset"])
        return found


def produce(broker: Broker, topic: str, partitions: int, records: int) -> None:
    with BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 10})
    for number in range(records):
        for partition in range(partitions):
            producer.produce(topic, b"%d-%d" % (partition, number), partition=partition)
    assert producer.flush(60) == 0


@pytest.fixture
def spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "spare_the_heap", lambda kind: None)


@pytest.mark.usefixtures("spared")
def test_splits_of_a_task_are_read_together(penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(penstock_broker, "read-together", 4, 50)
    read = Rows(penstock_broker, "read-together")
    monkeypatch.setattr(reading, "read_split", None)  # nothing is left for it
    edges = [(0, 50), (13, 14), (7, 7), (49, 50)]
    assert read(*edges) == {number: list(range(*edge)) for number, edge in enumerate(edges) if edge[0] < edge[1]}
    assert read.batches == [52], "small batches of several partitions are one"


@pytest.mark.usefixtures("spared")
def test_split_with_a_loss_beside_others(penstock_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    produce(penstock_broker, "read-around", 3, 20)
    admin = AdminClient({"bootstrap.servers": penstock_broker.bootstrap_servers})
    (deleted,) = admin.delete_records([KafkaPartition("read-around", 1, 12)]).values()
    deleted.result(30)
    with pytest.raises(DataLoss, match="partition 1 of 'read-around' no longer has offset 5"):
        Rows(penstock_broker, "read-around")((0, 20), (5, 20), (3, 9))
    found = Rows(penstock_broker, "read-around", failOnDataLoss="false")((0, 20), (5, 20), (3, 9))
    assert found == {0: list(range(20)), 1: list(range(12, 20)), 2: list(range(3, 9))}
    assert "no longer has offset 5: the first available offset is 12. Continuing" in caplog.text


@pytest.mark.usefixtures("spared")
@pytest.mark.parametrize("failing", [{0}, {2}, {0, 1, 2, 3}])
def test_rest_of_each_split_is_read_alone(
    penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch, failing: set[int]
) -> None:
    """After the first chunk nothing more comes for these partitions, as after a lost leader."""
    topic = f"read-alone-{len(failing)}-{min(failing)}"
    produce(penstock_broker, topic, 4, 60)

    class Failing(JointFetch):
        def __iter__(self) -> Iterator[tuple[int, FetchedChunk]]:
            seen: set[int] = set()
            for index, chunk in super().__iter__():
                if index not in failing & seen:
                    yield index, chunk
                seen.add(index)

    monkeypatch.setattr(reading, "JointFetch", Failing)
    read = Rows(penstock_broker, topic, **{"kafka.fetch.max.bytes": "400"})
    assert read(*[(0, 60)] * 4) == {number: list(range(60)) for number in range(4)}


def test_large_batches_are_not_copied() -> None:
    def batch(rows: int, size: int = 1) -> Any:
        return pa.RecordBatch.from_pydict({"value": [b"x" * size] * rows})

    large = batch(5000)
    found = list(joined([batch(1), batch(2), large, batch(3), batch(4)]))
    assert [one.num_rows for one in found] == [3, 5000, 7]
    assert found[1] is large
    # Rows and bytes of a batch are limited.
    assert [one.num_rows for one in joined([batch(900)] * 12)] == [9900, 900]
    assert [one.num_rows for one in joined([batch(1, 900_000)] * 5)] == [4, 1]
    assert list(joined([])) == []


def test_lookup_of_the_source_imports_little() -> None:
    """Every process in which Spark looks for sources imports the package."""
    heavy = ("pyarrow", "numba", "numpy", "asyncio", "penstock.wire_client", "penstock.wire")
    script = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); from pyspark_penstock import DefaultSource; "
        f"print(DefaultSource.name(), [name for name in {heavy} if name in sys.modules and name not in before])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "penstock []\n"
