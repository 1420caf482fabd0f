"""A client that sends any frames and reads answers at any time."""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import Any

from bench.load.client import HOST
from penstock.records.batch import BatchHeader
from penstock.records.builder import Record, build_batch, seal
from penstock.records.compression import ZSTD, compress
from penstock.wire.apis import Api
from penstock.wire.codec import decode_response, encode_request, read_response_header
from penstock.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.primitives import Message

TIMEOUT_S = 30.0
SEND_BYTES = 64 << 10
"""At once. The kernel sends megabytes in one go, and the producer that measures waits for its processor meanwhile."""


class Peer:
    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def frame(self, key: int, version: int, message: Message) -> bytes:
        self._correlation += 1
        parts, _ = encode_request(key, version, self._correlation, "hostile", message)
        return b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))

    def send(self, key: int, version: int, message: Message) -> None:
        self.socket.sendall(self.frame(key, version, message))

    def send_raw(self, key: int, version: int, body: bytes, *, is_flexible: bool = True) -> None:
        self._correlation += 1
        head = struct.pack(">hhih", key, version, self._correlation, -1) + (b"\0" if is_flexible else b"")
        self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head)
        for at in range(0, len(body), SEND_BYTES):
            self.socket.sendall(body[at : at + SEND_BYTES])

    def receive(self) -> bytes:
        """The next answer without its size. Raises ConnectionError at the end."""
        return self._read(struct.unpack(">i", self._read(4))[0])

    def _read(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            part = self.socket.recv(min(size - len(out), 1 << 20))
            if not part:
                raise ConnectionError("closed by the broker")
            out += part
        return bytes(out)

    def call(self, key: int, version: int, message: Message) -> Any:
        self.send(key, version, message)
        answer = self.receive()
        _, at = read_response_header(key, version, answer)
        return decode_response(key, version, answer, at)

    def create(self, name: str, partitions: int = 1, **configs: str) -> int:
        """The error code; `cleanup_policy="compact"` sets cleanup.policy."""
        settings = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
        (result,) = self.call(Api.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=20_000)).topics
        return int(result.error_code)

    def create_many(self, names: list[str]) -> None:
        for at in range(0, len(names), 100):
            topics = [CreatableTopic(name=one, num_partitions=1, replication_factor=1) for one in names[at : at + 100]]
            self.call(Api.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics, timeout_ms=20_000))

    def produce(self, topic: str, records: bytes, *, acks: int = 1) -> int:
        response = self.call(Api.PRODUCE, 9, produce_request(topic, records, acks))
        return int(response.responses[0].partition_responses[0].error_code)


def produce_request(topic: str, records: bytes, acks: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=records)]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def small_batch(size: int = 100, records: int = 1) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([Record(b"k", bytes(size), (), now_ms) for _ in range(records)])


def bomb(records: int, *, has_keys: bool) -> bytes:
    """A batch of a few kilobytes that unpacks to so many records."""
    now_ms = int(time.time() * 1000)
    record = b"\x0e\0\0\0\2k\1\0" if has_keys else b"\x0c\0\0\0\1\1\0"
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=ZSTD,
        last_offset_delta=records - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=records,
    )
    return seal(header, compress(ZSTD, record * records))
