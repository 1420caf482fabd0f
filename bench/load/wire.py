"""The requests of the load, built once as bytes, and the fields of the answers that it reads.

It knows Kafka's protocol, but not the broker. Apache Kafka 4.x accepts the versions: Produce 9, Fetch 12, Metadata 4,
CreateTopics 4, DeleteTopics 3, and Produce 12 in a transaction (`transaction_wire` has the rest of transactions). Every
request is a whole frame whose correlation id and (for Fetch) offset can be patched in place, so that sending needs no
encoding.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.model.errors import ErrorCode
from penstock.records.batch import HEADER_SIZE, iterate_headers
from penstock.records.builder import Record, build_batch

CLIENT_ID = b"bench"
CORRELATION_AT = 8  # frame length, api key, api version, then the correlation id
MAX_NAME = 126  # a topic name whose compact length fits one byte, so that field positions are fixed
RECORD_OVERHEAD = 12  # bytes around one value in a batch, at most

_INT32 = struct.Struct(">i")


class BrokerError(RuntimeError):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int) -> None:
        try:
            name = ErrorCode(code).name
        except ValueError:
            name = "unknown"
        super().__init__(f"{what}: error {code} ({name})")
        self.code = code


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_unsigned_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def compact_string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > MAX_NAME:
        raise ValueError(f"topic name longer than {MAX_NAME} bytes: {text}")
    return unsigned_varint(len(raw) + 1) + raw


def framed(api_key: int, version: int, body: bytes, *, flexible: bool) -> bytearray:
    head = struct.pack(">hhih", api_key, version, 0, len(CLIENT_ID)) + CLIENT_ID + (b"\0" if flexible else b"")
    return bytearray(_INT32.pack(len(head) + len(body)) + head + body)


def random_batch(record_bytes: int, record_count: int) -> bytes:
    """A batch of random (incompressible) values."""
    value, now_ms = os.urandom(record_bytes), int(time.time() * 1000)
    return build_batch([Record(None, value, timestamp_ms=now_ms)] * record_count)


def records_per_batch(record_bytes: int, batch_bytes: int) -> int:
    return max(1, (batch_bytes - HEADER_SIZE) // (record_bytes + RECORD_OVERHEAD))


def produce_request(
    topic: str, partition: int, batch: bytes, acks: int = -1, transactional_id: str | None = None
) -> bytearray:
    """With a transactional id in the version that adds the partition to the transaction (KIP-890)."""
    body = (
        (b"\0" if transactional_id is None else compact_string(transactional_id))
        + struct.pack(">hi", acks, 30_000)
        + b"\2"
        + compact_string(topic)
        + b"\2"
        + _INT32.pack(partition)
        + unsigned_varint(len(batch) + 1)
        + batch
        + b"\0\0\0"  # tags of partition, topic, request
    )
    return framed(0, 9 if transactional_id is None else 12, body, flexible=True)


def produce_error_at(topic: str) -> int:
    """Where the error code stands in an answer to `produce_request`, counted after the frame length."""
    # correlation id, tags, topic count, name, partition count, partition index
    return 4 + 1 + 1 + 1 + len(topic.encode()) + 1 + 4


class FetchRequest(NamedTuple):
    frame: bytearray
    offset_at: int


def fetch_request(
    topic: str, partition: int, max_bytes: int, max_wait_ms: int, *, committed: bool = False
) -> FetchRequest:
    """`committed`: only below the last stable offset."""
    before = (
        struct.pack(">iiiibii", -1, max_wait_ms, 1, max_bytes, committed, 0, -1)
        + b"\2"
        + compact_string(topic)
        + b"\2"
        + struct.pack(">ii", partition, -1)
    )
    after = struct.pack(">qiqi", 0, -1, -1, max_bytes) + b"\0\0\1\1\0"
    frame = framed(1, 12, before + after, flexible=True)
    return FetchRequest(frame, len(frame) - len(after))


class Fetched(NamedTuple):
    error: int
    high_watermark: int
    last_stable_offset: int
    start: int  # where the record batches start and end in the answer
    end: int


_FETCH_PARTITION = struct.Struct(">ihqqq")


def read_fetch(answer: memoryview, topic: str) -> Fetched:
    """The one partition of an answer to `fetch_request` (`answer` starts after the frame length)."""
    (error,) = struct.unpack_from(">h", answer, 9)
    if error:
        return Fetched(error, -1, -1, 0, 0)
    at = 15 + 1 + 1 + len(topic.encode()) + 1
    _, error, high_watermark, last_stable_offset, _ = _FETCH_PARTITION.unpack_from(answer, at)
    aborted, at = read_unsigned_varint(answer, at + _FETCH_PARTITION.size)
    if aborted > 1:
        raise ValueError("aborted transactions in a log that has none")
    size, at = read_unsigned_varint(answer, at + 4)  # after the preferred read replica
    return Fetched(error, high_watermark, last_stable_offset, at, at + max(size - 1, 0))


def check_batches(records: memoryview) -> None:
    """Every whole batch in fetched bytes is sound; a cut last batch is allowed. Raises CorruptBatch."""
    end = at = 0
    while len(records) - at >= HEADER_SIZE:
        at += 12 + int(_INT32.unpack_from(records, at + 8)[0])
        if at <= len(records):
            end = at
    for _ in iterate_headers(records[:end], "fetched bytes"):
        pass


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int
    configs: Mapping[str, str]


def create_topics_request(topics: Sequence[NewTopic]) -> bytearray:
    body = _INT32.pack(len(topics))
    for topic in topics:
        body += _string(topic.name) + struct.pack(">ihi", topic.partitions, 1, 0) + _INT32.pack(len(topic.configs))
        for key, value in topic.configs.items():
            body += _string(key) + _string(value)
    return framed(19, 4, body + struct.pack(">ib", 60_000, 0), flexible=False)


def delete_topics_request(names: Sequence[str]) -> bytearray:
    body = _INT32.pack(len(names)) + b"".join(map(_string, names)) + _INT32.pack(60_000)
    return framed(20, 3, body, flexible=False)


def metadata_request(names: Sequence[str]) -> bytearray:
    body = _INT32.pack(len(names)) + b"".join(map(_string, names)) + b"\0"  # never create by asking
    return framed(3, 4, body, flexible=False)


class Reader:
    """Reads the classic (non-flexible) answers, field by field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def int8(self) -> int:
        return self._take(">b")

    def int16(self) -> int:
        return self._take(">h")

    def int32(self) -> int:
        return self._take(">i")

    def string(self) -> str | None:
        size = self.int16()
        if size < 0:
            return None
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def int32_array(self) -> list[int]:
        return [self.int32() for _ in range(self.int32())]


