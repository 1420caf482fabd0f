"""Requests to several leaders: at once, and each until its leader has answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.sdk import BlockingAdmin
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.leader_calls import Leader
from support.scripted.broker import Reply, ScriptedBroker
from support.scripted.cluster import ScriptedCluster

LEADERS = {TopicPartition("events", 0): 1, TopicPartition("events", 1): 2}
LATEST = dict.fromkeys(LEADERS, -1)


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    made = ScriptedCluster()
    for broker in made.brokers.values():
        broker.__enter__()
    yield made
    for broker in made.brokers.values():
        broker.__exit__(None, None, None)


@pytest.fixture
def cluster(scripted: ScriptedCluster) -> Iterator[BlockingCluster]:
    made = BlockingCluster([scripted.brokers[1].address], timeout_s=5.0)
    yield made
    made.close()


def ends(node_id: int, code: int = 0) -> Callable[[Message], Message]:
    """The node's answer for all partitions that it is asked for: an offset of a hundred times its id."""

    def answer(request: Message) -> Message:
        assert isinstance(request, ListOffsetsRequest)
        (topic,) = request.topics
        partitions = [
            ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=code, offset=100 * node_id + asked.partition_index
            )
            for asked in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=partitions)])

    return answer


def test_all_leaders_are_asked_before_one_has_answered(scripted: ScriptedCluster, cluster: BlockingCluster) -> None:
    both_asked = threading.Barrier(2, timeout=5.0)

    def wait_for_the_other(node_id: int) -> Callable[[Message], Reply]:
        def answer(request: Message) -> Reply:
            both_asked.wait()
            return ends(node_id)(request)

        return answer

    for node_id in (1, 2):
        scripted.brokers[node_id].scripts[Api.LIST_OFFSETS] = wait_for_the_other(node_id)
    found = cluster.list_offsets(LATEST)
    assert [found[tp].offset for tp in LEADERS] == [100, 201]


def test_only_what_is_missing_is_asked_again(scripted: ScriptedCluster, cluster: BlockingCluster) -> None:
    replies = [ends(2), ends(2, ErrorCode.NOT_LEADER_OR_FOLLOWER), lambda _: None]
    scripted.brokers[1].scripts[Api.LIST_OFFSETS] = ends(1)
    scripted.brokers[2].scripts[Api.LIST_OFFSETS] = lambda request: replies.pop()(request)
    found = cluster.list_offsets(LATEST)
    assert [found[tp].offset for tp in LEADERS] == [100, 201]
    assert len(scripted.brokers[1].asked(ListOffsetsRequest)) == 1
    assert len(scripted.brokers[2].asked(ListOffsetsRequest)) == 3


def test_refusal_of_one_leader_is_final(scripted: ScriptedCluster, cluster: BlockingCluster) -> None:
    scripted.brokers[1].scripts[Api.LIST_OFFSETS] = lambda _: None
    scripted.brokers[2].scripts[Api.LIST_OFFSETS] = ends(2, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ApiError, match="offsets of events-1: TOPIC_AUTHORIZATION_FAILED"):
        cluster.list_offsets(LATEST)
    # No answer is left behind on the connections.
    scripted.brokers[1].scripts[Api.LIST_OFFSETS] = ends(1)
    scripted.brokers[2].scripts[Api.LIST_OFFSETS] = ends(2)
    assert [cluster.list_offsets(LATEST)[tp].offset for tp in LEADERS] == [100, 201]


# -- leader epochs ----------------------------------------------------------------------------

TP = TopicPartition("t", 0)


def fenced(broker: ScriptedBroker) -> Callable[[Message], Message]:
    """Answers as a leader of epoch 7."""

    def answer(request: Message) -> Message:
        assert isinstance(request, ListOffsetsRequest)
        (asked,) = request.topics[0].partitions
        epoch = asked.current_leader_epoch
        code = ErrorCode.NONE if epoch == 7 else ErrorCode.FENCED_LEADER_EPOCH
        broker.leader_epoch = 7
        one = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=3, leader_epoch=7)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[one])])

    return answer


def test_leader_of_another_epoch_does_not_answer() -> None:
    with ScriptedBroker(topics={"t": b"t" * 16}) as broker:
        broker.scripts[Api.LIST_OFFSETS] = fenced(broker)
        broker.leader_epoch = 6
        cluster = BlockingCluster([broker.address], timeout_s=5.0)
        assert cluster.list_offsets({TP: -1})[TP] == (3, -1, 7)
        epochs = [one.topics[0].partitions[0].current_leader_epoch for one in asked_offsets(broker)]
        assert epochs == [6, 7]
        cluster.close()


