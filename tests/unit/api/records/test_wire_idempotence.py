"""Idempotent producers: repeats, gaps, epochs, the last five batches, and a restart in between."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from wire_client import WireClient, batch, values

from penstock.api.context import RequestContext
from penstock.api.handlers.init_producer_id import InitProducerIdHandler
from penstock.coordination.transactions import TransactionCoordinator
from penstock.model.errors import ApiError, ErrorCode
from penstock.net.connection import Connection
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.codec import RequestHeader
from penstock.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from penstock.wire.messages.init_producer_id import InitProducerIdRequest


def new_producer(client: WireClient) -> int:
    response = client.call(Api.INIT_PRODUCER_ID, 5, InitProducerIdRequest(transactional_id=None))
    assert (response.error_code, response.producer_epoch) == (0, 0)
    producer_id: int = response.producer_id
    return producer_id


def numbered(producer_id: int, sequence: int, *texts: bytes, epoch: int = 0) -> bytes:
    return batch(*texts, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


class TestSequences:
    def test_a_repeat_is_answered_with_the_original_offset(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        producer = new_producer(wire)
        sent = [numbered(producer, n * 2, b"%d" % n, b"+") for n in range(5)]
        assert [wire.produce(topic, one).base_offset for one in sent] == [0, 2, 4, 6, 8]
        assert [wire.produce(topic, one).base_offset for one in sent] == [0, 2, 4, 6, 8]
        assert len(values(wire.fetch(topic))) == 10

    def test_a_repeat_older_than_five_batches_is_a_duplicate(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        producer = new_producer(wire)
        for sequence in range(6):
            wire.produce(topic, numbered(producer, sequence, b"v"))
        assert wire.produce(topic, numbered(producer, 0, b"v")).error_code == 46

    def test_a_gap_is_refused(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        producer = new_producer(wire)
        wire.produce(topic, numbered(producer, 0, b"v"))
        assert wire.produce(topic, numbered(producer, 2, b"v")).error_code == 45
        assert wire.produce(topic, numbered(producer, 1, b"v")).base_offset == 1

    def test_each_partition_counts_for_itself(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=2)
        producer = new_producer(wire)
        for index in range(2):
            assert wire.produce(topic, numbered(producer, 0, b"v"), partition=index).base_offset == 0
            assert wire.produce(topic, numbered(producer, 1, b"v"), partition=index).base_offset == 1

    def test_sequences_wrap_around(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        producer = new_producer(wire)
        last = 2**31 - 1
        assert wire.produce(topic, numbered(producer, last - 1, b"a", b"b")).base_offset == 0
        assert wire.produce(topic, numbered(producer, 0, b"c")).base_offset == 2
        assert wire.produce(topic, numbered(producer, last - 1, b"a", b"b")).base_offset == 0


class TestEpochs:
    def test_an_old_epoch_is_fenced(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        producer = new_producer(wire)
        wire.produce(topic, numbered(producer, 0, b"v"))
        assert wire.produce(topic, numbered(producer, 0, b"w", epoch=1)).base_offset == 1
        assert wire.produce(topic, numbered(producer, 1, b"v")).error_code == 47

    def test_a_new_epoch_starts_at_0(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        producer = new_producer(wire)
        wire.produce(topic, numbered(producer, 0, b"v"))
        assert wire.produce(topic, numbered(producer, 1, b"v", epoch=1)).error_code == 45


def test_producer_ids_are_never_given_twice(wire: WireClient) -> None:
    ids = [new_producer(wire) for _ in range(50)]
    assert len(set(ids)) == 50


def test_producers_are_described(wire: WireClient) -> None:
    topic = wire.create_topic()
    producer = new_producer(wire)
    wire.produce(topic, numbered(producer, 0, b"a", b"b", b"c"))
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0, 7])])
    known, unknown = wire.call(Api.DESCRIBE_PRODUCERS, 0, request).topics[0].partitions
    (active,) = known.active_producers
    assert (active.producer_id, active.producer_epoch, active.last_sequence) == (producer, 0, 2)
    assert unknown.error_code == 3


def test_the_state_survives_a_restart(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with Broker(data=data) as broker, WireClient(broker.port) as client:
        topic = client.create_topic(name="kept")
        producer = new_producer(client)
        client.produce(topic, numbered(producer, 0, b"a"))
        client.produce(topic, numbered(producer, 1, b"b"))
    with Broker(data=data) as broker, WireClient(broker.port) as client:
        assert client.produce(topic, numbered(producer, 1, b"b")).base_offset == 1
        assert client.produce(topic, numbered(producer, 3, b"d")).error_code == 45
        assert client.produce(topic, numbered(producer, 2, b"c")).base_offset == 2
        assert values(client.fetch(topic)) == [b"a", b"b", b"c"]
        assert new_producer(client) != producer


class NoController:
    async def allocate_producer_id(self) -> int:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "there is no controller")


async def test_without_a_controller_clients_are_told_to_try_again() -> None:
    """Older clients give up for good on any error but a few, and what a controller says is none of those."""
    handler = InitProducerIdHandler(NoController(), cast(TransactionCoordinator, None))
    ctx = RequestContext(cast(Connection, None), 0, memoryview(b""), RequestHeader(int(handler.api), 5, 1, "test", 0))
    with pytest.raises(ApiError, match="there is no controller") as refused:
        await handler.handle(ctx, InitProducerIdRequest(transactional_id=None))
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
