"""Groups go on where they were: after kill -9 of the consumer, and of the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from group_processes import Member, Trickle, check_history, create_topic, wait_until, wait_until_shared

from support.processes.broker import BrokerProcess

PARTITIONS = 6
RECORDS = 100
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "penstock.http.listener": "", "penstock.line.listener": ""}


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        yield broker
    assert "Traceback" not in broker.log(), broker.log()


def consumer(broker: BrokerProcess, group: str = "g") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )


def produce(broker: BrokerProcess, count: int = RECORDS) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce("t", str(number), partition=0)
    assert producer.flush(30) == 0


def read(client: Consumer, count: int) -> list[int]:
    """Offsets of the next records."""
    offsets: list[int] = []
    deadline = time.monotonic() + 30
    while len(offsets) < count:
        message = client.poll(0.2)
        if message is not None and message.error() is None:
            offsets.append(message.offset())
        assert time.monotonic() < deadline, f"{len(offsets)} of {count} records"
    return offsets


@pytest.mark.parametrize("library", ["confluent", "aiokafka", "kafka-python"])
def test_a_killed_consumer_resumes_where_it_committed(killable: BrokerProcess, library: str) -> None:
    create_topic(killable.bootstrap_servers, "t", 1)
    produce(killable)
    first = Member(library, killable.bootstrap_servers, "g", "t")
    wait_until(lambda: len(first.handled) == RECORDS, "all records")
    first.kill()
    watcher = consumer(killable)
    (committed,) = watcher.committed([TopicPartition("t", 0)], timeout=10)
    watcher.close()
    assert 0 < committed.offset <= RECORDS
    produce(killable, 7)
    second = Member(library, killable.bootstrap_servers, "g", "t")
    try:
        wait_until(lambda: (0, RECORDS + 6) in second.handled, "the new records")
        assert min(offset for _, offset in second.handled) == committed.offset
    finally:
        second.kill()


def test_the_broker_is_killed_between_two_consumers(killable: BrokerProcess) -> None:
    create_topic(killable.bootstrap_servers, "t", 1)
    produce(killable)
    first = consumer(killable)
    first.subscribe(["t"])
    assert read(first, 60) == list(range(60))
    first.commit(offsets=[TopicPartition("t", 0, 42)], asynchronous=False)
    killable.kill()  # right after the commit was acknowledged
    killable.start()
    first.close()
    second = consumer(killable)
    second.subscribe(["t"])
    assert read(second, RECORDS - 42) == list(range(42, RECORDS))
    second.close()


def test_members_live_through_a_kill_of_the_broker(killable: BrokerProcess) -> None:
    bootstrap = killable.bootstrap_servers
    create_topic(bootstrap, "t", PARTITIONS)
    trickle = Trickle(bootstrap, "t", PARTITIONS)
    members = [Member("confluent", bootstrap, "g", "t") for _ in range(3)]
    try:
        wait_until_shared(members, PARTITIONS)
        generation = members[0].generation
        killed = time.time()
        killable.kill()
        killable.start()
        wait_until_shared(members, PARTITIONS)
        # They sent heartbeats within their session: same generation, nothing revoked.
        assert {member.generation for member in members} == {generation}
        assert [event for member in members for event in member.of("revoked") if event["at"] > killed] == []
        delivered = trickle.stop()
        wait_until(lambda: delivered <= set().union(*(member.handled for member in members)), "the last records")
        check_history(members, delivered)
    finally:
        for member in members:
            member.end_if_running()


def test_close_returns_promptly(killable: BrokerProcess) -> None:
    create_topic(killable.bootstrap_servers, "t", 1)
    produce(killable)
    client = consumer(killable)
    client.subscribe(["t"])
    read(client, 10)
    client.commit(asynchronous=False)
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 1
