"""The wire client against a real broker in this process."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.records.compression import CODEC_BY_NAME, recompress
from penstock.records.decoding import Limits
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire_client.aio import fetching
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.aio.fetching import fetch, fetch_one, list_offsets, offset_range, position_at
from penstock.wire_client.aio.publisher import Produced, Publisher
from penstock.wire_client.aio.topics import create_topic, delete_topic, topic_settings
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost
from penstock.wire_client.requests.offsets import EARLIEST_MS, LATEST_MS
from support.clients.raw import RawClient

_numbers = count()


@pytest.fixture
def topic() -> str:
    return f"wire-client-{next(_numbers)}"


@pytest_asyncio.fixture
async def cluster(penstock_broker: Broker) -> AsyncIterator[AsyncCluster]:
    cluster = AsyncCluster([("127.0.0.1", penstock_broker.port)])
    yield cluster
    cluster.close()


def record(value: bytes, key: bytes | None = None, timestamp_ms: int | None = None) -> Record:
    return Record(key, value, (), round(time.time() * 1000) if timestamp_ms is None else timestamp_ms)


# -- metadata -------------------------------------------------------------------------------


async def test_a_topic_that_does_not_exist(cluster: AsyncCluster, topic: str) -> None:
    with pytest.raises(ApiError, match="does not exist") as refused:
        await cluster.topic(topic)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError) as refused:
        await cluster.topic("not/a/name", create=True)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_create_describe_delete(cluster: AsyncCluster, topic: str) -> None:
    assert await create_topic(cluster, NewTopic(topic, 3, configs={"retention.ms": "1234567"})) == 3
    info = await cluster.topic(topic)
    assert [partition.partition for partition in info.partitions] == [0, 1, 2]
    assert topic in [entry.name for entry in (await cluster.describe()).topics]
    settings = {entry.name: entry for entry in await topic_settings(cluster, topic)}
    assert settings["retention.ms"].value == "1234567"
    assert not settings["retention.ms"].is_default
    assert settings["cleanup.policy"].is_default
    with pytest.raises(ApiError) as refused:
        await create_topic(cluster, NewTopic(topic))
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    await delete_topic(cluster, topic)
    with pytest.raises(ApiError, match="does not exist"):
        await cluster.topic(topic)


async def test_many_callers_ask_once(cluster: AsyncCluster, topic: str) -> None:
    infos = await asyncio.gather(*(cluster.topic(topic, create=True) for _ in range(50)))
    assert len({id(info) for info in infos}) == 1


async def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}"):
        await AsyncCluster([("127.0.0.1", port)]).describe()


# -- connections ----------------------------------------------------------------------------


async def test_answers_come_in_the_order_of_requests(penstock_broker: Broker) -> None:
    connection = await AsyncConnection.open("127.0.0.1", penstock_broker.port, "test")
    answers = [connection.send(Api.API_VERSIONS, ApiVersionsRequest()) for _ in range(20)]
    answers[3].cancel()  # nobody waits for it: the next ones are not shifted
    results = await asyncio.gather(*answers[:3], *answers[4:])
    assert all(isinstance(result, ApiVersionsResponse) for result in results)
    connection.close()
    with pytest.raises(ConnectionLost):
        connection.send(Api.API_VERSIONS, ApiVersionsRequest())


async def test_a_peer_that_is_no_broker() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BrokerUnreachable):
            await AsyncConnection.open("127.0.0.1", port, "test")


# -- produce and fetch ----------------------------------------------------------------------


async def test_publish_and_read_back(cluster: AsyncCluster, topic: str) -> None:
    producer = Publisher(cluster)
    given = Record(b"k", b"v", (("h", b"1"), ("n", None)), 1_700_000_000_123)
    produced = await producer.publish(topic, given)
    assert produced == Produced(0, 0, 1_700_000_000_123)
    fetched = await fetch_one(cluster, TopicPartition(topic, 0), 0, max_wait_ms=0)
    assert fetched.records == [given]
    assert (fetched.next_offset, fetched.high_watermark, fetched.log_start_offset) == (1, 1, 0)


async def test_records_of_one_partition_keep_their_order_and_share_batches(cluster: AsyncCluster, topic: str) -> None:
    await create_topic(cluster, NewTopic(topic, 2))
    info = await cluster.topic(topic)
    producer = Publisher(cluster)
    futures = [producer.enqueue(info, record(b"%d" % n), n % 2) for n in range(2000)]
    produced = await asyncio.gather(*futures)
    assert [(p.partition, p.offset) for p in produced] == [(n % 2, n // 2) for n in range(2000)]
    fetched = await fetch_one(cluster, TopicPartition(topic, 1), 0, max_wait_ms=0)
    assert [int(r.value or b"") for r in fetched.records] == [2 * n + 1 for n in range(len(fetched.records))]


async def test_keys_choose_partitions_and_no_key_is_round_robin(cluster: AsyncCluster, topic: str) -> None:
    await create_topic(cluster, NewTopic(topic, 4))
    producer = Publisher(cluster)
    same = {(await producer.publish(topic, record(b"x", b"key"))).partition for _ in range(5)}
    assert len(same) == 1
    turns = [(await producer.publish(topic, record(b"x"))).partition for _ in range(8)]
    assert turns == [0, 1, 2, 3, 0, 1, 2, 3]
    with pytest.raises(ApiError, match="has no partition 4"):
        await producer.publish(topic, record(b"x"), 4)


async def test_one_bad_record_does_not_take_its_neighbours_along(cluster: AsyncCluster, topic: str) -> None:
    info = await cluster.topic(topic, create=True)
    producer = Publisher(cluster)
    good = record(b"good")
    bad = record(b"x" * 2_000_000)
    results = await asyncio.gather(
        *(producer.enqueue(info, entry) for entry in (good, bad, good)), return_exceptions=True
    )
    assert isinstance(results[1], ApiError)
    assert results[1].code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
    assert [result.offset for result in results if isinstance(result, Produced)] == [0, 1]


async def test_a_lone_bad_timestamp_in_a_shared_batch(cluster: AsyncCluster, topic: str) -> None:
    await create_topic(cluster, NewTopic(topic, 1, configs={"message.timestamp.after.max.ms": "1000"}))
    info = await cluster.topic(topic)
    producer = Publisher(cluster)
    future = record(b"x", timestamp_ms=round(time.time() * 1000) + 10**9)
    results = await asyncio.gather(
        *(producer.enqueue(info, entry) for entry in (record(b"a"), future, record(b"b"))), return_exceptions=True
    )
    assert isinstance(results[1], ApiError)
    assert results[1].code is ErrorCode.INVALID_TIMESTAMP
    assert isinstance(results[0], Produced)
    assert isinstance(results[2], Produced)


async def test_a_long_poll_ends_with_the_record(cluster: AsyncCluster, topic: str) -> None:
    await create_topic(cluster, NewTopic(topic))
    producer = Publisher(cluster)
    partition = TopicPartition(topic, 0)
    waiting = asyncio.create_task(fetch_one(cluster, partition, 0, max_wait_ms=20_000))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    # Metadata and produce are not held up by the fetch that waits.
    await producer.publish(topic, record(b"now"))
    async with asyncio.timeout(5):
        assert [r.value for r in (await waiting).records] == [b"now"]


async def test_several_partitions_in_one_fetch(cluster: AsyncCluster, topic: str) -> None:
    await create_topic(cluster, NewTopic(topic, 3))
    producer = Publisher(cluster)
    for partition in (0, 2):
        await producer.publish(topic, record(b"%d" % partition), partition)
    found = await fetch(cluster, {TopicPartition(topic, n): 0 for n in range(3)}, max_wait_ms=0)
    assert {key.partition: [r.value for r in fetched.records] for key, fetched in found.items()} == {
        0: [b"0"],
        2: [b"2"],
    }


async def test_an_offset_that_is_not_there(cluster: AsyncCluster, topic: str) -> None:
    await create_topic(cluster, NewTopic(topic))
    with pytest.raises(ApiError, match=r"offset 5 is outside .*-0: it begins at 0 and ends before 0") as refused:
        await fetch_one(cluster, TopicPartition(topic, 0), 5, max_wait_ms=0)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_offsets_by_time(cluster: AsyncCluster, topic: str) -> None:
    producer = Publisher(cluster)
    for number in range(5):
        await producer.publish(topic, record(b"x", timestamp_ms=1_700_000_000_000 + 10 * number))
    partition = TopicPartition(topic, 0)
    assert await offset_range(cluster, partition) == (0, 5)
    assert await position_at(cluster, partition, 1_700_000_000_015) == 2
    assert await position_at(cluster, partition, 1_800_000_000_000) == 5
    ends = await list_offsets(cluster, {partition: EARLIEST_MS})
    assert ends[partition].offset == 0
    assert (await list_offsets(cluster, {partition: LATEST_MS}))[partition].offset == 5


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_are_read(
    penstock_broker: Broker, cluster: AsyncCluster, topic: str, codec: str
) -> None:
    batch = build_batch([record(b"%d" % n) for n in range(10)])
    with RawClient(penstock_broker.port) as client:
        client.make_topic(topic)
        assert client.produce(topic, 0, recompress(read_header(batch), batch, CODEC_BY_NAME[codec])).error_code == 0
    fetched = await fetch_one(cluster, TopicPartition(topic, 0), 4, max_wait_ms=0)
    assert [r.value for r in fetched.records] == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert fetched.next_offset == 10


async def test_a_topic_that_is_deleted_and_created_again(cluster: AsyncCluster, topic: str) -> None:
    producer = Publisher(cluster)
    await create_topic(cluster, NewTopic(topic, 2))
    await producer.publish(topic, record(b"old"), 1)
    other = AsyncCluster([("127.0.0.1", (await cluster.describe()).brokers[0].port)])
    await delete_topic(other, topic)
    await create_topic(other, NewTopic(topic, 2))
    other.close()
    assert (await producer.publish(topic, record(b"new"), 1)).offset == 0


async def test_a_topic_with_the_longest_name_is_deleted(cluster: AsyncCluster) -> None:
    name = "n" * 249
    producer = Publisher(cluster)
    for _ in range(2):
        assert (await producer.publish(name, record(b"x"))).offset == 0
        await delete_topic(cluster, name)


async def test_the_client_survives_a_restart_of_the_broker(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = str(tmp_path_factory.mktemp("data"))
    broker = Broker(data=data).start()
    port = broker.port
    cluster = AsyncCluster([("127.0.0.1", port)])
    producer = Publisher(cluster)
    try:
        assert (await producer.publish("t", record(b"1"))).offset == 0
        await asyncio.to_thread(broker.stop)
        later = asyncio.create_task(producer.publish("t", record(b"2")))
        await asyncio.sleep(0.3)
        assert not later.done()
        broker = await asyncio.to_thread(Broker(data=data, port=port).start)
        assert (await later).offset == 1
        fetched = await fetch_one(cluster, TopicPartition("t", 0), 0, max_wait_ms=0)
        assert [r.value for r in fetched.records] == [b"1", b"2"]
    finally:
        cluster.close()
        await asyncio.to_thread(broker.stop)


class Elsewhere:
    """Remembers what was left to others."""

    def __init__(self) -> None:
        self.works: list[str] = []

    async def call(self, work: Callable[..., Any], *args: object) -> Any:
        self.works.append(work.__name__)
        return work(*args)

    async def look_up(self, work: Callable[..., Any], *args: object) -> Any:
        return await self.call(work, *args)


async def test_much_is_decoded_by_others_in_portions(
    cluster: AsyncCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PORTION", Limits(40, 1 << 20))
    others = Elsewhere()
    cluster.record_workers = others
    producer = Publisher(cluster)
    await producer.publish(topic, record(b"little"))
    partition = TopicPartition(topic, 0)
    assert [one.value for one in (await fetch_one(cluster, partition, 0, max_wait_ms=0)).records] == [b"little"]
    assert others.works == []
    plain = build_batch([record(b"%d" % number) for number in range(100)])
    packed = recompress(read_header(plain), plain, CODEC_BY_NAME["zstd"])
    data = PartitionProduceData(index=0, records=packed)
    request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=topic, partition_data=[data])])
    connection = await cluster.control(await cluster.leader(topic, 0))
    await connection.call(Api.PRODUCE, request, ProduceResponse)
    offset, values = 1, []
    while fetched := (await fetch_one(cluster, partition, offset, max_wait_ms=0)).records:
        assert len(fetched) <= 40
        values += [one.value for one in fetched]
        offset = fetched[-1].offset + 1
    assert values == [b"%d" % number for number in range(100)]
    assert others.works == ["decode"] * 3
