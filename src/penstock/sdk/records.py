"""Frozen values that a client sends and receives. Keys and values are bytes, as in the log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.errors import BadSetting

Payload: TypeAlias = bytes | str | None
Headers: TypeAlias = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
Position: TypeAlias = int | datetime | Literal["earliest", "latest", "committed"]
"""A start position: an offset, a time (the first record at or after it), an end of the log, or the committed offset."""


def checked_partitions(given: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Checks the type: for a topic's name in place of partitions, librdkafka's error would be hard to understand."""
    example = 'TopicPartition("events", 0)'
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadSetting(f"partitions must be a list of {example}, not {given!r}")
    found: list[TopicPartition] = []
    for one in given:
        match one:
            case (str(topic), int(number)):
                found.append(TopicPartition(topic, number))
            case _:
                raise BadSetting(f"a partition must be like {example}, not {one!r}")
    return found


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the log."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None
    """The creation time, or the append time if the topic is configured so."""
    is_append_time: bool
    leader_epoch: int | None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def time(self) -> datetime | None:
        return None if self.timestamp_ms is None else datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    def text(self) -> str:
        """The value decoded as UTF-8; empty for a null value."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        return None if self.value is None else json.loads(self.value)

    def header(self, name: str) -> bytes | None:
        """The last header with this name, as in Kafka's clients."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be sent, for `send_many`."""

    value: Payload
    key: Payload = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """The acknowledgement of a record."""

    topic: str
    partition: int
    offset: int | None
    """None with acks=0: the broker does not return it."""
    timestamp_ms: int | None
    latency_ms: float
    """The time from `send` to the acknowledgement."""


def record_of(message: Message) -> Record:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.key(),
        message.value(),
        tuple(headers) if headers else (),  # type: ignore[arg-type]  # received headers are (str, bytes | None)
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        kind == TIMESTAMP_LOG_APPEND_TIME,
        message.leader_epoch(),
    )


def header_list(headers: Headers) -> list[tuple[str, bytes | str | None]] | None:
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return list(pairs) or None
