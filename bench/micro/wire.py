"""Microseconds per produce and fetch message through the codecs.

    python -m bench.micro.wire

The best of several runs, one topic and one partition each; writing includes building
the message, since that is what a handler does.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

from penstock.ports.disk import File, FileSlice
from penstock.wire import codec
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

RECORDS = bytes(1024)
RUNS, CALLS = 7, 20_000


def produce_request() -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=RECORDS)
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="orders", partition_data=[partition])]
    )


def produce_response() -> ProduceResponse:
    partition = PartitionProduceResponse(index=3, base_offset=1234, log_start_offset=0)
    return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[partition])])


def fetch_request() -> FetchRequest:
    partition = FetchPartition(partition=3, fetch_offset=1234, partition_max_bytes=1 << 20)
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=[partition])])


def fetch_response(payload: FileSlice) -> FetchResponse:
    partition = PartitionData(partition_index=3, high_watermark=9, last_stable_offset=9, records=payload)
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[partition])])


class _NoFile:
    path = "-"


def reading(api: Api, version: int, message: ProduceRequest | FetchRequest) -> Callable[[], object]:
    parts, _ = codec.encode_request(api, version, 7, "bench", message)
    received = memoryview(bytearray(b"".join(part for part in parts if isinstance(part, bytes))))[4:]

    def run() -> object:
        _, _, _, _, offset = codec.read_request_header(received)
        return codec.decode_request(api, version, received, offset)

    return run


def body_only(api: Api, version: int, message: ProduceRequest | FetchRequest) -> Callable[[], object]:
    received = memoryview(bytearray(codec.encode(message, version)))
    return lambda: codec.decode_request(api, version, received, 0)


def writing(api: Api, version: int, make: Callable[[], ProduceResponse | FetchResponse]) -> Callable[[], object]:
    return lambda: codec.encode_response(api, version, 7, make())


def piece_writing(version: int, make: Callable[[], ProduceResponse | FetchResponse]) -> Callable[[], object]:
    write = codec.writer(type(make()), version)
    return lambda: write(make(), [])


def main() -> None:
    file: File = _NoFile()  # type: ignore[assignment]  # never opened: only its place in the list counts
    payload = FileSlice(file, 0, 128 * 1024)
    rows: list[tuple[str, Callable[[], object]]] = []
    for version in (7, 9):
        rows.append((f"ProduceRequest v{version} read", body_only(Api.PRODUCE, version, produce_request())))
        rows.append((f"ProduceRequest v{version} read with header", reading(Api.PRODUCE, version, produce_request())))
        rows.append((f"ProduceResponse v{version} build", produce_response))
        rows.append((f"ProduceResponse v{version} build, write", piece_writing(version, produce_response)))
        rows.append(
            (f"ProduceResponse v{version} build, write, frame", writing(Api.PRODUCE, version, produce_response))
        )
    for version in (11, 12):
        rows.append((f"FetchRequest v{version} read", body_only(Api.FETCH, version, fetch_request())))
        rows.append((f"FetchRequest v{version} read with header", reading(Api.FETCH, version, fetch_request())))
        rows.append((f"FetchResponse v{version} build, write", piece_writing(version, lambda: fetch_response(payload))))
        rows.append(
            (
                f"FetchResponse v{version} build, write, frame",
                writing(Api.FETCH, version, lambda: fetch_response(payload)),
            )
        )
    for name, run in rows:
        best = min(timeit.repeat(run, number=CALLS, repeat=RUNS)) / CALLS
        print(f"{name:<44} {best * 1e6:6.2f} us")


if __name__ == "__main__":
    main()
