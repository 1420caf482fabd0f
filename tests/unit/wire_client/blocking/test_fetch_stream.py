"""A stream of fetched batches: against a broker in this process, and scripted ones with holes and lapses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, read_header, with_prefix
from penstock.records.builder import Record, build_batch, decode_uncompressed
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.primitives import Message
from penstock.wire_client.blocking import connection, fetch_stream
from penstock.wire_client.blocking.cluster import BlockingCluster, FetchedChunk, FetchStream
from penstock.wire_client.blocking.security import ClientSecurity
from penstock.wire_client.requests.errors import (
    FetchStalled,
    LogTruncated,
    OffsetOutOfRange,
    TopicRecreated,
    WireClientError,
)
from support.scripted.broker import Reply, ScriptedBroker
from support.scripted.tls_proxy import CERTIFICATE, TlsProxy

_numbers = count()
TP = TopicPartition("t", 0)
TOPIC_ID = b"t" * 16


@pytest.fixture
def cluster(penstock_broker: Broker) -> Iterator[BlockingCluster]:
    cluster = BlockingCluster([("127.0.0.1", penstock_broker.port)], timeout_s=20.0)
    yield cluster
    cluster.close()


def create(cluster: BlockingCluster, name: str | None = None) -> TopicPartition:
    name = name or f"stream-{next(_numbers)}"
    cluster.topics()
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    answer = cluster.connection(1, "control").call(Api.CREATE_TOPICS, request, CreateTopicsResponse)
    assert not answer.topics[0].error_code
    return TopicPartition(name, 0)


def produce(cluster: BlockingCluster, tp: TopicPartition, *batches: Sequence[bytes]) -> None:
    connection = cluster.connection(cluster.leader(tp).node_id, "produce")
    for values in batches:
        data = PartitionProduceData(index=0, records=build_batch([Record(None, value) for value in values]))
        topic = TopicProduceData(name=tp.topic, partition_data=[data])
        answer = connection.call(
            Api.PRODUCE, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), ProduceResponse
        )
        assert not answer.responses[0].partition_responses[0].error_code


def batches_of(chunk: FetchedChunk) -> list[memoryview]:
    found, at = [], 0
    while len(chunk.records) - at >= 61 and len(chunk.records) - at >= read_header(chunk.records, at).size_bytes:
        size = read_header(chunk.records, at).size_bytes
        found.append(chunk.records[at : at + size])
        at += size
    return found


def read(stream: FetchStream, start: int = 0, end: int = 1 << 62) -> list[tuple[int, bytes | None]]:
    """Offsets and values between `start` and `end`, as a decoder would give them."""
    return [
        (record.offset, record.value)
        for chunk in stream
        for batch in batches_of(chunk)
        if not read_header(batch).is_control
        for record in decode_uncompressed(batch)
        if start <= record.offset < end
    ]


# -- a real broker ----------------------------------------------------------------------------


def test_every_record_once_and_in_order(cluster: BlockingCluster) -> None:
    tp = create(cluster)
    values = [b"%05d" % number * 200 for number in range(600)]
    produce(cluster, tp, *(values[at : at + 7] for at in range(0, 600, 7)))
    for max_bytes in (1, 10_000, 8 << 20):
        for topic_id in (None, cluster.topics([tp.topic])[tp.topic].topic_id):
            stream = FetchStream(cluster, tp, 0, 600, read_committed=True, max_bytes=max_bytes, topic_id=topic_id)
            assert read(stream) == list(enumerate(values))


def test_parts_of_the_log(cluster: BlockingCluster) -> None:
    tp = create(cluster)
    produce(cluster, tp, *([b"%d" % number, b"x", b"y"] for number in range(40)))
    for start, end in ((0, 1), (5, 6), (7, 100), (119, 120), (60, 60), (10, 5)):
        stream = FetchStream(cluster, tp, start, end, read_committed=False, max_bytes=300)
        assert [offset for offset, _ in read(stream, start, end)] == list(range(start, end))


def test_a_batch_larger_than_what_is_asked_for(cluster: BlockingCluster) -> None:
    tp = create(cluster)
    produce(cluster, tp, [b"a" * 500_000], [b"b"], [b"c" * 500_000])
    stream = FetchStream(cluster, tp, 0, 3, read_committed=False, max_bytes=1000)
    assert [len(value or b"") for _, value in read(stream)] == [500_000, 1, 500_000]


def test_a_chunk_says_what_the_broker_said(cluster: BlockingCluster) -> None:
    tp = create(cluster)
    produce(cluster, tp, [b"a", b"b"], [b"c"])
    (chunk,) = FetchStream(cluster, tp, 0, 2, read_committed=True)
    assert (chunk.high_watermark, chunk.last_stable_offset, chunk.log_start_offset) == (3, 3, 0)
    assert chunk.aborted == []


def test_views_end_with_the_next_chunk_and_memory_is_used_again(cluster: BlockingCluster) -> None:
    tp = create(cluster)
    produce(cluster, tp, [b"a" * 1000], [b"b" * 1000], [b"c" * 1000])
    chunks = iter(FetchStream(cluster, tp, 0, 3, read_committed=False, max_bytes=1))
    first = next(chunks)
    memory = first.records.obj
    second = next(chunks)
    with pytest.raises(ValueError, match="released"):
        bytes(first.records)
    assert second.records.obj is memory
    kept = second.records[61:]
    before = bytes(kept)
    third = next(chunks)
    assert third.records.obj is not memory, "someone still looks at it"
    assert bytes(kept) == before
    assert list(chunks) == []
    with pytest.raises(ValueError, match="released"):
        bytes(third.records)


def test_a_thread_keeps_one_block_of_memory_for_all_brokers(
    cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEPT_BYTES", 1 << 18)
    monkeypatch.setattr(connection.thread_buffer(), "_kept", bytearray(1))
    tps = [create(cluster), create(cluster)]
    for tp in tps:
        produce(cluster, tp, [b"a" * 50_000], [b"b" * 50_000], [b"c" * 900_000], [b"d"])
    blocks = []
    for tp in tps:
        cluster._idle.clear()  # as with another broker
        for chunk in FetchStream(cluster, tp, 0, 4, read_committed=False, max_bytes=1):
            blocks.append(chunk.records.obj)
    small = [block for block in blocks if isinstance(block, bytearray) and len(block) <= 1 << 18]
    assert len(small) == 6
    assert all(block is connection.thread_buffer()._kept for block in small)
    elsewhere: list[object] = []
    thread = threading.Thread(target=lambda: elsewhere.append(connection.thread_buffer()))
    thread.start()
    thread.join()
    assert elsewhere != [connection.thread_buffer()]


def test_connections_are_given_back(cluster: BlockingCluster) -> None:
    tp = create(cluster)
    produce(cluster, tp, [b"a"], [b"b"], [b"c"])
    assert len(read(FetchStream(cluster, tp, 0, 3, read_committed=False))) == 3
    (idle,) = cluster._idle.values()
    (kept,) = idle
    assert len(read(FetchStream(cluster, tp, 0, 3, read_committed=False, max_bytes=1))) == 3
    assert idle == [kept]
    for _ in FetchStream(cluster, tp, 0, 3, read_committed=False, max_bytes=1):
        break  # with a fetch under way
    assert idle == []
    assert not kept.is_usable


def test_two_streams_side_by_side(cluster: BlockingCluster) -> None:
    tp = create(cluster)
    values = [b"%d" % number for number in range(50)]
    produce(cluster, tp, *([value] for value in values))
    streams = [iter(FetchStream(cluster, tp, 0, 50, read_committed=False, max_bytes=1)) for _ in range(2)]
    found: list[list[bytes | None]] = [[], []]
    for chunks in zip(*streams, strict=True):
        for which, chunk in enumerate(chunks):
            found[which] += [record.value for batch in batches_of(chunk) for record in decode_uncompressed(batch)]
    assert found == [values, values]


def test_an_offset_that_is_gone(cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_stream, "SHORT_S", 0.2)
    tp = create(cluster)
    produce(cluster, tp, [b"a"], [b"b"], [b"c"])
    partition = DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=tp.topic, partitions=[partition])], timeout_ms=9000)
    cluster.connection(1, "control").call(Api.DELETE_RECORDS, request, DeleteRecordsResponse)
    with pytest.raises(
        OffsetOutOfRange, match=rf"offset 1 is outside {tp.topic}-0: it begins at 2 and ends before 3"
    ) as gone:
        read(FetchStream(cluster, tp, 1, 3, read_committed=False))
    assert (gone.value.tp, gone.value.wanted) == (tp, 1)
    with pytest.raises(OffsetOutOfRange) as gone:
        read(FetchStream(cluster, tp, 17, 20, read_committed=False))
    assert (gone.value.log_start_offset, gone.value.log_end_offset) == (2, 3)


def test_another_topic_of_the_same_name(cluster: BlockingCluster) -> None:
    tp = create(cluster)
    produce(cluster, tp, [b"a"], [b"b"])
    old_id = cluster.topics([tp.topic])[tp.topic].topic_id
    stream = FetchStream(cluster, tp, 0, 9, read_committed=False, max_bytes=1, topic_id=old_id)
    chunks = iter(stream)
    next(chunks)
    request = DeleteTopicsRequest(topic_names=[tp.topic], timeout_ms=10_000)
    cluster.connection(1, "control").call(Api.DELETE_TOPICS, request, DeleteTopicsResponse)
    with pytest.raises(ApiError, match=f"topic '{tp.topic}' does not exist"):
        list(chunks)
    create(cluster, tp.topic)
    produce(cluster, tp, [b"x"], [b"y"])
    with pytest.raises(TopicRecreated, match="deleted and created again") as recreated:
        read(FetchStream(cluster, tp, 0, 2, read_committed=False, topic_id=old_id))
    assert recreated.value.wanted_id == old_id
    assert recreated.value.found_id == cluster.topics([tp.topic])[tp.topic].topic_id


def test_what_is_known_of_the_topic_may_be_old(cluster: BlockingCluster, penstock_broker: Broker) -> None:
    """The cluster knows the topic before, the caller the one after: no reason to refuse."""
    tp = create(cluster)
    cluster.topic(tp.topic)
    other = BlockingCluster([("127.0.0.1", penstock_broker.port)])
    other.topics()
    request = DeleteTopicsRequest(topic_names=[tp.topic], timeout_ms=10_000)
    other.connection(1, "control").call(Api.DELETE_TOPICS, request, DeleteTopicsResponse)
    create(other, tp.topic)
    produce(other, tp, [b"x"])
    new_id = other.topics([tp.topic])[tp.topic].topic_id
    assert read(FetchStream(cluster, tp, 0, 1, read_committed=False, topic_id=new_id)) == [(0, b"x")]
    other.close()


def test_what_is_not_there_yet_is_waited_for(cluster: BlockingCluster, penstock_broker: Broker) -> None:
    tp = create(cluster)
    produce(cluster, tp, [b"a"])

    def later() -> None:
        time.sleep(0.3)
        other = BlockingCluster([("127.0.0.1", penstock_broker.port)])
        produce(other, tp, [b"b"])
        other.close()

    thread = threading.Thread(target=later)
    thread.start()
    assert read(FetchStream(cluster, tp, 0, 2, read_committed=False)) == [(0, b"a"), (1, b"b")]
    thread.join()


def test_through_tls(cluster: BlockingCluster, penstock_broker: Broker) -> None:
    tp = create(cluster)
    values = [b"%06d" % number * 5000 for number in range(100)]
    produce(cluster, tp, *([value] for value in values))
    with TlsProxy(penstock_broker.port) as proxy:
        secured = BlockingCluster([("localhost", proxy.port)], security=ClientSecurity("SSL", ca=CERTIFICATE))
        stream = FetchStream(secured, tp, 0, 100, read_committed=False, max_bytes=1 << 20)
        assert read(stream) == list(enumerate(values))
        secured.close()


def test_a_broker_that_restarts(penstock_broker_factory: Callable[..., Broker], tmp_path: Path) -> None:
    broker = penstock_broker_factory(data=tmp_path)
    cluster = BlockingCluster([("127.0.0.1", broker.port)], timeout_s=20.0)
    tp = create(cluster)
    produce(cluster, tp, *([b"%d" % number] for number in range(30)))
    found = []
    for chunk in FetchStream(cluster, tp, 0, 30, read_committed=False, max_bytes=1):
        found.append(read_header(chunk.records).base_offset)
        if found[-1] in (3, 17):
            broker.stop()
            threading.Thread(target=broker.start).start()
    assert found == list(range(30))
    cluster.close()


# -- scripted brokers -------------------------------------------------------------------------


def batch_at(base_offset: int, *values: bytes, attributes: int = 0, producer_id: int = -1) -> bytes:
    records = [Record(None, value) for value in values]
    return with_prefix(build_batch(records, attributes=attributes, producer_id=producer_id), base_offset, 0)


class Log:
    """Answers fetches from batches; `lapses` are answered first, in order."""

    def __init__(self, *batches: bytes, high_watermark: int, last_stable_offset: int | None = None) -> None:
        self.batches = batches
        self.high_watermark = high_watermark
        self.last_stable_offset = high_watermark if last_stable_offset is None else last_stable_offset
        self.lapses: list[Reply] = []
        self.offsets: list[int] = []
        self.earliest_local = 0

    def fetch(self, request: Message) -> Reply:
        assert isinstance(request, FetchRequest)
        asked = request.topics[0].partitions[0]
        self.offsets.append(asked.fetch_offset)
        if self.lapses:
            return self.lapses.pop(0)
        wanted = [batch for batch in self.batches if read_header(batch).last_offset >= asked.fetch_offset]
        size = max(asked.partition_max_bytes, len(wanted[0]) if wanted else 0)
        records = b"".join(wanted)[:size]
        return self.answer(records=records)

    def answer(
        self, code: int = 0, records: bytes | None = b"", aborted: list[AbortedTransaction] | None = None
    ) -> Reply:
        data = PartitionData(
            partition_index=0,
            error_code=code,
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=0,
            aborted_transactions=aborted,
            records=records,
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=[data])])

    def list_offsets(self, request: Message) -> Reply:
        assert isinstance(request, ListOffsetsRequest)
        timestamp = request.topics[0].partitions[0].timestamp
        offset = {-1: self.high_watermark, -2: 0, -4: self.earliest_local}[timestamp]
        partition = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])

    def broker(self, newest_fetch: int = 17) -> ScriptedBroker:
        scripts = {Api.FETCH: self.fetch, Api.LIST_OFFSETS: self.list_offsets}
        return ScriptedBroker(scripts, {"t": TOPIC_ID}, {Api.FETCH: newest_fetch})


def stream_of(broker: ScriptedBroker, start: int, end: int, timeout_s: float = 10.0, **options: object) -> FetchStream:
    cluster = BlockingCluster([broker.address], timeout_s=10.0)
    arguments: dict[str, object] = {"read_committed": False, **options}
    return FetchStream(cluster, TP, start, end, timeout_s=timeout_s, **arguments)  # type: ignore[arg-type]


def test_the_next_fetch_leaves_before_the_chunk_is_handed_out() -> None:
    log = Log(batch_at(0, b"a", b"b"), batch_at(2, b"c"), batch_at(3, b"d"), high_watermark=4)
    with log.broker() as broker:
        chunks = iter(stream_of(broker, 0, 4, max_bytes=1))
        next(chunks)
        wait_until(lambda: log.offsets == [0, 2])
        next(chunks)
        wait_until(lambda: log.offsets == [0, 2, 3])
        assert len(list(chunks)) == 1
        assert log.offsets == [0, 2, 3], "nothing is asked for at the end"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_truncated_batch_is_asked_for_again() -> None:
    first, second = batch_at(0, b"a" * 100), batch_at(1, b"b" * 100)
    log = Log(first, second, high_watermark=2)
    with log.broker() as broker:
        assert read(stream_of(broker, 0, 2, max_bytes=len(first) + 70)) == [(0, b"a" * 100), (1, b"b" * 100)]
    assert log.offsets == [0, 1]


def test_holes_are_passed_over() -> None:
    log = Log(batch_at(5, b"a"), batch_at(90, b"b", b"c"), high_watermark=100)
    with log.broker() as broker:
        assert read(stream_of(broker, 0, 92, max_bytes=1)) == [(5, b"a"), (90, b"b"), (91, b"c")]
    assert log.offsets == [0, 6]


def test_a_hole_up_to_the_end_ends_the_stream() -> None:
    log = Log(batch_at(0, b"a"), high_watermark=100)
    with log.broker() as broker:
        stream = stream_of(broker, 0, 50, timeout_s=60.0)
        assert read(stream) == [(0, b"a")]
        assert stream.position == 50
    assert log.offsets == [0, 1]


def test_a_slow_read_of_remote_storage_is_no_hole() -> None:
    log = Log(batch_at(0, b"a"), high_watermark=1)
    log.earliest_local = 1
    log.lapses = [log.answer(), log.answer(records=None)]
    with log.broker() as broker:
        assert read(stream_of(broker, 0, 1)) == [(0, b"a")]
    assert log.offsets == [0, 0, 0]


def test_a_throttled_answer_is_no_hole() -> None:
    log = Log(batch_at(0, b"a"), high_watermark=1)
    log.lapses = [FetchResponse(throttle_time_ms=10), FetchResponse(responses=[FetchableTopicResponse(topic="t")])]
    with log.broker() as broker:
        assert read(stream_of(broker, 0, 1)) == [(0, b"a")]


def test_what_is_not_committed_yet_is_waited_for() -> None:
    log = Log(batch_at(0, b"a"), high_watermark=5, last_stable_offset=1)
    with (
        log.broker() as broker,
        pytest.raises(FetchStalled, match="its log is committed only up to offset 1") as stalled,
    ):
        read(stream_of(broker, 0, 3, timeout_s=0.3, read_committed=True))
    assert stalled.value.position == 1


@pytest.mark.parametrize("start", [0, 3, 5])
@pytest.mark.parametrize("read_committed", [False, True])
def test_a_log_that_ends_too_early_is_a_loss(start: int, read_committed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the patience with brokers ends, and also when that is short."""
    monkeypatch.setattr(fetch_stream, "SHORT_S", 0.3)
    for timeout_s in (0.01, 100.0):
        log = Log(batch_at(0, b"a", b"b", b"c"), high_watermark=3)
        if start > 3:
            log.lapses = [log.answer(ErrorCode.OFFSET_OUT_OF_RANGE)] * 100
        with log.broker() as broker:
            chunks = iter(stream_of(broker, start, 9, timeout_s=timeout_s, read_committed=read_committed))
            if start == 0:
                assert len(batches_of(next(chunks))) == 1
            with pytest.raises(OffsetOutOfRange, match="offset 8 is outside t-0: it begins at 0 and ends before 3"):
                next(chunks)
            assert len(log.offsets) > 2, "not at once"


