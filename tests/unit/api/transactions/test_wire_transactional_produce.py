"""Batches of transactions: verified before the first is appended, kept in order, refused where they come too late."""

from __future__ import annotations

from typing import Any

import pytest
from transaction_client import TransactionClient
from wire_client import WireClient, batch, values

from penstock.model.errors import ErrorCode
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.produce import PartitionProduceData, TopicProduceData

BEFORE_VERSION_2 = range(3, 12)
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH


def stable(wire: WireClient, topic: str) -> tuple[int, int]:
    """(last stable offset, high watermark)"""
    found = wire.fetch(topic, isolation_level=1)
    return found.last_stable_offset, found.high_watermark


@pytest.mark.parametrize("version", BEFORE_VERSION_2)
def test_a_client_of_version_1_has_added_the_partition_itself(wire: WireClient, version: int) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    txn.add((topic, 0))
    for offset in range(3):
        assert txn.produce(topic, b"v", version=version).base_offset == offset
    assert stable(wire, topic) == (0, 3)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        *((version, ErrorCode.INVALID_TXN_STATE) for version in range(3, 11)),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_a_client_of_version_1_that_has_not_is_refused(wire: WireClient, version: int, code: ErrorCode) -> None:
    topic, added = wire.create_topic(), wire.create_topic()
    txn = TransactionClient(wire).init()
    txn.add((added, 0))
    entry = txn.produce(topic, b"v", version=version)
    assert (entry.error_code, entry.base_offset) == (code, -1)
    assert stable(wire, topic) == (0, 0)
    assert txn.produce(added, b"v", version=version).error_code == 0


@pytest.mark.parametrize("version", [12, 13])
def test_a_client_of_version_2_leaves_it_to_the_broker(wire: WireClient, version: int) -> None:
    topic = wire.create_topic(partitions=2)
    topic_id = wire.describe(topic).topic_id
    txn = TransactionClient(wire).init()
    for index in range(2):
        for offset in range(2):
            request = txn.produce_request(topic, b"v", partition=index)
            request.topic_data[0].topic_id = topic_id
            (entry,) = wire.call(Api.PRODUCE, version, request).responses[0].partition_responses
            assert (entry.error_code, entry.base_offset) == (0, offset)
    assert [list(each.partitions) for each in txn.describe().topics] == [[0, 1]]


def test_many_partitions_of_one_request_are_verified_together(wire: WireClient) -> None:
    topics = [wire.create_topic(partitions=3) for _ in range(2)]
    txn = TransactionClient(wire).init()
    request = txn.produce_request(topics[0], b"v")
    request.topic_data = [
        TopicProduceData(
            name=topic,
            partition_data=[
                PartitionProduceData(index=index, records=txn.batch(topic, b"v", partition=index, sequence=0))
                for index in range(3)
            ],
        )
        for topic in topics
    ]
    response = wire.call(Api.PRODUCE, 12, request)
    found = [entry.error_code for topic in response.responses for entry in topic.partition_responses]
    assert found == [0] * 6
    assert sum(len(each.partitions) for each in txn.describe().topics) == 6


def test_what_is_pipelined_behind_the_first_batch_keeps_its_order(wire: WireClient) -> None:
    """The first waits for the coordinator. Requests behind it on the connection wait, too."""
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    sent = [wire.send(Api.PRODUCE, 12, txn.produce_request(topic, b"%d" % number)) for number in range(5)]
    for offset, correlation_id in enumerate(sent):
        answered, response = wire.receive(Api.PRODUCE, 12)
        (entry,) = response.responses[0].partition_responses
        assert (answered, entry.error_code, entry.base_offset) == (correlation_id, 0, offset)
    assert values(wire.fetch(topic)) == [b"0", b"1", b"2", b"3", b"4"]


def test_pipelined_transactions_do_not_mix(wire: WireClient) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    for number in range(10):
        sent = [wire.send(Api.PRODUCE, 12, txn.produce_request(topic, b"%d" % number)) for _ in range(3)]
        for correlation_id in sent:
            answered, response = wire.receive(Api.PRODUCE, 12)
            assert (answered, response.responses[0].partition_responses[0].error_code) == (correlation_id, 0)
        response = txn.try_end(commit=bool(number % 2))
        assert response.error_code == 0
        txn.use(response.producer_id, response.producer_epoch)
    assert values(wire.fetch(topic, 36))[:3] == [b"9"] * 3


def test_what_comes_after_the_marker_is_refused(wire: WireClient) -> None:
    """Else it would hang in the log for ever: the transaction it belonged to has ended."""
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    assert txn.produce(topic, b"in time").error_code == 0
    late = txn.produce_request(topic, b"late")
    txn.end()
    entry = wire.call(Api.PRODUCE, 12, late).responses[0].partition_responses[0]
    assert entry.error_code == OLD_EPOCH
    assert stable(wire, topic) == (2, 2)


