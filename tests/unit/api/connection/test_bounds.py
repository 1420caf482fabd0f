"""Requests that are too large are refused unread, wide ones take turns with everybody else's."""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from wire_client import WireClient, batch, fetch_request, values

from penstock.api.bounds import PRIVATE_KEYS, USUAL, bounds_of, frame_limits
from penstock.api.dispatch import Dispatcher
from penstock.api.handler import is_advertised
from penstock.api.handlers.produce import ProduceHandler
from penstock.api.turns import ITEMS_PER_TURN
from penstock.config.broker import BrokerConfig
from penstock.net.request_memory import RequestMemory
from penstock.node.handlers import for_clients
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.codec import decode_request, encode_request, read_request_header
from penstock.wire.introduction import MAX_FRAME_BYTES as MAX_STRANGER_FRAME_BYTES
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.wire.messages.index import INDEX
from penstock.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.primitives import Message, uvarint
from penstock.wire.reading import STEP_ITEMS

MAX_FRAME = 100 << 20

CONFIG, _ = BrokerConfig.load(None, {"log.dirs": "/data"})
FOR_CLIENTS = for_clients(CONFIG)


@pytest.fixture
def dispatcher(wire_broker: Broker) -> Dispatcher:
    return wire_broker._running.apis.dispatcher


class TestDeclarations:
    def test_only_produce_has_the_largest_frames(self) -> None:
        largest = [handler for handler in FOR_CLIENTS if bounds_of(handler).frame_bytes is None]
        assert largest == [ProduceHandler]

    def test_every_api_has_a_limit(self) -> None:
        limits = frame_limits(FOR_CLIENTS, MAX_FRAME)
        assert set(limits) == {*INDEX, *PRIVATE_KEYS}
        assert limits[Api.PRODUCE] == MAX_FRAME
        assert limits[Api.FIND_COORDINATOR] == USUAL.frame_bytes
        assert limits[Api.SASL_HANDSHAKE] == MAX_STRANGER_FRAME_BYTES, "nobody serves it"

    def test_what_is_for_nodes_alone_gets_no_memory_from_strangers(self, wire_broker: Broker) -> None:
        handlers = wire_broker._running.membership.handlers
        limits = frame_limits((*FOR_CLIENTS, *map(type, handlers)), MAX_FRAME)
        alone = [int(handler.api) for handler in handlers if not is_advertised(handler)]
        assert alone
        assert {limits[key] for key in (*alone, *PRIVATE_KEYS)} == {MAX_STRANGER_FRAME_BYTES}

    def test_the_setting_bounds_all(self) -> None:
        assert max(frame_limits(FOR_CLIENTS, 100_000).values()) == 100_000


class TestRefused:
    """The connection ends, as on Kafka; the broker serves the next one."""

    def wide(self, key: int, version: int, elements: int) -> bytes:
        """A request that announces so many elements of two bytes or so, and has them."""
        header = struct.pack(">hhih", key, version, 1, -1) + b"\0"
        if key == Api.METADATA:
            return header + uvarint(elements + 1) + b"\1\0" * elements + b"\0\0\0\0"
        if key == Api.FIND_COORDINATOR:
            return header + b"\0" + uvarint(elements + 1) + b"\2a" * elements + b"\0"
        return header + uvarint(elements + 1) + b"\2g\0\0" * elements + b"\0\0"

    @pytest.mark.parametrize(("key", "version"), [(Api.METADATA, 9), (Api.FIND_COORDINATOR, 4), (Api.OFFSET_FETCH, 8)])
    @pytest.mark.parametrize("elements", [600_000, 10_000_000])
    def test_too_many_elements_or_bytes(
        self, wire: WireClient, wire_broker: Broker, dispatcher: Dispatcher, key: int, version: int, elements: int
    ) -> None:
        before = dispatcher._turns.taken
        frame = self.wide(key, version, elements)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it does not wait for the rest
            wire.send_frame(frame)
        assert wire.is_closed_by_broker()
        assert dispatcher._turns.taken == before, "refused before the first of them was read"
        with WireClient(wire_broker.port) as other:
            assert other.create_topic()

    def test_too_many_tagged_fields(self, wire: WireClient) -> None:
        tags = uvarint(10_001) + b"\x63\0" * 10_001
        wire.send_frame(struct.pack(">hhih", Api.METADATA, 9, 1, -1) + b"\0" + uvarint(1) + b"\0\0\0" + tags)
        assert wire.is_closed_by_broker()

    def test_too_many_tagged_fields_in_the_header(self, wire: WireClient) -> None:
        tags = uvarint(10_001) + b"\x63\0" * 10_001
        wire.send_frame(struct.pack(">hhih", Api.METADATA, 9, 1, -1) + tags + uvarint(1) + b"\0\0\0\0")
        assert wire.is_closed_by_broker()

    def test_a_key_that_nobody_serves_gets_no_memory(self, wire: WireClient) -> None:
        wire.socket.sendall(struct.pack(">ihhi", 1 << 20, 500, 0, 1))
        assert wire.is_closed_by_broker(), "before the rest of the frame came"

    def test_one_line_in_the_log(self, wire_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        complaints = wire_broker._running.listeners[0]._complaints
        complaints._next_s.clear()
        with caplog.at_level(logging.WARNING, "penstock.net"):
            for _ in range(20):
                with WireClient(wire_broker.port) as client:
                    client.socket.sendall(struct.pack(">ihhi", 1 << 30, 3, 9, 1))
                    assert client.is_closed_by_broker()
        assert len([record for record in caplog.records if "closed" in record.getMessage()]) == 1
        assert complaints._unsaid["error"] >= 18


def wide_requests() -> Iterator[tuple[str, int, int, Message, int]]:
    names = [MetadataRequestTopic(name=f"n{at}") for at in range(10_000)]
    yield "metadata", Api.METADATA, 12, MetadataRequest(topics=names, allow_auto_topic_creation=False), 10_000
    keys = [f"group-{at}" for at in range(5_000)]
    yield "coordinators", Api.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=keys), 5_000
    groups = [OffsetFetchRequestGroup(group_id=f"g{at}", topics=None) for at in range(2_000)]
    yield "offsets", Api.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups), 2_000
    asked = [DeleteRecordsPartition(partition_index=at, offset=0) for at in range(5_000)]
    deletion = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="gone", partitions=asked)])
    yield "deletions", Api.DELETE_RECORDS, 2, deletion, 5_000