def test_a_broker_that_does_not_know_its_log_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its high watermark lags: in its answers, and then only in those to fetches."""
    monkeypatch.setattr(fetch_stream, "SHORT_S", 0.3)
    log = Log(batch_at(0, b"a"), batch_at(1, b"b"), high_watermark=2)
    lagging = Log(high_watermark=1)
    log.lapses = [log.answer(records=batch_at(0, b"a")), *[lagging.answer()] * 6]
    with log.broker() as broker:
        assert read(stream_of(broker, 0, 2, max_bytes=1)) == [(0, b"a"), (1, b"b")]
    log.offsets.clear()
    log.lapses = [lagging.answer(ErrorCode.OFFSET_OUT_OF_RANGE), lagging.answer(), None]
    with log.broker() as broker:
        assert read(stream_of(broker, 1, 2, max_bytes=1)) == [(1, b"b")]


def test_a_lost_connection_begins_the_wait_for_a_log_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_stream, "SHORT_S", 0.3)
    log = Log(batch_at(0, b"a"), high_watermark=1)
    lagging = Log(high_watermark=0)
    log.lapses = [lagging.answer(), lagging.answer(), lagging.answer(), None, lagging.answer()]
    log.high_watermark = 0
    asked: list[float] = []

    def list_offsets(request: Message) -> Reply:
        asked.append(time.monotonic())
        return Log.list_offsets(log, request)

    monkeypatch.setattr(log, "list_offsets", list_offsets)
    with log.broker() as broker:
        assert read(stream_of(broker, 0, 1)) == [(0, b"a")]
    assert not asked, "nobody was taken at his word"


def test_control_batches_move_the_position() -> None:
    marker = batch_at(1, b"m", attributes=TRANSACTIONAL_BIT | CONTROL_BIT, producer_id=9)
    log = Log(batch_at(0, b"a"), marker, high_watermark=2)
    with log.broker() as broker:
        stream = stream_of(broker, 0, 2, read_committed=True, max_bytes=1)
        assert read(stream) == [(0, b"a")]
        assert stream.position == 2


def test_aborted_transactions_are_told() -> None:
    log = Log(high_watermark=1)
    aborted = [AbortedTransaction(producer_id=9, first_offset=4), AbortedTransaction(producer_id=8, first_offset=5)]
    log.lapses = [log.answer(records=batch_at(0, b"a"), aborted=aborted)]
    with log.broker() as broker:
        (chunk,) = stream_of(broker, 0, 1, read_committed=True)
        assert chunk.aborted == [(9, 4), (8, 5)]
        (request,) = broker.asked(FetchRequest)
        assert isinstance(request, FetchRequest)
        assert request.isolation_level == 1


@pytest.mark.parametrize(("start", "end", "first", "second"), [(0, 10, 75_776, 65_596), (0, 1 << 40, 1 << 20, 1 << 20)])
def test_no_more_is_asked_for_than_is_likely_needed(start: int, end: int, first: int, second: int) -> None:
    log = Log(batch_at(0, b"a" * 200), high_watermark=1 << 40)
    log.lapses = [log.answer(records=batch_at(0, b"12345", b"1"))]
    with log.broker() as broker:
        chunks = iter(stream_of(broker, start, end, max_bytes=1 << 20))
        next(chunks)
        wait_until(lambda: len(log.offsets) == 2)
        sizes = [
            request.topics[0].partitions[0].partition_max_bytes
            for request in broker.asked(FetchRequest)
            if isinstance(request, FetchRequest)
        ]
        chunks.close()  # type: ignore[attr-defined]
    assert sizes[0] == first
    assert abs(sizes[1] - second) < 1000


def test_the_caller_goes_elsewhere() -> None:
    log = Log(*(batch_at(offset, b"%d" % offset) for offset in range(10)), high_watermark=10)
    with log.broker() as broker:
        stream = stream_of(broker, 0, 10, max_bytes=1)
        found = []
        for chunk in stream:
            offset = read_header(chunk.records).base_offset
            found.append(offset)
            if offset == 2:
                stream.advance(7)
        assert found == [0, 1, 2, 7, 8, 9]


def test_bytes_that_are_no_batch_are_the_decoders_to_refuse() -> None:
    for rubbish in (b"x" * 10, b"\0" * 100, b"\xff" * 100):
        log = Log(high_watermark=5)
        log.lapses = [log.answer(records=rubbish)]
        with log.broker() as broker:
            chunks = iter(stream_of(broker, 0, 5))
            assert bytes(next(chunks).records) == rubbish
            with pytest.raises(WireClientError, match="bytes without a whole record batch at offset 0"):
                next(chunks)


@pytest.mark.parametrize("newest_fetch", [11, 12, 17])
def test_topic_ids_where_the_broker_has_them(newest_fetch: int) -> None:
    log = Log(batch_at(0, b"a"), high_watermark=1)
    with log.broker(newest_fetch) as broker:
        assert read(stream_of(broker, 0, 1, topic_id=TOPIC_ID)) == [(0, b"a")]
        (request,) = broker.asked(FetchRequest)
        assert isinstance(request, FetchRequest)
        asked = request.topics[0]
        assert (asked.topic, asked.topic_id) == (("", TOPIC_ID) if newest_fetch > 12 else ("t", b"\0" * 16))


@pytest.mark.parametrize(("known", "end_offset", "is_truncated"), [(5, 2, True), (5, 3, False), (5, -1, False)])
def test_log_that_was_truncated_is_not_read(known: int, end_offset: int, is_truncated: bool) -> None:
    """Its leader has epoch 6. Records of epoch 5 are wanted, and in their place there are others."""
    log = Log(*(batch_at(offset, b"%d" % offset) for offset in range(9)), high_watermark=9)
    with log.broker() as broker:
        broker.leader_epoch = 6
        broker.scripts[Api.OFFSET_FOR_LEADER_EPOCH] = lambda _: OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(topic="t", partitions=[EpochEndOffset(partition=0, end_offset=end_offset)])
            ]
        )
        stream = stream_of(broker, 0, 3, leader_epoch=known)
        if is_truncated:
            with pytest.raises(LogTruncated, match=r"t-0 was truncated to offset 2: .* epoch 5 .* before offset 3"):
                read(stream)
            assert log.offsets == []
        else:
            assert [offset for offset, _ in read(stream, 0, 3)] == [0, 1, 2]
        (request,) = broker.asked(OffsetForLeaderEpochRequest)
        assert isinstance(request, OffsetForLeaderEpochRequest)
        (asked,) = request.topics[0].partitions
        assert (asked.leader_epoch, asked.current_leader_epoch) == (5, 6)


def test_a_leader_of_the_known_epoch_is_not_asked_for_its_history() -> None:
    log = Log(batch_at(0, b"a"), high_watermark=1)
    with log.broker() as broker:
        broker.leader_epoch = 6
        assert read(stream_of(broker, 0, 1, leader_epoch=6)) == [(0, b"a")]
        (request,) = broker.asked(FetchRequest)
        assert isinstance(request, FetchRequest)
        assert request.topics[0].partitions[0].current_leader_epoch == 6


def test_a_leader_that_was_replaced_is_looked_up_again() -> None:
    log = Log(batch_at(0, b"a"), high_watermark=1)
    log.lapses = [log.answer(ErrorCode.FENCED_LEADER_EPOCH), log.answer(ErrorCode.UNKNOWN_LEADER_EPOCH)]
    with log.broker() as broker:
        assert read(stream_of(broker, 0, 1)) == [(0, b"a")]
        assert len(broker.asked(MetadataRequest)) >= 3


# -- lapses -----------------------------------------------------------------------------------


def test_lost_connections_and_new_leaders() -> None:
    log = Log(*(batch_at(offset, b"%d" % offset) for offset in range(6)), high_watermark=6)
    with log.broker() as broker:
        found = []
        for chunk in stream_of(broker, 0, 6, max_bytes=1):
            offset = read_header(chunk.records).base_offset
            found.append(offset)
            if offset == 1:
                broker.hang_up()
            elif offset == 3:
                log.lapses = [None, log.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), log.answer(-1), None]
        assert found == [0, 1, 2, 3, 4, 5]
        assert len(broker.asked(MetadataRequest)) >= 4, "who leads is asked anew"


def test_a_broker_that_is_gone_for_good() -> None:
    log = Log(high_watermark=2)
    log.lapses = [log.answer(records=batch_at(0, b"a")), None]
    with log.broker() as broker:
        chunks = iter(stream_of(broker, 0, 2, timeout_s=0.5))
        next(chunks)
        port = broker.port
    with pytest.raises(FetchStalled) as stalled:
        next(chunks)
    text = str(stalled.value)
    assert text.startswith(f"t-0: no records from broker 1 at 127.0.0.1:{port} at offset 1 (reading up to 2) for ")
    assert "Connection refused" in text


def test_a_broker_that_was_never_there() -> None:
    with ScriptedBroker() as gone:
        pass
    with pytest.raises(FetchStalled, match="broker that is not known at offset 7"):
        read(stream_of(gone, 7, 9, timeout_s=0.2))


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CORRUPT_MESSAGE])
def test_refusals_are_not_tried_again(code: ErrorCode) -> None:
    log = Log(high_watermark=5)
    log.lapses = [log.answer(code)]
    with log.broker() as broker, pytest.raises(ApiError, match=f"t-0 at offset 3: broker 1 at .* says {code.name}"):
        read(stream_of(broker, 3, 5, timeout_s=60.0))
    assert log.offsets == [3]


def test_out_of_range_for_a_moment_only() -> None:
    log = Log(batch_at(0, b"a"), high_watermark=1)
    log.lapses = [log.answer(ErrorCode.OFFSET_OUT_OF_RANGE)]
    with log.broker() as broker:
        assert read(stream_of(broker, 0, 1)) == [(0, b"a")]