@pytest.mark.parametrize(
    ("version", "code"), [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_what_comes_after_the_marker_is_refused_in_version_1(wire: WireClient, version: int, code: ErrorCode) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    txn.add((topic, 0))
    assert txn.produce(topic, b"in time", version=version).error_code == 0
    txn.end(version=4)
    assert txn.produce(topic, b"late", version=version).error_code == code
    assert stable(wire, topic) == (2, 2)


def test_without_verification_a_client_of_version_1_is_believed() -> None:
    settings = {"transaction.partition.verification.enable": "false"}
    with Broker(settings) as broker, WireClient(broker.port) as wire:
        topic = wire.create_topic()
        txn = TransactionClient(wire).init()
        assert txn.produce(topic, b"v", version=11).error_code == 0
        assert txn.describe().transaction_state == "Empty"
        assert txn.produce(wire.create_topic(), b"v", version=12).error_code == 0
        assert txn.describe().transaction_state == "Ongoing"


def test_a_producer_that_was_replaced_is_fenced(wire: WireClient) -> None:
    topic, other = wire.create_topic(), wire.create_topic()
    first = TransactionClient(wire).init()
    assert first.produce(topic, b"v").error_code == 0
    TransactionClient(wire, first.name).init()
    for version in (10, 11, 12):
        assert first.produce(topic, b"late", version=version).error_code == OLD_EPOCH
        assert first.produce(other, b"late", version=version).error_code == OLD_EPOCH, "the coordinator knows"
    assert stable(wire, other) == (0, 0)


def test_a_producer_id_that_nobody_gave_out_is_refused(wire: WireClient) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    txn.use(txn.producer_id + 100_000, 0)
    assert txn.produce(topic, b"v").error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stable(wire, topic) == (0, 0)


@pytest.mark.parametrize("version", [3, 9, 11, 12])
def test_a_control_batch_is_refused(wire: WireClient, version: int) -> None:
    """Also inside of a transaction: markers are the coordinator's."""
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    txn.add((topic, 0))
    assert txn.produce(topic, b"v").error_code == 0
    marker: dict[str, Any] = {"attributes": TRANSACTIONAL_BIT | CONTROL_BIT}
    entry = txn.produce(topic, b"\0\0\0\0\0\0", version=version, **marker)
    assert entry.error_code == ErrorCode.INVALID_RECORD
    assert stable(wire, topic) == (0, 1)


def test_a_batch_outside_of_the_open_transaction_is_refused(wire: WireClient) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    assert txn.produce(topic, b"within").error_code == 0
    assert txn.produce(topic, b"outside", attributes=0).error_code == ErrorCode.INVALID_TXN_STATE
    assert stable(wire, topic) == (0, 1)
    assert txn.produce(topic, b"within", sequence=1).error_code == 0


def test_a_repeated_batch_is_answered_with_its_offset(wire: WireClient) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    first = txn.produce_request(topic, b"a")
    second = txn.produce_request(topic, b"b")
    for request, offset in ((first, 0), (second, 1), (first, 0), (second, 1)):
        entry = wire.call(Api.PRODUCE, 12, request).responses[0].partition_responses[0]
        assert (entry.error_code, entry.base_offset) == (0, offset)
    assert stable(wire, topic) == (0, 2)


def test_the_first_batch_of_a_transaction_is_the_first_of_its_epoch(wire: WireClient) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    assert txn.produce(topic, b"second", sequence=1).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert txn.produce(topic, b"first", sequence=0).error_code == 0
    assert txn.produce(topic, b"third", sequence=2).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_other_producers_are_held_up_by_nobody(wire: WireClient) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    assert txn.produce(topic, b"open").error_code == 0
    assert wire.produce(topic, batch(b"plain")).base_offset == 1
    assert stable(wire, topic) == (0, 2)
    assert values(wire.fetch(topic, isolation_level=1)) == []
    assert wire.list_offset(topic, -1).offset == 2
    txn.end()
    assert values(wire.fetch(topic, isolation_level=1))[:2] == [b"open", b"plain"]
    assert stable(wire, topic) == (3, 3)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_transaction_is_verified_whatever_its_acks(wire: WireClient, acks: int) -> None:
    topic = wire.create_topic()
    txn = TransactionClient(wire).init()
    request = txn.produce_request(topic, b"v")
    request.acks = acks
    wire.send(Api.PRODUCE, 12, request)
    if acks:
        assert wire.receive(Api.PRODUCE, 12)[1].responses[0].partition_responses[0].error_code == 0
    assert txn.describe().transaction_state == "Ongoing"
    assert stable(wire, topic) == (0, 1)
