"""Parts of the client that need no broker: what was handed out, the calling thread, errors, metrics, round robin."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError

from penstock.model.errors import ConfigError
from penstock.sdk import (
    BadSetting,
    ClientClosed,
    ClientError,
    CommitFailed,
    GroupInfo,
    GroupNotEmpty,
    MemberInfo,
    NotAllowed,
    NotPolled,
    PartitionLag,
    Record,
    Refused,
    TimedOut,
    TopicExists,
    TopicPartition,
    UnknownTopic,
    Unreachable,
)
from penstock.sdk.call_thread import CallThread
from penstock.sdk.errors import translate
from penstock.sdk.handout import Handout
from penstock.sdk.metrics import Counts, Statistics, consumer_metrics, producer_metrics
from penstock.sdk.partitioners import RoundRobinPartitioner
from penstock.sdk.settings import ClusterConnection

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, b"k", b"value", (), None, False, None)


# -- what was handed out and is done with --------------------------------------------------------------------


def test_only_what_is_done_may_be_committed() -> None:
    handout = Handout()
    handout.add([record(0, 5), record(0, 6), record(1, 9)])
    assert [one.offset for one in handout.take(2)] == [5, 6]
    assert handout.take_done() == {}
    assert handout.positions() == {ZERO: 7}
    handout.finish()
    assert handout.has_done()
    assert handout.take_done() == {ZERO: 7}
    assert handout.take_done() == {}  # told once
    handout.take(10)
    assert handout.positions() == {ZERO: 7, ONE: 10}
    assert (handout.records, handout.size_bytes) == (3, 18)


def test_a_partition_that_is_gone_leaves_nothing() -> None:
    handout = Handout()
    handout.add([record(0, 1), record(1, 1), record(0, 2), record(1, 2)])
    handout.take(2)
    handout.finish()
    assert handout.first_buffered(ZERO) == 2
    handout.forget([ZERO])
    assert handout.first_buffered(ZERO) is None
    assert handout.take_done() == {ONE: 2}
    assert [one.partition for one in handout.take(10)] == [1]


def test_a_paused_partition_keeps_its_position() -> None:
    handout = Handout()
    handout.add([record(0, 1), record(0, 2)])
    handout.take(1)
    handout.forget([ZERO], buffered_only=True)
    assert len(handout) == 0
    assert handout.positions() == {ZERO: 2}


# -- the thread ----------------------------------------------------------------------------------------------


async def test_calls_in_order_and_their_exceptions() -> None:
    thread = CallThread("test")
    made: list[int] = []
    await asyncio.gather(*(thread.call(made.append, number) for number in range(10)))
    assert made == list(range(10))
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    thread.stop()
    with pytest.raises(ClientClosed):
        await thread.call(made.append, 11)


async def test_a_call_that_waits_lets_others_in_but_not_deferred_ones() -> None:
    thread = CallThread("test")
    loop = asyncio.get_running_loop()
    order: list[str] = []

    async def callback() -> None:
        later.append(asyncio.create_task(thread.call_deferred(order.append, "deferred")))
        await asyncio.sleep(0)
        await thread.call(order.append, "inner")

    def outer() -> None:
        future: Future[None] = asyncio.run_coroutine_threadsafe(callback(), loop)
        thread.serve_until(future)
        future.result()
        order.append("outer")

    later: list[asyncio.Task[None]] = []
    await thread.call(outer)
    await later[0]
    thread.stop()
    assert order == ["inner", "outer", "deferred"]


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "part"),
    [
        (KafkaError._ALL_BROKERS_DOWN, Unreachable, "no broker answers at h:1"),
        (KafkaError._TIMED_OUT, TimedOut, "may have taken effect"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopic, "doing it: there is no such topic or partition"),
        (KafkaError.TOPIC_ALREADY_EXISTS, TopicExists, "TOPIC_ALREADY_EXISTS"),
        (KafkaError.NON_EMPTY_GROUP, GroupNotEmpty, "NON_EMPTY_GROUP"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAllowed, "TOPIC_AUTHORIZATION_FAILED"),
        (KafkaError.ILLEGAL_GENERATION, CommitFailed, "belong to another member"),
        (KafkaError._MAX_POLL_EXCEEDED, NotPolled, "max_poll_interval_ms"),
        (KafkaError._INVALID_ARG, BadSetting, "doing it"),
        (KafkaError.MSG_SIZE_TOO_LARGE, Refused, "max.message.bytes"),
        (KafkaError.UNKNOWN, Refused, "UNKNOWN"),
    ],
)
def test_each_error_is_of_a_kind_and_says_what_to_do(code: int, kind: type[ClientError], part: str) -> None:
    error = translate(KafkaError(code), "doing it", "h:1")
    assert type(error) is kind
    assert part in str(error)
    assert error.name


def test_a_time_out_without_any_broker_says_so() -> None:
    assert isinstance(translate(KafkaError(KafkaError._TIMED_OUT), "doing it", "h:1", is_down=True), Unreachable)
    assert isinstance(BadSetting("x"), ConfigError)  # exit code 2 on the command line


def test_a_question_that_was_not_answered_has_not_half_happened() -> None:
    timed_out = KafkaError(KafkaError._TIMED_OUT)
    assert str(translate(timed_out, "reading", "h:1", changes=False)) == "reading: no answer in time"
    assert str(translate(timed_out, "making", "h:1")) == "making: no answer in time; the request may have taken effect"


def test_one_of_several_that_is_gone_does_not_stand_for_all() -> None:
    gone = KafkaError(KafkaError._TRANSPORT)
    for servers, is_down in (("h:1", True), ("h:1,h:2", False)):
        connection = ClusterConnection(servers, "test", {})
        connection.heard(gone)
        assert connection.is_down == is_down
        connection.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        assert connection.is_down


def test_librdkafka_begins_with_the_broker_that_is_known_to_serve() -> None:
    connection = ClusterConnection("h:1,h:2", "test", {}, begin_with="h:2")
    assert connection.configuration({})["bootstrap.servers"] == "h:2"
    assert connection.servers == "h:1,h:2"
    connection.heard(KafkaError(KafkaError._TRANSPORT))
    assert not connection.is_down, "there are others"
    assert ClusterConnection("h:1,h:2", "test", {}).configuration({})["bootstrap.servers"] == "h:1,h:2"


# -- values and metrics --------------------------------------------------------------------------------------


def test_lag_counts_from_what_is_still_there() -> None:
    assert PartitionLag("t", 0, 5, 0, 20, None).lag == 15
    assert PartitionLag("t", 0, 5, 10, 20, None).lag == 10  # 5 to 9 were deleted
    assert PartitionLag("t", 0, 25, 0, 20, None).lag == 0
    assert PartitionLag("t", 0, None, 0, 20, None).lag is None


def test_members_are_named_by_what_tells_them_apart() -> None:
    members = (
        MemberInfo("a-1", "a", "h", None, ()),
        MemberInfo("b-1", "b", "h", None, ()),
        MemberInfo("b-2", "b", "h", None, ()),
        MemberInfo("b-3", "b", "h", "static", ()),
    )
    group = GroupInfo("g", "Stable", "classic", "range", 1, members)
    assert group.names() == {"a-1": "a", "b-1": "b-1", "b-2": "b-2", "b-3": "static"}


def test_rates_are_those_of_the_last_interval() -> None:
    statistics = Statistics()
    nothing = producer_metrics(statistics, Counts(0, 0, 0), 0, deque())
    assert (nothing.send_rate, nothing.compression_ratio, nothing.latency.p99_ms) == (0, 0, 0)

    def document(ts: int, sent_bytes: int) -> str:
        window = {"sum": 500, "cnt": 5}
        topics = {"t": {"batchsize": window, "batchcnt": {"sum": 100, "cnt": 5}}}
        return json.dumps(
            {"ts": ts, "txmsg_bytes": sent_bytes, "topics": topics, "brokers": {"b": {"rtt": {"sum": 6000, "cnt": 3}}}}
        )

    statistics.received(document(1_000_000, 0), Counts(0, 0, 0))
    statistics.received(document(3_000_000, 2000), Counts(100, 2000, 4))
    found = producer_metrics(statistics, Counts(100, 2000, 4), 7, deque([0.001, 0.003, 0.002]))
    assert (found.send_rate, found.byte_rate, found.error_rate) == (50, 1000, 2)
    assert (found.batch_size_bytes, found.batch_records, found.compression_ratio) == (100, 20, 4)
    assert (found.broker_rtt_ms, found.records_queued) == (2, 7)
    assert (found.latency.p50_ms, found.latency.max_ms) == (2, 3)


def test_lag_is_against_what_was_handed_out() -> None:
    statistics = Statistics()
    partitions = {"0": {"hi_offset": 100}, "1": {"hi_offset": -1001}, "-1": {"hi_offset": -1001}}
    document = {"ts": 0, "topics": {"t": {"partitions": partitions}}}
    statistics.received(json.dumps(document), Counts(0, 0, 0))
    statistics.received(json.dumps(document | {"ts": 2_000_000, "rxmsgs": 10}), Counts(0, 0, 0, 6))
    found = consumer_metrics(statistics, Counts(0, 0, 1, 6), {ZERO: 40, ONE: 3}, 2)
    assert found.lag == {ZERO: 60}
    assert (found.total_lag, found.fetch_rate, found.commit_rate) == (60, 5, 3)
    assert (found.commits, found.commits_failed, found.rebalances) == (6, 1, 2)


def test_each_topic_has_a_turn_of_its_own() -> None:
    choose = RoundRobinPartitioner()
    assert [choose("a", None, None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert [choose("b", b"k", None, 2) for _ in range(3)] == [0, 1, 0]
