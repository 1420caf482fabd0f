"""Readers and writers in steps say the same as those that do it at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest

from penstock.model.errors import ProtocolError
from penstock.wire.apis import Api
from penstock.wire.codec import (
    body_steps,
    decode_request,
    encode,
    encode_request,
    encode_response,
    read_request_header,
    request_steps,
    response_steps,
)
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.metadata import MetadataResponsePartition as Partition
from penstock.wire.messages.metadata import MetadataResponseTopic as Topic
from penstock.wire.primitives import Encoded
from penstock.wire.reading import STEP_ITEMS

T = TypeVar("T")


def count_steps(steps: Generator[None, None, T]) -> tuple[T, int]:
    taken = 0
    while True:
        taken += 1
        try:
            next(steps)
        except StopIteration as done:
            return done.value, taken


def frame_of(key: int, version: int, message: MetadataRequest | FetchRequest) -> tuple[bytes, int]:
    parts, _ = encode_request(key, version, 1, "client", message)
    frame = b"".join(part for part in parts if isinstance(part, bytes))[4:]
    return frame, read_request_header(frame)[-1]


@pytest.mark.parametrize("version", [8, 12])
@pytest.mark.parametrize("elements", [0, 1, STEP_ITEMS - 1, STEP_ITEMS, 1000])
def test_reading(version: int, elements: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"t{at}") for at in range(elements)])
    frame, offset = frame_of(Api.METADATA, version, request)
    (message, end), taken = count_steps(request_steps(Api.METADATA, version, frame, offset, 1000))
    assert message == decode_request(Api.METADATA, version, frame, offset) == request
    assert end == len(frame)
    assert taken == elements // STEP_ITEMS + 1


def test_the_elements_of_all_arrays_count_together() -> None:
    asked = [FetchPartition(partition=at) for at in range(10)]
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=asked) for _ in range(10)])
    frame, offset = frame_of(Api.FETCH, 12, request)
    assert count_steps(request_steps(Api.FETCH, 12, frame, offset, 110))[0][0] == request
    with pytest.raises(ProtocolError, match="more elements"):
        count_steps(request_steps(Api.FETCH, 12, frame, offset, 109))


class Known(Topic, Encoded):
    __slots__ = ("encoded",)


@pytest.mark.parametrize("version", [0, 8, 12])
def test_writing(version: int) -> None:
    response = MetadataResponse(
        topics=[Topic(name=f"t{at}", partitions=[Partition(partition_index=at)]) for at in range(300)]
    )
    (parts, size), taken = count_steps(response_steps(Api.METADATA, version, 7, response))
    assert (parts, size) == encode_response(Api.METADATA, version, 7, response)
    assert taken == 600 // STEP_ITEMS + 1


@pytest.mark.parametrize("version", [0, 8, 12])
def test_what_was_encoded_before_is_taken_as_it_is(version: int) -> None:
    plain = [Topic(name=f"t{at}", partitions=[Partition(partition_index=at)]) for at in range(300)]
    known: list[Topic] = []
    for one in plain:
        encoded = Known(name=one.name, partitions=one.partitions)
        encoded.encoded, _ = count_steps(body_steps(Topic, one, version))
        assert encoded.encoded == encode(one, version)
        known.append(encoded)
    (parts, _), taken = count_steps(response_steps(Api.METADATA, version, 7, MetadataResponse(topics=known)))
    assert parts == encode_response(Api.METADATA, version, 7, MetadataResponse(topics=plain))[0]
    assert taken == 1
