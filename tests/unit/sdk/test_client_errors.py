"""A wrong argument, address or record is always a `ClientError` with a sentence."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import penstock
from penstock.sdk import (
    BadSetting,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    ClientError,
    DeliveryFailed,
    NewRecord,
    Refused,
    ShiftBy,
    TopicPartition,
    UnknownTopic,
    Unreachable,
)


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def untyped_admin(servers: str) -> Any:
    """As people without a type checker see it."""
    return BlockingAdmin(servers)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda admin: admin.configs("foo", "t"), "a topic, a broker, a group, but not of a 'foo'"),
        (lambda admin: admin.configs("topic", 5), "the name of a topic must be text, not 5"),
        (lambda admin: admin.reset_offsets("g", ["greetings"], "earliest"), "a partition must be like TopicPartition"),
        (
            lambda admin: admin.reset_offsets("g", "greetings", "earliest"),
            "partitions must be a list of TopicPartition",
        ),
        (lambda admin: admin.reset_offsets("g", [TopicPartition("t", 0)], "soon"), "'soon' is not a position: "),
        (lambda admin: admin.offsets([TopicPartition("t", 0)], "soon"), "'soon' is not a position in a log"),
        (lambda admin: admin.set_group_offsets("g", {"t": 1}), "a partition must be like TopicPartition"),
        (
            lambda admin: admin.alter_configs("topic", "t", set_={"retention.ms": 1}),
            "retention.ms must be text: give '1'",
        ),
        (lambda admin: admin.alter_configs("topic", "t", delete="retention.ms"), "delete must be a list of names"),
        (lambda admin: admin.create_topic("t", configs={"retention.ms": 1}), "retention.ms must be text: give '1'"),
        (lambda admin: admin.create_topic("t", 1_000_000), "partitions must be a number from 1 to 100000, not 1000000"),
        (lambda admin: admin.create_topic(5), "cannot create topic 5: "),
    ],
)
def test_arguments_of_the_wrong_kind(untyped_admin: Any, call: Callable[[Any], object], says: str) -> None:
    with pytest.raises(BadSetting) as raised:
        call(untyped_admin)
    assert says in str(raised.value)


def test_settings_of_the_wrong_kind(servers: str) -> None:
    with pytest.raises(BadSetting, match='cannot make a producer: acks must be "all", 1 or 0, not 2'):
        BlockingProducer(servers, acks=2)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=r"cannot make an admin client: .*no\.such"):
        BlockingAdmin(servers, settings={"no.such": 1})
    with (
        BlockingConsumer(servers) as consumer,
        pytest.raises(BadSetting, match="a partition must be like TopicPartition"),
    ):
        consumer.assign(5)  # type: ignore[arg-type]


def test_records_of_the_wrong_kind(servers: str, topic: str) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, 2)
    with BlockingProducer(servers) as producer:
        with pytest.raises(BadSetting, match="bytes, text or None"):
            producer.send(topic, 5)  # type: ignore[arg-type]
        with pytest.raises(UnknownTopic, match="the topic has no partition 7"):
            producer.send(topic, "x", partition=7)
        with pytest.raises(UnknownTopic, match="the topic has no partition 7"):
            producer.send(topic, "x", partition=7)  # known by now, and refused before it is sent
    with (
        BlockingProducer(servers, partitioner=lambda *_: "a") as producer,  # type: ignore[arg-type]
        pytest.raises(DeliveryFailed, match=r"chose 'a' for .*: give a number from 0 to 1"),
    ):
        producer.send(topic, "x")


def test_the_topic_says_how_large_a_record_may_be(servers: str, topic: str) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, 1, configs={"max.message.bytes": "3000000"})
    with BlockingProducer(servers, buffer_size_bytes=8 << 20) as producer:
        assert producer.send(topic, b"x" * 2_500_000).offset == 0
        with pytest.raises(Refused, match=r"raise max\.message\.bytes of the topic"):
            producer.send(topic, b"x" * 3_500_000)
        for headers in ({}, {"h": b"x" * (8 << 20)}):
            with pytest.raises(DeliveryFailed, match="too large for this producer: raise buffer_size_bytes"):
                producer.send(topic, b"x" if headers else b"x" * (9 << 20), headers=headers)
        assert producer.send(topic, b"small").offset == 1


def test_a_compacted_topic_needs_keys(servers: str, topic: str) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, 1, configs={"cleanup.policy": "compact"})
    with BlockingProducer(servers) as producer:
        with pytest.raises(Refused, match=r"it has no key, and a compacted topic needs a key \(INVALID_RECORD\)"):
            producer.send(topic, "x")
        with pytest.raises(Refused, match="a compacted topic needs a key"):
            producer.send_many(topic, [NewRecord("x", key="k"), NewRecord("x")])
        producer.send(topic, "x", key="k")


def test_nothing_is_shifted_where_one_partition_has_no_offset(servers: str, topic: str, group: str) -> None:
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with BlockingAdmin(servers) as admin, BlockingProducer(servers) as producer:
        admin.create_topic(topic, 2)
        for partition in (0, 0, 1, 1):
            producer.send(topic, "x", partition=partition)
        admin.set_group_offsets(group, {zero: 1})
        with pytest.raises(Refused, match=f"committed nothing in {one}, so there is no offset to shift"):
            admin.reset_offsets(group, [zero, one], ShiftBy(1))
        assert admin.group_offsets(group) == {zero: 1}
        (change,) = admin.reset_offsets(group, [zero], ShiftBy(1))
        assert (change.old, change.new) == (1, 2)


def test_where_nothing_listens_nobody_waits(nobody: str) -> None:
    began = time.monotonic()
    with BlockingAdmin(nobody) as admin:
        for ask in (admin.cluster, admin.topics, lambda: admin.offsets([TopicPartition("t", 0)], "latest")):
            with pytest.raises(Unreachable, match=nobody):
                ask()
    with BlockingConsumer(nobody) as consumer, pytest.raises(Unreachable):
        consumer.partitions("t")
    assert time.monotonic() - began < 5
    with BlockingAdmin("somewhere:port") as admin, pytest.raises(ClientError, match="HOST:PORT"):
        admin.topics()


def test_all_tries_of_a_request_share_its_time(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    class Moving:
        """A controller that has always just gone."""

        def poll(self, _: float) -> None:
            pass

        def create_topics(self, topics: list[Any], request_timeout: float, **_: object) -> dict[str, Future[None]]:
            given.append(request_timeout)
            time.sleep(0.3)
            answer: Future[None] = Future()
            answer.set_exception(KafkaException(KafkaError(KafkaError.NOT_CONTROLLER)))
            return {topics[0].topic: answer}

    with BlockingAdmin(servers, timeout_s=2) as admin:
        monkeypatch.setattr(admin, "_client", Moving())
        with pytest.raises(Refused, match="NOT_CONTROLLER"):
            admin.create_topic("t")
    assert given[0] == 2
    assert len(given) > 1
    assert all(later <= earlier - 0.3 for earlier, later in pairwise(given))
    assert given[-1] > 0


@pytest.mark.parametrize("kind", ["nothing", "subscribed", "assigned"])
def test_a_reader_learns_that_there_is_no_broker(nobody: str, kind: str) -> None:
    with BlockingConsumer(nobody, group="g", request_timeout_ms=500) as consumer:
        if kind == "subscribed":
            consumer.subscribe("t")
        elif kind == "assigned":
            consumer.assign(TopicPartition("t", 0), at=0)
        began = time.monotonic()
        with pytest.raises(Unreachable, match=nobody):
            next(iter(consumer))
        assert 0.5 <= time.monotonic() - began < 10


def test_a_quiet_topic_is_no_missing_broker(servers: str, topic: str, group: str) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, 1)
    with BlockingConsumer(servers, group=group, request_timeout_ms=300) as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(timeout_s=1.5) == []


def test_what_the_client_is_given_comes_from_the_package() -> None:
    assert penstock.NewRecord is NewRecord
    assert penstock.TopicPartition is TopicPartition
