"""A client of raw frames: what goes out is built here, what comes in is decoded and nothing is retried."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from penstock.records.batch import HEADER_SIZE, BatchHeader, iterate_headers
from penstock.records.builder import Record, build_batch, iterate_records
from penstock.records.compression import decompress
from penstock.wire.apis import Api, api
from penstock.wire.codec import decode, encode_request, read_response_header
from penstock.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.wire.messages.delete_topics import DeleteTopicsRequest
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from penstock.wire.primitives import NULL_UUID, Message

TIMEOUT_S = 10.0
_names = itertools.count(1)


def batch(*values: bytes | None, key: bytes | None = b"k", timestamp_ms: int | None = None, **header: Any) -> bytes:
    """One uncompressed batch, a record a value, stamped now unless told."""
    stamp = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    return build_batch([Record(key, value, timestamp_ms=stamp) for value in values], **header)


def produce_request(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, topic_id: bytes = NULL_UUID
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])],
    )


def fetch_request(
    topic: str,
    offset: int = 0,
    *,
    partitions: Sequence[int] = (0,),
    topic_id: bytes = NULL_UUID,
    partition_max_bytes: int = 1 << 20,
    **options: Any,
) -> FetchRequest:
    asked = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        for index in partitions
    ]
    return FetchRequest(topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=asked)], **options)


def batches(data: PartitionData) -> list[tuple[BatchHeader, list[Record]]]:
    """The batches of a fetch response, checksums verified, with their records."""
    raw = bytes(data.records)  # type: ignore[arg-type]
    found = []
    for position, header in iterate_headers(raw, "response"):
        payload = raw[position + HEADER_SIZE : position + header.size_bytes]
        found.append((header, list(iterate_records(header, decompress(header.compression, payload)))))
    return found


def values(data: PartitionData) -> list[bytes | None]:
    return [record.value for _, records in batches(data) for record in records]


class WireClient:
    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        self._correlation = itertools.count(100)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # -- frames -------------------------------------------------------------------------

    def send(self, key: int, version: int, message: Message, client_id: str | None = "wire-test") -> int:
        """Send and return the correlation id."""
        correlation_id = next(self._correlation)
        parts, _ = encode_request(key, version, correlation_id, client_id, message)
        self.socket.sendall(b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview)))
        return correlation_id

    def send_frame(self, body: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def receive_frame(self) -> bytes:
        """The next frame without its size; empty when the broker closed the connection."""
        head = self._read(4)
        return self._read(struct.unpack(">i", head)[0]) if head else b""

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                assert not data, f"the connection ended after {len(data)} of {size} bytes"
                return b""
            data += piece
        return bytes(data)

    def receive(self, key: int, version: int) -> tuple[int, Any]:
        """(correlation id, response); every byte of the frame must belong to it."""
        body = self.receive_frame()
        assert body, "the broker closed the connection"
        correlation_id, offset = read_response_header(key, version, body)
        return correlation_id, decode(api(key).response, version, body, offset)

    def call(self, key: int, version: int, message: Message) -> Any:
        sent = self.send(key, version, message)
        correlation_id, response = self.receive(key, version)
        assert correlation_id == sent
        return response

    def is_closed_by_broker(self) -> bool:
        return self.receive_frame() == b""

    def is_silent(self, seconds: float) -> bool:
        """True when nothing arrives for so long."""
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(TIMEOUT_S)
        return False

    # -- what most tests need -----------------------------------------------------------

    def create_topic(self, partitions: int = 1, name: str | None = None, **configs: str) -> str:
        """A new topic; `max_message_bytes="100"` sets max.message.bytes."""
        topic = name or f"wire-{next(_names)}"
        settings = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        asked = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=settings)
        (result,) = self.call(Api.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[asked])).topics
        assert result.error_code == 0, result
        return topic

    def delete_topic(self, topic: str) -> None:
        response = self.call(Api.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=[topic]))
        assert response.responses[0].error_code == 0, response

    def describe(self, topic: str) -> MetadataResponseTopic:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        found: MetadataResponseTopic = self.call(Api.METADATA, 12, request).topics[0]
        return found

    def produce(
        self, topic: str, records: bytes | None, *, version: int = 9, **options: Any
    ) -> PartitionProduceResponse:
        response = self.call(Api.PRODUCE, version, produce_request(topic, records, **options))
        entry: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return entry

    def fetch(self, topic: str, offset: int = 0, *, version: int = 12, **options: Any) -> PartitionData:
        response: FetchResponse = self.call(Api.FETCH, version, fetch_request(topic, offset, **options))
        assert response.error_code == 0
        return response.responses[0].partitions[0]

    def list_offset(self, topic: str, timestamp: int, *, version: int = 11) -> ListOffsetsPartitionResponse:
        asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(timestamp=timestamp)])
        response = self.call(Api.LIST_OFFSETS, version, ListOffsetsRequest(replica_id=-1, topics=[asked]))
        found: ListOffsetsPartitionResponse = response.topics[0].partitions[0]
        return found
