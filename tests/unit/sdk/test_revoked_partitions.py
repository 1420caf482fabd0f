"""A partition that is taken away in the middle of reading or committing: its records and offsets go with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from penstock.sdk import BlockingConsumer, CommitFailed, Record, TopicPartition

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class Message:
    """As librdkafka hands it out."""

    def __init__(self, partition: int, offset: int) -> None:
        self._partition, self._offset = partition, offset

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def error(self) -> None:
        return None

    key = value = headers = leader_epoch = error


class Client:
    """librdkafka's consumer with a rebalance where the test wants it."""

    def __init__(self) -> None:
        self.held = [ZERO, ONE]
        self.committed: list[tuple[str, int, int]] = []
        self.messages: list[Message] = []
        self.in_consume: Callable[[], object] = int

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self._on_revoke = on_revoke

    def revoke(self, *partitions: TopicPartition) -> None:
        self._on_revoke(self, [LibrdkafkaPartition(*one) for one in partitions])
        self.held = [one for one in self.held if one not in partitions]

    def assignment(self) -> list[LibrdkafkaPartition]:
        return [LibrdkafkaPartition(*one) for one in self.held]

    def poll(self, timeout_s: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        self.in_consume()
        taken, self.messages = self.messages, []
        return taken

    def commit(self, offsets: list[LibrdkafkaPartition], asynchronous: bool) -> list[LibrdkafkaPartition]:
        self.committed += [(one.topic, one.partition, one.offset) for one in offsets]
        return []

    def store_offsets(self, offsets: list[LibrdkafkaPartition]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def consumer(client: Client) -> BlockingConsumer:
    made = BlockingConsumer("127.0.0.1:1", group="g", auto_commit=False)
    made._client.close()
    made._client = client  # type: ignore[assignment]
    made.subscribe("t")
    return made


def taken(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def test_a_record_of_a_partition_that_went_meanwhile_is_not_handed_out(
    client: Client, consumer: BlockingConsumer
) -> None:
    client.messages = [Message(0, 7), Message(1, 3), Message(0, 8)]
    client.in_consume = lambda: client.revoke(ZERO)
    assert taken(consumer.poll(timeout_s=0)) == [(1, 3)]
    assert consumer.position(ZERO) is None
    client.in_consume = int
    client.messages = [Message(1, 4), Message(1, 5)]
    assert taken(consumer.poll(timeout_s=0)) == [(1, 4), (1, 5)]


def test_a_partition_that_went_and_came_back_is_read_from_where_it_is_given(
    client: Client, consumer: BlockingConsumer
) -> None:
    def there_and_back() -> None:
        client.revoke(ZERO)
        client.held = [ZERO, ONE]

    client.messages = [Message(0, 7), Message(0, 5), Message(0, 6)]
    client.in_consume = there_and_back
    assert taken(consumer.poll(timeout_s=0)) == [(0, 5), (0, 6)]


def test_only_what_is_held_is_committed(client: Client, consumer: BlockingConsumer) -> None:
    client.messages = [Message(0, 7), Message(1, 3)]
    records = consumer.poll(timeout_s=0)
    everything = consumer.offsets_to_commit(None)
    client.revoke(ZERO)  # between the asking and the committing, as with the asyncio consumer
    consumer.commit_offsets(everything, is_everything=True)
    assert client.committed == [("t", 1, 4)]
    with pytest.raises(CommitFailed, match="t-0: these partitions now belong to other members"):
        consumer.commit(records)
    with pytest.raises(CommitFailed, match="t-0"):
        consumer.commit({ZERO: 8})
    assert client.committed == [("t", 1, 4)] * 2