@pytest.mark.parametrize(
    ("key", "version", "request_", "elements"),
    [pytest.param(*rest, id=name) for name, *rest in wide_requests()],
)
def test_a_wide_request_is_read_handled_and_answered_in_turns(
    wire: WireClient, dispatcher: Dispatcher, key: int, version: int, request_: Message, elements: int
) -> None:
    before, wide = dispatcher._turns.taken, dispatcher.wide_requests
    response = wire.call(key, version, request_)
    answered = next(
        len(found) for name in ("topics", "coordinators", "groups") if (found := getattr(response, name, None))
    )
    assert answered in (elements, 1)
    assert dispatcher.wide_requests == wide + 1
    # To read it, to answer it, and most take turns in between.
    assert dispatcher._turns.taken - before >= 2 * (elements // 128) - 2


def handled_in_turns() -> Iterator[tuple[str, int, int, Message, int]]:
    count = 4_000
    asked = [ListOffsetsPartition(partition_index=at, timestamp=-1) for at in range(count)]
    latest = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="gone", partitions=asked)])
    yield "latest offsets", Api.LIST_OFFSETS, 7, latest, count
    forgotten = [OffsetDeleteRequestPartition(partition_index=at) for at in range(count)]
    topics = [OffsetDeleteRequestTopic(name="gone", partitions=forgotten)]
    yield "offsets deleted", Api.OFFSET_DELETE, 0, OffsetDeleteRequest(group_id="gone", topics=topics), count
    resources = [AlterConfigsResource(resource_type=2, resource_name=f"gone{at}") for at in range(count)]
    changes = IncrementalAlterConfigsRequest(resources=resources, validate_only=True)
    yield "settings", Api.INCREMENTAL_ALTER_CONFIGS, 1, changes, count
    twice = [CreatableTopic(name="twice", num_partitions=1, replication_factor=1) for _ in range(count)]
    yield "topics created", Api.CREATE_TOPICS, 7, CreateTopicsRequest(topics=twice, timeout_ms=1000), count
    deleted = [DeleteTopicState(name=f"gone{at}") for at in range(count)]
    yield "topics deleted", Api.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=deleted, timeout_ms=1000), count
    grown = [CreatePartitionsTopic(name="twice", count=3) for _ in range(count)]
    yield "partitions", Api.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=grown, timeout_ms=1000), count
    moved = [ReassignablePartition(partition_index=at, replicas=[1]) for at in range(count)]
    moves = [ReassignableTopic(name="gone", partitions=moved)]
    moving = AlterPartitionReassignmentsRequest(topics=moves, timeout_ms=1000)
    yield "moves", Api.ALTER_PARTITION_REASSIGNMENTS, 0, moving, count