def test_metadata_of_a_broker_that_is_behind_is_not_believed() -> None:
    with ScriptedBroker(topics={"t": b"t" * 16}) as broker:
        broker.scripts[Api.LIST_OFFSETS] = fenced(broker)
        broker.leader_epoch = 7
        cluster = BlockingCluster([broker.address], timeout_s=5.0)
        cluster.leader(TP)
        cluster.forget("t")
        broker.leader_epoch = 6
        with pytest.raises(ApiError, match="t-0: the brokers' metadata names a leader that has been replaced"):
            cluster.leader(TP, timeout_s=0.2)
        assert asked_offsets(broker) == []
        # A topic that was created again begins anew.
        broker.topics["t"] = b"u" * 16
        assert cluster.leader(TP).node_id == 1
        cluster.close()


def asked_offsets(broker: ScriptedBroker) -> list[ListOffsetsRequest]:
    return [request for request in broker.requests if isinstance(request, ListOffsetsRequest)]


def test_where_an_epoch_ends(penstock_broker: Broker) -> None:
    with BlockingAdmin(penstock_broker.bootstrap_servers) as admin:
        admin.create_topic("epochs", 2)
    producer = Producer({"bootstrap.servers": penstock_broker.bootstrap_servers})
    for number in range(5):
        producer.produce("epochs", b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    cluster = BlockingCluster([("127.0.0.1", penstock_broker.port)])
    tps = [TopicPartition("epochs", 0), TopicPartition("epochs", 1)]
    ends = cluster.list_offsets(dict.fromkeys(tps, -1))
    epochs = {tp: ends[tp].leader_epoch for tp in tps}
    assert {tp: end.end_offset for tp, end in cluster.epoch_ends(epochs).items()} == {tps[0]: 5, tps[1]: 0}
    # A leader does not know epochs after its own.
    assert cluster.epoch_ends({tps[0]: 99})[tps[0]].end_offset == -1
    assert cluster.epoch_ends({}) == {}
    cluster.close()


# -- samples of records -----------------------------------------------------------------------


def records_of(node_id: int, code: int = 0) -> Callable[[Message], Message]:
    def answer(request: Message) -> Message:
        assert isinstance(request, FetchRequest)
        partitions = [
            PartitionData(partition_index=asked.partition, error_code=code, records=b"" if code else b"%d" % node_id)
            for asked in request.topics[0].partitions
        ]
        return FetchResponse(responses=[FetchableTopicResponse(topic="events", partitions=partitions)])

    return answer


def sampled(cluster: BlockingCluster) -> dict[TopicPartition, bytes]:
    return {tp: bytes(records) for tp, records in cluster.first_batches(dict.fromkeys(LEADERS, 7), 1000).items()}


def test_sample_is_of_all_leaders_at_once(scripted: ScriptedCluster, cluster: BlockingCluster) -> None:
    both_asked = threading.Barrier(2, timeout=5.0)

    def wait_for_the_other(node_id: int) -> Callable[[Message], Reply]:
        def answer(request: Message) -> Reply:
            both_asked.wait()
            return records_of(node_id)(request)

        return answer

    for node_id in (1, 2):
        scripted.brokers[node_id].scripts[Api.FETCH] = wait_for_the_other(node_id)
    assert sampled(cluster) == {TopicPartition("events", 0): b"1", TopicPartition("events", 1): b"2"}
    (asked,) = scripted.brokers[2].asked(FetchRequest)
    assert isinstance(asked, FetchRequest)
    assert (asked.max_wait_ms, asked.topics[0].partitions[0].fetch_offset) == (0, 7)


def test_sample_is_tried_once_and_the_leader_looked_up_again(
    scripted: ScriptedCluster, cluster: BlockingCluster
) -> None:
    scripted.brokers[1].scripts[Api.FETCH] = records_of(1)
    scripted.brokers[2].scripts[Api.FETCH] = records_of(2, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert sampled(cluster) == {TopicPartition("events", 0): b"1"}
    assert len(scripted.brokers[2].asked(FetchRequest)) == 1
    scripted.topics["events"][1].leader = 1
    assert sampled(cluster) == {TopicPartition("events", 0): b"1", TopicPartition("events", 1): b"1"}


def test_sample_without_a_leader_that_is_gone(scripted: ScriptedCluster, cluster: BlockingCluster) -> None:
    scripted.brokers[1].scripts[Api.FETCH] = records_of(1)
    scripted.brokers[2].scripts[Api.FETCH] = lambda _: None
    assert sampled(cluster) == {TopicPartition("events", 0): b"1"}
    scripted.topics["events"][1].leader = -1
    assert sampled(cluster) == {TopicPartition("events", 0): b"1"}
    assert cluster.known_leaders([*LEADERS, TopicPartition("events", 9), TopicPartition("none", 0)]) == {
        TopicPartition("events", 0): Leader(1, -1)
    }
