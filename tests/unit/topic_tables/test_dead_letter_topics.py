"""Records that do not fit go to a topic: none is lost, and those that come twice can be told."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition

from penstock import sdk
from penstock.arrow.values import parse_schema
from penstock.cli.reach.connection import Target
from penstock.cli.tables.follow_topic import _dead_letter_topic
from penstock.model.errors import PenstockError
from penstock.sdk import BlockingProducer
from penstock.tables import Table
from penstock.testing import Broker
from penstock.topic_tables import dead_letter_topic
from penstock.topic_tables.dead_letter_topic import DeadLettersNotSent, DeadLetterTopic
from penstock.topic_tables.dead_letters import SCHEMA
from support.tables.topics import FilledTopic, earliest

IDS = {"mode": "json", "schema": parse_schema("id int")}
Found = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]


@pytest.fixture
def topic(penstock_broker: Broker) -> FilledTopic:
    return FilledTopic(penstock_broker.bootstrap_servers)


@pytest.fixture
def other(penstock_broker: Broker) -> FilledTopic:
    return FilledTopic(penstock_broker.bootstrap_servers)


def sent_to(topic: FilledTopic) -> list[Found]:
    with closing(Consumer({"bootstrap.servers": topic.servers, "group.id": "looks"})) as consumer:
        found: list[Found] = []
        for partition in range(2):
            place = Partition(topic.name, partition, 0)
            count = consumer.get_watermark_offsets(place)[1]
            consumer.assign([place])
            got = consumer.consume(count, 30.0) if count else []
            assert len(got) == count
            found += [(one.key(), one.value(), one.headers() or []) for one in got]
        return sorted(found, key=lambda one: one[1] or b"")


def headers(topic: FilledTopic, offset: int, reason: str) -> list[tuple[str, bytes]]:
    told = {"error.reason": reason, "error.topic": topic.name, "error.partition": "0", "error.offset": str(offset)}
    return [(name, text.encode()) for name, text in told.items()]


def test_they_are_unchanged_and_say_why(tmp_path: Path, topic: FilledTopic, other: FilledTopic) -> None:
    topic.send(['{"id": 0}', "bad", None], partition=0, key=b"k", headers=[("own", b"1")])
    with BlockingProducer(topic.servers) as producer:
        place = DeadLetterTopic(producer, other.name, topic.name, threading.Event())
        assert topic.follow(tmp_path, dead_letters=place, **IDS).dead_letters == 2
    own = [("own", b"1")]
    assert sent_to(other) == [
        (b"k", None, own + headers(topic, 2, "the record has no value")),
        (b"k", b"bad", own + headers(topic, 1, "JSON is malformed: invalid character (byte 0)")),
    ]
    assert Table.open(tmp_path).at().arrow().column("id").to_pylist() == [0]
    assert not (tmp_path / "_dead_letters").exists()


def test_a_crash_before_the_rows_sends_them_again(
    tmp_path: Path, topic: FilledTopic, other: FilledTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.send(["bad", '{"id": 1}'], partition=0)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with BlockingProducer(topic.servers) as producer:
        place = DeadLetterTopic(producer, other.name, topic.name, threading.Event())
        with monkeypatch.context() as patch, topic.follower(tmp_path, dead_letters=place, **IDS) as follower:
            follower._add({0: 0, 1: 0})
            patch.setattr(follower._table, "append", dies)
            with pytest.raises(KeyboardInterrupt):
                follower.run(earliest)
        topic.follow(tmp_path, dead_letters=place)
        topic.follow(tmp_path, dead_letters=place)
    one, again = sent_to(other)
    assert one == again
    assert one[2][-1] == ("error.offset", b"0")
    assert Table.open(tmp_path).at().arrow().column("id").to_pylist() == [1]


class Refusing:
    """A producer whose records fail, or are never acknowledged."""

    def __init__(self, failure: PenstockError | None) -> None:
        self._failure = failure

    def submit(self, topic: str, value: bytes | None, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._failure is not None:
            future.set_exception(self._failure)
        return future


def test_nothing_is_passed_over_if_they_cannot_be_sent(
    tmp_path: Path, topic: FilledTopic, other: FilledTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_topic, "PATIENCE_S", 0.0)
    monkeypatch.setattr(dead_letter_topic, "LOOK_S", 0.01)
    topic.send(["bad", '{"id": 1}'], partition=0)
    stopped = threading.Event()
    stopped.set()
    for failure, reason in (
        (PenstockError("too large"), f"dead letters cannot be sent to topic {other.name}: too large"),
        (None, f"topic {other.name} has not acknowledged 1 dead letters: the next run sends them"),
    ):
        place = DeadLetterTopic(Refusing(failure), other.name, topic.name, stopped)
        with pytest.raises(DeadLettersNotSent, match=reason):
            topic.follow(tmp_path, dead_letters=place, **IDS)
        assert sum(Table.open(tmp_path).positions.values()) == 0
    assert topic.follow(tmp_path).dead_letters == 1
    assert Table.open(tmp_path).at().arrow().column("id").to_pylist() == [1]


class Bounded:
    """A producer whose buffer has room for a few records, and whose broker is away."""

    def __init__(self, room: int) -> None:
        self._room = room

    def submit(self, topic: str, value: bytes | None, **_: Any) -> Future[Any]:
        self._room -= 1
        assert self._room >= 0, "this would wait for ever"
        return Future()


@pytest.mark.parametrize(("limit", "size_bytes"), [("MAX_WAITING", 1), ("MAX_WAITING_BYTES", 100)])
def test_a_stop_is_noticed_while_many_wait(monkeypatch: pytest.MonkeyPatch, limit: str, size_bytes: int) -> None:
    for name, value in (("PATIENCE_S", 0.0), ("LOOK_S", 0.01), (limit, 5 * size_bytes)):
        monkeypatch.setattr(dead_letter_topic, name, value)
    stopped = threading.Event()
    stopped.set()
    row = {"partition": 0, "offset": 0, "value": b"x" * size_bytes, "reason": "bad"}
    rows = pa.RecordBatch.from_pylist([row] * 20, SCHEMA)
    place = DeadLetterTopic(Bounded(5), "dead", "topic", stopped)
    with pytest.raises(DeadLettersNotSent, match="has not acknowledged 5 dead letters"):
        place.append({0: [rows]}, {0: "stream"}, {0: 20})


def test_closing_does_not_hide_why_following_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unclosable:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def close(self, timeout_s: float) -> None:
            raise PenstockError("not all records were acknowledged in time")

    monkeypatch.setattr(sdk, "BlockingProducer", Unclosable)
    dead_letters = _dead_letter_topic(Target("localhost:1", "test"), "dead", "topic", threading.Event(), once=True)
    with pytest.raises(DeadLettersNotSent, match="the reason"), dead_letters:
        raise DeadLettersNotSent("the reason")