@pytest.mark.parametrize(
    ("key", "version", "request_", "elements"),
    [pytest.param(*rest, id=name) for name, *rest in handled_in_turns()],
)
def test_what_is_asked_for_is_looked_at_in_turns(
    wire: WireClient, dispatcher: Dispatcher, key: int, version: int, request_: Message, elements: int
) -> None:
    before = dispatcher._turns.taken
    assert wire.call(key, version, request_) is not None
    to_read = elements // STEP_ITEMS
    assert dispatcher._turns.taken - before >= to_read + elements // ITEMS_PER_TURN - 2


class Noting:
    """A preparer of batches that notes the memory for requests in use at that time."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.used_bytes: list[int] = []

    async def call(self, work: Callable[..., Any], *args: object) -> Any:
        self.used_bytes.append(self._memory.used_bytes)
        return work(*args)


def test_copies_of_records_count_as_memory_for_requests(
    wire: WireClient, wire_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = wire_broker._running.listeners[0]._limits.memory
    handlers = {int(handler.api): handler for handler in wire_broker._running.apis.handlers}
    noting = Noting(memory)
    monkeypatch.setattr(handlers[Api.PRODUCE], "_records", noting)
    topic = wire.create_topic(compression_type="gzip")
    before = memory.used_bytes
    records = batch(b"v" * 9_000)  # fits in the buffer that every connection has
    assert wire.produce(topic, records).error_code == 0
    assert noting.used_bytes[0] >= before + len(records)
    assert memory.used_bytes == before


class TestTheSamePartitionTwice:
    def test_produce_refuses_each(self, wire: WireClient) -> None:
        topic = wire.create_topic(2)
        data = [PartitionProduceData(index=index, records=batch(b"v")) for index in (0, 1, 0)]
        request = ProduceRequest(
            acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        entries = wire.call(Api.PRODUCE, 9, request).responses[0].partition_responses
        assert [(entry.index, entry.error_code) for entry in entries] == [(0, 42), (1, 0), (0, 42)]
        assert wire.list_offset(topic, -1).offset == 0

    def test_fetch_answers_the_last_one(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        for value in (b"0", b"1"):
            wire.produce(topic, batch(value))
        asked = [FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=1 << 20) for at in (0, 1)]
        response = wire.call(
            Api.FETCH, 12, FetchRequest(min_bytes=1, topics=[FetchTopic(topic=topic, partitions=asked)])
        )
        (found,) = response.responses[0].partitions
        assert values(found) == [b"1"]


class TestManyPartitions:
    """More than one turn's worth of them."""

    PARTITIONS = 300

    def test_produce_and_fetch(self, wire: WireClient, dispatcher: Dispatcher) -> None:
        topic = wire.create_topic(self.PARTITIONS)
        before = dispatcher._turns.taken
        data = [PartitionProduceData(index=at, records=batch(b"%d" % at)) for at in range(self.PARTITIONS)]
        for acks in (-1, 1):
            request = ProduceRequest(
                acks=acks, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
            )
            entries = wire.call(Api.PRODUCE, 9, request).responses[0].partition_responses
            assert [(entry.index, entry.error_code) for entry in entries] == [(at, 0) for at in range(self.PARTITIONS)]
        assert dispatcher._turns.taken - before >= 2 * (self.PARTITIONS // 64)
        response = wire.call(Api.FETCH, 12, fetch_request(topic, partitions=range(self.PARTITIONS), min_bytes=1))
        found = {one.partition_index: values(one) for topic_ in response.responses for one in topic_.partitions}
        assert found == {at: [b"%d" % at] * 2 for at in range(self.PARTITIONS)}

    def test_a_parked_fetch_is_woken(self, wire: WireClient, wire_broker: Broker) -> None:
        topic = wire.create_topic(self.PARTITIONS)
        request = fetch_request(topic, partitions=range(self.PARTITIONS), min_bytes=1, max_wait_ms=8000)
        sent = wire.send(Api.FETCH, 12, request)
        with WireClient(wire_broker.port) as other:
            assert wire.is_silent(0.1)
            other.produce(topic, batch(b"v"), partition=self.PARTITIONS - 1)
        correlation_id, response = wire.receive(Api.FETCH, 12)
        assert correlation_id == sent
        parts = [one for topic_ in response.responses for one in topic_.partitions]
        assert len(parts) == self.PARTITIONS
        assert [values(one) for one in parts if one.records] == [[b"v"]]

    def test_one_whose_client_is_gone_leaves_nothing(self, wire_broker: Broker) -> None:
        with WireClient(wire_broker.port) as client:
            topic = client.create_topic(self.PARTITIONS)
            request = fetch_request(topic, partitions=range(self.PARTITIONS), min_bytes=1, max_wait_ms=60_000)
            client.send(Api.FETCH, 12, request)
            assert client.is_silent(0.1)
        partitions = [one for one in wire_broker._running.partitions.by_name[topic] if one is not None]
        with WireClient(wire_broker.port) as other:
            for _ in range(200):
                if not any(one.waiters for one in partitions):
                    break
                other.describe(topic)
        assert not any(one.waiters for one in partitions)


def test_metadata_is_described_once_for_each_change(wire: WireClient, wire_broker: Broker) -> None:
    handlers = {int(handler.api): handler for handler in wire_broker._running.apis.handlers}
    answers = handlers[Api.METADATA].answers  # type: ignore[attr-defined]
    topic, other = wire.create_topic(3), wire.create_topic()
    everything = MetadataRequest(topics=None)
    first = wire.call(Api.METADATA, 11, everything)
    described, wholes = answers.described, answers.encoded_wholes
    for _ in range(5):
        assert wire.call(Api.METADATA, 11, everything) == first
        assert wire.call(Api.METADATA, 11, MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
    assert (answers.described, answers.encoded_wholes) == (described, wholes)
    wire.delete_topic(other)
    after = wire.call(Api.METADATA, 11, everything)
    assert [one.name for one in after.topics] == [one.name for one in first.topics if one.name != other]
    assert (answers.described, answers.encoded_wholes) == (described, wholes + 1)


def large_but_sane() -> Iterator[tuple[str, int, int, Message]]:
    """Requests as tools and clients of a large cluster send them."""
    asked = [OffsetFetchRequestTopics(name=f"topic-{at}", partition_indexes=list(range(20))) for at in range(2500)]
    group = OffsetFetchRequestGroup(group_id="g", topics=asked)
    yield "50,000 offsets", Api.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[group])
    moved = [ReassignablePartition(partition_index=at, replicas=[1, 2, 3]) for at in range(25)]
    moves = [ReassignableTopic(name=f"topic-{at}", partitions=moved) for at in range(500)]
    yield "12,500 moves", Api.ALTER_PARTITION_REASSIGNMENTS, 0, AlterPartitionReassignmentsRequest(topics=moves)
    places = [CreatableReplicaAssignment(partition_index=at, broker_ids=[1, 2, 3]) for at in range(6)]
    placed = [CreatableTopic(name=f"topic-{at}", assignments=places) for at in range(3000)]
    yield "3,000 topics with assignments", Api.CREATE_TOPICS, 7, CreateTopicsRequest(topics=placed)
    settings = [CreatableTopicConfig(name="retention.ms", value="1000") for _ in range(16)]
    configured = [CreatableTopic(name=f"topic-{at}", configs=settings) for at in range(3000)]
    yield "3,000 topics with settings", Api.CREATE_TOPICS, 7, CreateTopicsRequest(topics=configured)
    changes = [AlterableConfig(name="retention.ms", value="1") for _ in range(10)]
    resources = [AlterConfigsResource(resource_type=2, resource_name=f"t{at}", configs=changes) for at in range(5000)]
    altered = IncrementalAlterConfigsRequest(resources=resources)
    yield "50,000 settings", Api.INCREMENTAL_ALTER_CONFIGS, 1, altered
    deleted = [DeleteTopicState(name=f"a-topic-with-a-name-of-usual-length-{at}") for at in range(30_000)]
    yield "30,000 deletions", Api.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=deleted)
    grown = [CreatePartitionsTopic(name=f"topic-{at}", count=3) for at in range(30_000)]
    yield "30,000 topics with more partitions", Api.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=grown)


@pytest.mark.parametrize(
    ("key", "version", "request_"), [pytest.param(*rest, id=name) for name, *rest in large_but_sane()]
)
def test_large_sane_requests_are_within_the_bounds(key: int, version: int, request_: Message) -> None:
    parts, size = encode_request(key, version, 1, "c", request_)
    assert size <= frame_limits(FOR_CLIENTS, MAX_FRAME)[key]
    frame = memoryview(b"".join(cast("list[bytes]", parts)))[4:]
    *_, at = read_request_header(frame)
    handler = next(handler for handler in FOR_CLIENTS if int(handler.api) == key)
    assert decode_request(key, version, frame, at, bounds_of(handler).elements) == request_


def test_frames_of_the_largest_size_are_within_what_the_client_sends() -> None:
    """A fetch of 40,000 partitions and a commit of as many offsets are not refused."""
    asked = [FetchPartition(partition=at, fetch_offset=at, partition_max_bytes=1 << 20) for at in range(40_000)]
    parts, size = encode_request(Api.FETCH, 12, 1, "c", FetchRequest(topics=[FetchTopic(topic="t", partitions=asked)]))
    assert parts
    assert size < frame_limits(FOR_CLIENTS, MAX_FRAME)[Api.FETCH]