def read_topic_errors(answer: bytes, *, with_message: bool) -> dict[str, int]:
    """Error code by topic of a CreateTopics (with messages) or DeleteTopics answer."""
    reader = Reader(answer)
    reader.int32()  # correlation id
    reader.int32()  # throttle time
    errors: dict[str, int] = {}
    for _ in range(reader.int32()):
        name = reader.string() or ""
        errors[name] = reader.int16()
        if with_message:
            reader.string()
    return errors


class TopicState(NamedTuple):
    error: int
    leaders: list[int]  # leader by partition, -1 where there is none


class ClusterState(NamedTuple):
    broker_count: int
    topics: dict[str, TopicState]


def read_metadata(answer: bytes) -> ClusterState:
    reader = Reader(answer)
    reader.int32()  # correlation id
    reader.int32()  # throttle time
    broker_count = reader.int32()
    for _ in range(broker_count):
        reader.int32()
        reader.string()
        reader.int32()
        reader.string()
    reader.string()  # cluster id
    reader.int32()  # controller id
    topics: dict[str, TopicState] = {}
    for _ in range(reader.int32()):
        error, name = reader.int16(), reader.string() or ""
        reader.int8()  # internal
        leaders = []
        for _ in range(reader.int32()):
            partition_error = reader.int16()
            reader.int32()  # partition index
            leader = reader.int32()
            leaders.append(-1 if partition_error else leader)
            reader.int32_array()  # replicas
            reader.int32_array()  # in-sync replicas
        topics[name] = TopicState(error, leaders)
    return ClusterState(broker_count, topics)
