"""Waiting for news of many partitions: woken by a broker in this process, and by scripted leaders that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from penstock.model.errors import ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.sdk import BlockingAdmin
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.primitives import Message
from penstock.wire_client.blocking import long_poll
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.long_poll import LongPoll
from support.scripted.broker import Reply
from support.scripted.cluster import ScriptedCluster

LONG_S = 60.0


def test_record_wakes_who_waits(penstock_broker: Broker) -> None:
    with BlockingAdmin(penstock_broker.bootstrap_servers) as admin:
        admin.create_topic("woken", 3)
    cluster = BlockingCluster([("127.0.0.1", penstock_broker.port)], timeout_s=20.0)
    poll = LongPoll(cluster, read_committed=True)
    at = {TopicPartition("woken", number): 0 for number in range(3)}
    assert not poll.wait(at, 0.1)
    producer = Producer({"bootstrap.servers": penstock_broker.bootstrap_servers})

    def produce() -> None:
        producer.produce("woken", b"x" * 100, partition=2)
        producer.flush(LONG_S)

    threading.Timer(0.3, produce).start()
    assert poll.wait(at, LONG_S)
    # The same record is no news for who knows it, and news for who does not.
    at[TopicPartition("woken", 2)] = 1
    assert not poll.wait(at, 0.1)
    assert poll.wait(dict.fromkeys(at, 0), LONG_S)
    poll.close()
    assert sum(connection.outstanding for idle in cluster._idle.values() for connection in idle) == 0
    cluster.close()


# -- scripted leaders -------------------------------------------------------------------------

AT = {TopicPartition("events", 0): 5, TopicPartition("events", 1): 5}


class Leaders:
    """Each answers its fetches with the high watermark, after it is told to. Until then the fetch is open."""

    def __init__(self) -> None:
        self.cluster = ScriptedCluster()
        self.high_watermarks = {1: 5, 2: 5}
        self.code = {1: ErrorCode.NONE, 2: ErrorCode.NONE}
        self.may_answer = {1: threading.Event(), 2: threading.Event()}
        self.fetches: list[tuple[int, FetchRequest]] = []
        for node_id, broker in self.cluster.brokers.items():
            broker.scripts[Api.FETCH] = self.fetch(node_id)
            broker.__enter__()
        self.client = BlockingCluster([self.cluster.brokers[1].address], timeout_s=5.0)
        self.poll = LongPoll(self.client, read_committed=False)

    def fetch(self, node_id: int) -> Callable[[Message], Reply]:
        def answer(request: Message) -> Reply:
            assert isinstance(request, FetchRequest)
            self.fetches.append((node_id, request))
            self.may_answer[node_id].wait(LONG_S)
            data = [
                PartitionData(
                    partition_index=one.partition,
                    error_code=self.code[node_id],
                    high_watermark=self.high_watermarks[node_id],
                )
                for one in request.topics[0].partitions
            ]
            return FetchResponse(responses=[FetchableTopicResponse(topic="events", partitions=data)])

        return answer

    def asked(self, node_id: int) -> int:
        return [asked for asked, _ in self.fetches].count(node_id)

    def close(self) -> None:
        for event in self.may_answer.values():
            event.set()
        self.poll.close()
        self.client.close()
        for broker in self.cluster.brokers.values():
            broker.__exit__(None, None, None)


@pytest.fixture
def leaders() -> Iterator[Leaders]:
    made = Leaders()
    yield made
    made.close()


def test_fetch_stays_open_from_wait_to_wait(leaders: Leaders) -> None:
    for _ in range(3):
        assert not leaders.poll.wait(AT, 0.05)
    assert (leaders.asked(1), leaders.asked(2)) == (1, 1)
    (_, request), _ = leaders.fetches
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (1000, 1, 1)
    assert request.topics[0].partitions[0].fetch_offset == 5
    leaders.high_watermarks[2] = 6
    leaders.may_answer[2].set()
    assert leaders.poll.wait(AT, LONG_S)
    assert leaders.asked(1) == 1


def test_answer_without_news_is_followed_by_another_fetch(leaders: Leaders) -> None:
    """As at the end of the broker's patience, or about records that are known by now."""
    leaders.may_answer[1].set()
    begin = time.monotonic()
    assert not leaders.poll.wait(AT, 0.2)
    assert time.monotonic() - begin >= 0.2
    assert leaders.asked(1) > 1


def test_nothing_is_asked_for_a_while_after_an_error(leaders: Leaders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "FAILED_S", LONG_S)
    leaders.code[1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    leaders.may_answer[1].set()
    assert leaders.poll.wait(AT, LONG_S)
    asked = leaders.asked(1)
    for _ in range(3):
        assert leaders.poll.wait(AT, 0.01), "it cannot be known"
    assert leaders.asked(1) == asked
    monkeypatch.setattr(long_poll, "FAILED_S", 0.0)
    leaders.code[1] = ErrorCode.NONE
    assert not leaders.poll.wait(AT, 0.1)
    assert leaders.asked(1) > asked


def test_lost_leader_is_not_known(leaders: Leaders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "FAILED_S", 0.0)
    assert not leaders.poll.wait(AT, 0.05)
    leaders.cluster.brokers[2].hang_up()
    assert leaders.poll.wait(AT, LONG_S)
    assert not leaders.poll.wait(AT, 0.05), "connected again"
    leaders.may_answer[2].set()
    leaders.cluster.brokers[2].__exit__(None, None, None)
    assert leaders.poll.wait(AT, LONG_S)


def test_partition_without_a_leader_is_not_waited_for(leaders: Leaders) -> None:
    leaders.cluster.topics["events"][1].leader = -1
    assert not leaders.poll.wait(AT, 0.05)
    assert (leaders.asked(1), leaders.asked(2)) == (1, 0)
    assert not leaders.poll.wait({}, 0.05)
