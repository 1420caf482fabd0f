"""Requests to several leaders: at once, and each until its leader has answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.cluster import BlockingCluster
from scripted_broker import Reply
from scripted_cluster import ScriptedCluster

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
