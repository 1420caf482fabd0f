"""Answers in the order of requests, however the bytes come; and an answer that is none ends the connection."""

from __future__ import annotations

import asyncio
from random import Random
from struct import Struct

import pytest

from penstock.broker_link.direct import DirectConnection
from penstock.wire_client.aio.pipelined import reaching
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost
from penstock.wire_client.requests.limits import MAX_FRAME_BYTES

_SIZE_AND_ID = Struct(">ii")


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True


def connected() -> tuple[DirectConnection, Transport]:
    connection, transport = DirectConnection("test"), Transport()
    connection.connection_made(transport)
    return connection, transport


async def asking(connection: DirectConnection, count: int) -> list[asyncio.Task[bytes]]:
    calls = [asyncio.ensure_future(connection.call(0x7002, b"question", 30.0)) for _ in range(count)]
    await asyncio.sleep(0)
    return calls


def answered(correlation_id: int, payload: bytes) -> bytes:
    return _SIZE_AND_ID.pack(4 + len(payload), correlation_id) + payload


@pytest.mark.parametrize("seed", range(10))
async def test_each_request_gets_its_answer_in_whatever_pieces_it_comes(seed: int) -> None:
    random = Random(seed)
    connection, transport = connected()
    calls = await asking(connection, 20)
    assert len(transport.sent) == 20
    payloads = [random.randbytes(random.choice((0, 3, 500))) for _ in calls]
    data = b"".join(answered(number, payload) for number, payload in enumerate(payloads))
    while data:
        size = random.randint(1, 100)
        connection.data_received(data[:size])
        data = data[size:]
    assert await asyncio.gather(*calls) == payloads
    assert connection.is_usable


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (answered(1, b""), "the broker answered request 1 out of order"),
        ((3).to_bytes(4, "big"), "the broker's answer is not Kafka's protocol: invalid frame size: 3 bytes"),
        (b"\xff\xff\xff\xff", "the broker's answer is not Kafka's protocol: invalid frame size: -1 bytes"),
        (
            (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
            f"the broker's answer is not Kafka's protocol: invalid frame size: {MAX_FRAME_BYTES + 1} bytes",
        ),
    ],
)
async def test_all_open_requests_fail_with_what_ended_the_connection(data: bytes, sentence: str) -> None:
    connection, transport = connected()
    calls = await asking(connection, 2)
    connection.data_received(data + answered(0, b"too late"))
    for call in calls:
        with pytest.raises(ConnectionLost, match=sentence):
            await call
    assert transport.is_aborted
    assert not connection.is_usable
    with pytest.raises(ConnectionLost, match=sentence):
        await connection.call(0x7002, b"question", 30.0)


async def test_an_answer_nobody_waits_for_any_more_is_dropped() -> None:
    connection, _ = connected()
    first, second = await asking(connection, 2)
    first.cancel()
    connection.data_received(answered(0, b"one") + answered(1, b"two"))
    assert await second == b"two"
    assert connection.is_usable


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "cannot connect to broker:9092: Connection refused"),
        (UnicodeError("label empty or too long"), "cannot connect to broker:9092: label empty or too long"),
        (ConnectionLost("gone"), "broker:9092 closed the connection at once"),
        (TimeoutError(), "broker:9092 did not answer within 2.5 s"),
    ],
)
async def test_what_goes_wrong_while_connecting_is_an_unreachable_broker(error: Exception, sentence: str) -> None:
    with pytest.raises(BrokerUnreachable, match=sentence):
        async with reaching("broker", 9092, 2.5):
            raise error
