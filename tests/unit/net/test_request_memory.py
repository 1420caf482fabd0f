"""Memory for requests on their way in: bounded over all connections, fair, and free again when they end."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref

from test_connection import PIPELINED_KEY, FakeChannel, frame

from penstock.net.channel import SocketChannel
from penstock.net.connection import INITIAL_BUFFER_BYTES, Connection, ConnectionLimits
from penstock.net.request_memory import DEFAULT_BYTES, MAX_HOLD_S, RequestMemory

MAX_FRAME = 8 << 20
HALF = 1 << 20  # of a frame, as it comes


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Many:
    """Connections that share their memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.clock = Clock()
        self.memory = RequestMemory(limit_bytes, self.clock)
        self.limits = ConnectionLimits(MAX_FRAME, 5, frozenset({PIPELINED_KEY}), memory=self.memory)
        self.done: list[Connection] = []
        self.errors: list[Exception | None] = []

    def connect(self) -> tuple[Connection, FakeChannel]:
        channel = FakeChannel()
        connection = Connection(
            asyncio.get_running_loop(), channel, self._handle, self.limits, lambda _, error: self.errors.append(error)
        )
        return connection, channel

    def _handle(self, connection: Connection, slot: int, frame: memoryview) -> None:
        self.done.append(connection)
        connection.reply(slot, [b""])


def feed(connection: Connection, channel: FakeChannel, data: bytes) -> bytes:
    """The memory that was not taken."""
    rest = memoryview(data)
    while rest and channel.is_reading and not channel.is_closed:
        buffer = connection.receive_buffer()
        size = min(len(buffer), len(rest))
        assert size > 0
        buffer[:size] = rest[:size]
        connection.received(size)
        rest = rest[size:]
    return bytes(rest)


LARGE = frame(PIPELINED_KEY, bytes(4 << 20))


async def test_all_together_stay_below_the_bound_and_one_request() -> None:
    many = Many(6 << 20)
    peers = [many.connect() for _ in range(20)]
    left = [feed(*peer, LARGE[: len(LARGE) // 2]) for peer in peers]
    assert many.memory.used_bytes <= (6 << 20) + MAX_FRAME
    assert many.memory.waiting > 0
    # Everybody goes on sending: all requests come to their end, a few at a time.
    left = [rest + LARGE[len(LARGE) // 2 :] for rest in left]
    for _ in range(100):
        left = [feed(*peer, rest) for peer, rest in zip(peers, left, strict=True)]
        assert many.memory.used_bytes <= (6 << 20) + MAX_FRAME
        await asyncio.sleep(0)
    assert not any(left)
    assert len(many.done) == 20
    assert many.memory.waiting == 0


async def test_small_requests_need_none_of_it() -> None:
    many = Many(0)
    connection, channel = many.connect()
    for _ in range(100):
        assert feed(connection, channel, frame(PIPELINED_KEY, bytes(INITIAL_BUFFER_BYTES // 2))) == b""
        await asyncio.sleep(0)
    assert len(many.done) == 100
    assert many.memory.waits == 0


async def test_one_request_always_fits() -> None:
    many = Many(0)
    connection, channel = many.connect()
    assert feed(connection, channel, LARGE) == b""
    assert len(many.done) == 1
    assert many.memory.used_bytes < len(LARGE), "given back"


async def test_the_end_of_a_connection_lets_others_go_on() -> None:
    many = Many(2 << 20)
    slow = many.connect()
    feed(*slow, LARGE[:-1])
    held, waiting = many.connect(), many.connect()
    feed(*held, LARGE[:HALF])
    rest = feed(*waiting, LARGE)
    assert rest
    assert not waiting[1].is_reading
    slow[0].abort()
    held[0].abort()
    assert waiting[1].is_reading
    assert feed(*waiting, rest) == b""
    assert many.done == [waiting[0]]


async def test_who_does_not_come_to_an_end_is_closed_while_others_wait() -> None:
    many = Many(1 << 20)
    slow, second = many.connect(), many.connect()
    feed(*slow, LARGE[:-1])
    many.clock.now = MAX_HOLD_S + 1
    assert many.memory.late() == [], "nobody waits"
    feed(*second, LARGE)
    assert many.memory.late() == [], "nobody has waited yet"
    many.clock.now += MAX_HOLD_S / 2
    assert many.memory.late() == []
    many.clock.now += MAX_HOLD_S
    assert many.memory.late() == [slow[0]]


async def test_time_in_which_nobody_waits_does_not_count() -> None:
    many = Many(1 << 20)
    slow = many.connect()
    feed(*slow, LARGE[:-1])
    for _ in range(4):
        waiting = many.connect()
        feed(*waiting, LARGE)
        assert many.memory.is_short
        many.clock.now += MAX_HOLD_S / 4
        assert many.memory.late() == []
        waiting[0].abort()
        assert not many.memory.is_short
        many.clock.now += 3600.0
    feed(*many.connect(), LARGE)
    many.clock.now += 1.0
    assert many.memory.late() == [slow[0]], "shortages add up"


async def test_copies_hold_up_others_until_they_are_gone() -> None:
    many = Many(1 << 20)
    first, second = many.connect(), many.connect()
    with many.memory.charged(1 << 20):
        feed(*first, LARGE[:HALF])
        rest = feed(*second, LARGE)
        assert rest
        assert many.memory.waiting == 1
        assert many.memory.late() == []
        first[0].abort()
    assert many.memory.waiting == 0
    assert feed(*second, rest) == b""
    assert many.done == [second[0]]


async def test_a_burst_does_not_keep_its_buffer() -> None:
    many = Many(-1)
    assert many.memory.limit_bytes == DEFAULT_BYTES
    connection, channel = many.connect()
    feed(connection, channel, LARGE)
    connection.free_idle_memory(connection.last_active + 1)
    assert many.memory.used_bytes > 0
    connection.free_idle_memory(connection.last_active + 11)
    assert many.memory.used_bytes == 0
    assert len(connection.receive_buffer()) == INITIAL_BUFFER_BYTES


async def test_a_closed_connection_is_gone_without_the_collector() -> None:
    """`gc.freeze` at the start of a broker keeps cycles of that time for ever, and large buffers in them."""
    loop = asyncio.get_running_loop()
    many = Many(-1)
    gc.collect()
    gc.disable()
    try:
        for ends_first in ("peer", "broker"):
            listening = socket.create_server(("127.0.0.1", 0))
            client = socket.create_connection(listening.getsockname())
            accepted, _ = listening.accept()
            listening.close()
            connection = Connection(loop, SocketChannel(loop, accepted), many._handle, many.limits, lambda *_: None)
            assert isinstance(connection.channel, SocketChannel)
            connection.channel.start(connection)
            client.sendall(struct.pack(">ihhi", 100_000, PIPELINED_KEY, 0, 0) + bytes(50_000))
            for _ in range(2000):
                if many.memory.used_bytes:
                    break
                await asyncio.sleep(0.001)
            assert many.memory.used_bytes
            gone = weakref.ref(connection)
            if ends_first == "peer":
                client.close()
                for _ in range(2000):
                    if connection.is_closed:
                        break
                    await asyncio.sleep(0.001)
            else:
                connection.abort()
                client.close()
            many.done.clear()
            del connection
            await asyncio.sleep(0.01)
            assert gone() is None, ends_first
            assert many.memory.used_bytes == 0
    finally:
        gc.enable()
