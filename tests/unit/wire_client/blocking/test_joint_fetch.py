"""Fetches for many partitions at once: against a broker in this process, and scripted leaders with lapses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pytest
from confluent_kafka import Producer

from penstock.model.errors import ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import read_header, with_prefix
from penstock.records.builder import Record, build_batch, decode_uncompressed
from penstock.sdk import BlockingAdmin
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from penstock.wire.primitives import Message
from penstock.wire_client.blocking import connection, joint_fetch
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.connection import ReceiveBuffer
from penstock.wire_client.blocking.fetch_stream import FetchedChunk
from penstock.wire_client.blocking.joint_fetch import FetchRange, JointFetch
from support.scripted.broker import Reply
from support.scripted.cluster import Partition, ScriptedCluster

_numbers = count()
Found = dict[int, list[tuple[int, bytes | None]]]


def rows(chunk: FetchedChunk) -> Iterator[tuple[int, bytes | None]]:
    at = 0
    while len(chunk.records) - at >= 61 and len(chunk.records) - at >= read_header(chunk.records, at).size_bytes:
        size = read_header(chunk.records, at).size_bytes
        for record in decode_uncompressed(bytes(chunk.records[at : at + size])):
            yield record.offset, record.value
        at += size


def read(fetch: JointFetch, ranges: Sequence[FetchRange]) -> Found:
    """Offsets and values of each range, as a decoder would give them."""
    found: Found = {}
    for index, chunk in fetch:
        wanted = range(ranges[index].start, ranges[index].end)
        found.setdefault(index, []).extend(row for row in rows(chunk) if row[0] in wanted)
    return found


# -- a real broker ----------------------------------------------------------------------------


@pytest.fixture
def cluster(penstock_broker: Broker) -> Iterator[BlockingCluster]:
    cluster = BlockingCluster([("127.0.0.1", penstock_broker.port)], timeout_s=20.0)
    yield cluster
    cluster.close()


def filled(broker: Broker, partitions: int, records: int, size: int = 10, **settings: object) -> str:
    topic = f"joint-{next(_numbers)}"
    with BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50, **settings})
    for number in range(records):
        for partition in range(partitions):
            producer.produce(topic, b"%d-%d" % (partition, number) + b"x" * size, partition=partition)
        producer.poll(0)
    assert producer.flush(30) == 0
    return topic


def ranges_of(topic: str, edges: Sequence[tuple[int, int]], topic_id: bytes | None = None) -> list[FetchRange]:
    return [FetchRange(TopicPartition(topic, index), start, end, topic_id) for index, (start, end) in enumerate(edges)]


def test_every_record_once_and_in_order(penstock_broker: Broker, cluster: BlockingCluster) -> None:
    topic = filled(penstock_broker, 5, 200, **{"batch.num.messages": 7})
    edges = [(0, 200), (13, 14), (7, 7), (150, 200), (1, 199)]
    for topic_id in (None, cluster.topics([topic])[topic].topic_id):
        for max_bytes in (1, 3000, 8 << 20):
            ranges = ranges_of(topic, edges, topic_id)
            fetch = JointFetch(cluster, ranges, read_committed=True, max_bytes=max_bytes)
            found = read(fetch, ranges)
            assert found == {
                index: [(offset, b"%d-%d" % (index, offset) + b"x" * 10) for offset in range(start, end)]
                for index, (start, end) in enumerate(edges)
                if start < end
            }
            assert all(at >= end for at, (_, end) in zip(fetch.positions, edges, strict=True))


def test_a_hundred_small_ranges_are_one_fetch(
    penstock_broker: Broker, cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(penstock_broker, 100, 2)
    ranges = ranges_of(topic, [(0, 2)] * 100, cluster.topics([topic])[topic].topic_id)
    fetches: list[Api] = []

    def send(
        self: object,
        key: Api,
        *arguments: object,
        real: Callable[..., None] = connection.BlockingConnection.send,
        **rest: object,
    ) -> None:
        fetches.append(key)
        real(self, key, *arguments, **rest)

    monkeypatch.setattr(connection.BlockingConnection, "send", send)
    assert len(read(JointFetch(cluster, ranges, read_committed=False), ranges)) == 100
    assert fetches.count(Api.FETCH) == 1


def test_two_ranges_of_a_partition(penstock_broker: Broker, cluster: BlockingCluster) -> None:
    topic = filled(penstock_broker, 1, 50)
    tp = TopicPartition(topic, 0)
    ranges = [FetchRange(tp, 10, 20), FetchRange(tp, 30, 40), FetchRange(TopicPartition(topic, 7), 0, 5)]
    fetch = JointFetch(cluster, ranges, read_committed=False)
    found = read(fetch, ranges)
    assert {index: [offset for offset, _ in rows] for index, rows in found.items()} == {
        0: list(range(10, 20)),
        1: list(range(30, 40)),
    }
    assert fetch.positions[2] == 0, "there is no such partition: it is left behind"


def test_batches_larger_than_what_is_asked_for(penstock_broker: Broker, cluster: BlockingCluster) -> None:
    """Only the first range of a fetch gets its batch then. The others are asked for again, with more room."""
    topic = filled(penstock_broker, 6, 4, size=60_000)
    ranges = ranges_of(topic, [(3, 4)] * 6)
    fetch = JointFetch(cluster, ranges, read_committed=False)
    assert [[offset for offset, _ in rows] for _, rows in sorted(read(fetch, ranges).items())] == [[3]] * 6


def test_one_block_of_memory(
    penstock_broker: Broker, cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(penstock_broker, 4, 200, **{"batch.num.messages": 10})
    blocks: list[object] = []
    monkeypatch.setattr(connection.thread_buffer(), "_kept", bytearray(1))

    def take(buffer: ReceiveBuffer, size: int, real: Callable[..., memoryview] = ReceiveBuffer.take) -> memoryview:
        taken = real(buffer, size)
        blocks.append(taken.obj)
        return taken

    monkeypatch.setattr(ReceiveBuffer, "take", take)
    ranges = ranges_of(topic, [(0, 200)] * 4)
    kept = [chunk for _, chunk in JointFetch(cluster, ranges, read_committed=False, max_bytes=2000)]
    assert len(blocks) > 5
    assert len({id(block) for block in blocks}) == 1
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0].records)


def test_connections_are_given_back(penstock_broker: Broker, cluster: BlockingCluster) -> None:
    topic = filled(penstock_broker, 3, 20)
    ranges = ranges_of(topic, [(0, 20)] * 3)
    for _ in range(3):
        read(JointFetch(cluster, ranges, read_committed=False), ranges)
        for _ in JointFetch(cluster, ranges, read_committed=False, max_bytes=1):
            break  # with an open fetch
    assert sum(len(idle) for idle in cluster._idle.values()) <= 1
    assert list(JointFetch(cluster, [], read_committed=False)) == []


# -- scripted leaders -------------------------------------------------------------------------


def batch_at(base_offset: int, *values: bytes) -> bytes:
    return with_prefix(build_batch([Record(None, value) for value in values]), base_offset, 0)


class Logs:
    """Partitions of the topic events, each a batch of two records at 10. `lapses` by partition, each once."""

    def __init__(self, partitions: int = 2) -> None:
        self.cluster = ScriptedCluster()
        self.cluster.topics["events"] = [Partition(1 + index % 2, [1, 2], [1, 2]) for index in range(partitions)]
        self.lapses: dict[int, list[PartitionData]] = {}
        self.asked: list[tuple[int, list[int]]] = []
        """The node and the partitions of each fetch."""
        for node_id, broker in self.cluster.brokers.items():
            broker.scripts[Api.FETCH] = self.fetch(node_id)
            broker.__enter__()
        self.client = BlockingCluster([self.cluster.brokers[1].address], timeout_s=5.0)

    def close(self) -> None:
        self.client.close()
        for broker in self.cluster.brokers.values():
            broker.__exit__(None, None, None)

    def fetch(self, node_id: int) -> Callable[[Message], Reply]:
        def answer(request: Message) -> Reply:
            assert isinstance(request, FetchRequest)
            asked = [one.partition for topic in request.topics for one in topic.partitions]
            self.asked.append((node_id, asked))
            found = [self.lapses[one].pop(0) if self.lapses.get(one) else records(one) for one in asked]
            topic = FetchableTopicResponse(topic="events", topic_id=b"events".ljust(16), partitions=found)
            return FetchResponse(responses=[topic])

        return answer

    def joint(self, *, start: int = 10, end: int = 12, **options: object) -> tuple[JointFetch, list[FetchRange]]:
        ranges = ranges_of("events", [(start, end)] * len(self.cluster.topics["events"]))
        return JointFetch(self.client, ranges, **{"read_committed": False, **options}), ranges  # type: ignore[arg-type]


def records(partition: int, **settings: object) -> PartitionData:
    data: dict[str, object] = {"high_watermark": 12, "last_stable_offset": 12, "records": batch_at(10, b"a", b"b")}
    return PartitionData(partition_index=partition, **(data | settings))  # type: ignore[arg-type]


@pytest.fixture
def logs() -> Iterator[Logs]:
    made = Logs()
    yield made
    made.close()


BOTH = [(10, b"a"), (11, b"b")]


def test_all_leaders_are_asked_before_one_has_answered(logs: Logs) -> None:
    both_asked = threading.Barrier(2, timeout=5.0)

    def wait_for_the_other(node_id: int) -> Callable[[Message], Reply]:
        def answer(request: Message) -> Reply:
            both_asked.wait()
            return logs.fetch(node_id)(request)

        return answer

    for node_id in (1, 2):
        logs.cluster.brokers[node_id].scripts[Api.FETCH] = wait_for_the_other(node_id)
    fetch, ranges = logs.joint()
    assert read(fetch, ranges) == {0: BOTH, 1: BOTH}


def test_the_next_fetch_leaves_before_a_chunk_is_handed_out(logs: Logs) -> None:
    logs.lapses = {0: [records(0, records=batch_at(10, b"a"))]}
    fetch, _ = logs.joint()
    index, _ = next(iter(fetch))
    assert index == 0
    deadline = threading.Event()
    while logs.asked.count((1, [0])) < 2 and not deadline.wait(0.01):
        pass
    assert logs.asked.count((1, [0])) == 2


@pytest.mark.parametrize(
    "lapse",
    [
        {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "records": b""},
        {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE, "records": b""},
        {"high_watermark": 11, "records": b""},
        {"last_stable_offset": 10, "records": b""},
        {"records": b"short"},
        {"records": None},
    ],
)
def test_what_is_not_simply_records_is_left_behind(lapse: dict[str, object]) -> None:
    logs = Logs(4)
    logs.lapses = {0: [records(0, **lapse)]}
    fetch, ranges = logs.joint(read_committed=True)
    assert read(fetch, ranges) == {1: BOTH, 2: BOTH, 3: BOTH}
    assert fetch.positions == [10, 12, 12, 12]
    logs.close()


def test_range_without_records_is_asked_for_again_as_the_first() -> None:
    """It may be a hole, or there was no room in the answer. As the first it would have got its batch."""
    logs = Logs(6)
    logs.lapses = {2: [records(2, records=b"")], 4: [records(4, records=b"")] * 3}
    fetch, ranges = logs.joint()
    assert sorted(read(fetch, ranges)) == [0, 1, 2, 3, 5]
    assert [partitions for node_id, partitions in logs.asked if node_id == 1] == [[0, 2, 4], [2, 4], [4]]
    assert fetch.positions[4] == 10
    logs.close()


def test_answer_without_any_records_leaves_all_behind() -> None:
    logs = Logs(6)
    logs.lapses = {number: [records(number, records=b"")] for number in (0, 2, 4)}
    fetch, ranges = logs.joint()
    assert sorted(read(fetch, ranges)) == [1, 3, 5]
    assert len(logs.asked) == 2
    logs.close()


def test_throttled_answer_leaves_all_behind(logs: Logs) -> None:
    logs.cluster.brokers[2].scripts[Api.FETCH] = lambda _: FetchResponse(responses=[], throttle_time_ms=100)
    fetch, ranges = logs.joint()
    assert read(fetch, ranges) == {0: BOTH}
    assert fetch.positions == [12, 10]


def test_lost_leader_leaves_its_ranges_behind(logs: Logs) -> None:
    logs.cluster.brokers[2].scripts[Api.FETCH] = lambda _: None
    fetch, ranges = logs.joint()
    assert read(fetch, ranges) == {0: BOTH}
    assert fetch.positions == [12, 10]
    logs.cluster.topics["events"][1].leader = 1
    fetch, ranges = logs.joint()
    assert read(fetch, ranges) == {0: BOTH, 1: BOTH}, "its metadata is requested again"


def test_partition_without_a_leader_is_left_behind(logs: Logs) -> None:
    logs.cluster.topics["events"][0].leader = -1
    fetch, ranges = logs.joint()
    assert read(fetch, ranges) == {1: BOTH}
    assert fetch.positions == [10, 12]


def test_cluster_that_is_gone_leaves_all_behind(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_fetch, "LOOK_UP_S", 0.2)
    for broker in logs.cluster.brokers.values():
        broker.__exit__(None, None, None)
    fetch, ranges = logs.joint()
    assert read(fetch, ranges) == {}
    assert fetch.positions == [10, 10]


def test_position_that_the_caller_moves(logs: Logs) -> None:
    """Then what is under way does not count."""
    logs.lapses = {0: [records(0, records=batch_at(10, b"a"))]}
    fetch, _ = logs.joint()
    indexes = []
    for index, _ in fetch:
        indexes.append(index)
        fetch.advance(index, 10 if index == 0 else 12)
    assert sorted(indexes) == [0, 1]
    assert fetch.positions == [10, 12]


def test_aborted_transactions_are_told(logs: Logs) -> None:
    logs.lapses = {0: [records(0, aborted_transactions=[AbortedTransaction(producer_id=7, first_offset=10)])]}
    fetch, _ = logs.joint(read_committed=True)
    assert {index: chunk.aborted for index, chunk in fetch} == {0: [(7, 10)], 1: []}


def test_another_topic_of_the_same_name_is_left_behind(logs: Logs) -> None:
    ranges = ranges_of("events", [(10, 12)], b"x" * 16)
    fetch = JointFetch(logs.client, ranges, read_committed=False)
    assert read(fetch, ranges) == {}
    assert logs.asked == []
    same = ranges_of("events", [(10, 12)], b"events".ljust(16))
    assert read(JointFetch(logs.client, same, read_committed=False), same) == {0: BOTH}


def test_log_that_was_truncated_is_left_behind(logs: Logs) -> None:
    for broker in logs.cluster.brokers.values():
        broker.scripts[Api.OFFSET_FOR_LEADER_EPOCH] = lambda request: OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        EpochEndOffset(partition=one.partition, leader_epoch=4, end_offset=11 + one.partition)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics  # type: ignore[attr-defined]
            ]
        )
    logs.cluster.leader_epoch = 5
    ranges = [one._replace(leader_epoch=4) for one in ranges_of("events", [(10, 12)] * 2)]
    fetch = JointFetch(logs.client, ranges, read_committed=False)
    assert read(fetch, ranges) == {1: BOTH}
    assert fetch.positions == [10, 12]
