"""A blocking client of raw frames: what a test sends is what it wrote, and nothing is retried behind its back."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TypeVar, cast

from penstock.ports.channel import Part
from penstock.records.batch import HEADER_SIZE, BatchHeader, iterate_headers
from penstock.records.builder import Record, iterate_records
from penstock.records.compression import decompress
from penstock.wire.apis import Api
from penstock.wire.codec import decode_response, encode_request, read_response_header
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.primitives import Message

R = TypeVar("R", bound=Message)
VERSIONS = {Api.PRODUCE: 11, Api.FETCH: 12, Api.METADATA: 12, Api.INIT_PRODUCER_ID: 4}


class RawClient:
    """Requests are answered in order, so `read` needs to know only what was asked first."""

    def __init__(self, port: int, timeout_s: float = 20, host: str = "127.0.0.1") -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.socket = socket.create_connection((host, port), timeout_s)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unanswered: list[tuple[int, int, int]] = []
        self._next_id = 0

    def send(self, api: Api, message: Message, version: int | None = None) -> None:
        version = VERSIONS[api] if version is None else version
        parts, _ = encode_request(api, version, self._next_id, "raw", message)
        self._unanswered.append((api, version, self._next_id))
        self._next_id += 1
        self.socket.sendall(join(parts))

    def read(self) -> Message:
        api, version, correlation_id = self._unanswered.pop(0)
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        got, at = read_response_header(api, version, frame)
        assert got == correlation_id
        return decode_response(api, version, frame, at)

    def call(self, api: Api, message: Message, kind: type[R], version: int | None = None) -> R:
        self.send(api, message, version)
        answer = self.read()
        assert isinstance(answer, kind)
        return answer

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            data += piece
        return bytes(data)

    # -- the few calls tests need -------------------------------------------------------

    def make_topic(self, name: str) -> int:
        """Auto-create; the number of partitions."""
        deadline = time.monotonic() + 10
        while True:
            answer = self.call(
                Api.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=name)]), MetadataResponse
            )
            if answer.topics[0].error_code == 0:
                return len(answer.topics[0].partitions)
            assert time.monotonic() < deadline, answer
            time.sleep(0.02)

    def new_producer(self) -> int:
        answer = self.call(
            Api.INIT_PRODUCER_ID,
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1),
            InitProducerIdResponse,
        )
        assert answer.error_code == 0, answer
        return answer.producer_id

    def send_batch(self, topic: str, partition: int, batch: bytes, acks: int = -1) -> None:
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        self.send(Api.PRODUCE, ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data]))

    def read_produced(self) -> PartitionProduceResponse:
        answer = self.read()
        assert isinstance(answer, ProduceResponse)
        return answer.responses[0].partition_responses[0]

    def produce(self, topic: str, partition: int, batch: bytes) -> PartitionProduceResponse:
        self.send_batch(topic, partition, batch)
        return self.read_produced()

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = 1 << 20) -> PartitionData:
        asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            session_epoch=-1,
            topics=[FetchTopic(topic=topic, partitions=[asked])],
        )
        answer = self.call(Api.FETCH, request, FetchResponse)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]

    def read_all(self, topic: str, partition: int) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """Every batch from offset 0 to the high watermark, checksums checked, each following the last."""
        offset = 0
        while True:
            data = self.fetch(topic, partition, offset)
            assert data.error_code == 0, (partition, offset, data.error_code)
            records = memoryview(cast("bytes", data.records or b""))
            if not records:
                assert offset == data.high_watermark
                return
            for at, header in iterate_headers(records, f"fetched from {topic}-{partition}"):
                assert header.base_offset == offset
                payload = decompress(header.compression, records[at + HEADER_SIZE : at + header.size_bytes])
                yield header, list(iterate_records(header, payload))
                offset = header.next_offset

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def join(parts: list[Part]) -> bytes:
    return b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))
