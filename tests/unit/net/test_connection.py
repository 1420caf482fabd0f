"""One connection over a fake channel: frames, order, barriers, bounds."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable

import pytest

from penstock.net.channel import HIGH_WATER_BYTES
from penstock.net.connection import (
    COLD_READ_BYTES,
    INITIAL_BUFFER_BYTES,
    LARGE_REPLY_BYTES,
    MAX_READ_BYTES,
    OTHER_COST,
    STEADY_BUFFER_BYTES,
    TURN_BUDGET,
    TURN_S,
    Connection,
    ConnectionLimits,
    join_bytes,
)
from penstock.ports.channel import Part
from penstock.ports.disk import FileSlice

PIPELINED_KEY, BARRIER_KEY = 0, 3
MAX_FRAME = 1 << 20


class FakeChannel:
    peer = ("10.0.0.1", 1234)
    local = ("10.0.0.2", 9092)

    def __init__(self) -> None:
        self.sent: list[Part] = []
        self.sends = 0
        self.queued_bytes = 0
        self.is_reading = True
        self.is_closed = False
        self.drained = False

    def send(self, parts: Iterable[Part]) -> None:
        self.sends += 1
        self.sent += parts

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_peer_gone(self) -> bool:
        return False

    def close(self, *, drain: bool = False) -> None:
        self.is_closed = True
        self.drained = drain


class Harness:
    def __init__(
        self,
        max_in_flight: int = 5,
        clock: Callable[[], float] | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.channel = FakeChannel()
        self.handled: list[tuple[int, bytes]] = []
        self.answer: Callable[[int, bytes], bytes | None] = lambda slot, frame: None
        self.errors: list[Exception | None] = []
        self.connection = Connection(
            asyncio.get_running_loop(),
            self.channel,
            self._handle,
            limits or ConnectionLimits(MAX_FRAME, max_in_flight, frozenset({PIPELINED_KEY}), clock=clock),
            lambda connection, error: self.errors.append(error),
        )

    def _handle(self, connection: Connection, slot: int, frame: memoryview) -> None:
        body = bytes(frame)
        self.handled.append((slot, body))
        answer = self.answer(slot, body)
        if answer is not None:
            connection.reply(slot, [answer])

    def feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self.channel.is_closed and self.channel.is_reading:
            buffer = self.connection.receive_buffer()
            assert len(buffer) > 0
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            self.connection.received(size)
            rest = rest[size:]

    @property
    def sent(self) -> bytes:
        return b"".join(part for part in self.channel.sent if isinstance(part, bytes))


def frame(key: int, body: bytes = b"") -> bytes:
    payload = struct.pack(">hhi", key, 0, 0) + body
    return struct.pack(">i", len(payload)) + payload


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_frames_in_any_pieces() -> None:
    harness = Harness(max_in_flight=100)
    harness.answer = lambda slot, body: b""
    data = b"".join(frame(PIPELINED_KEY, bytes([n]) * n) for n in range(40))
    for at in range(0, len(data), 7):
        harness.feed(data[at : at + 7])
    assert [body[8:] for _, body in harness.handled] == [bytes([n]) * n for n in range(40)]


async def test_replies_leave_in_request_order() -> None:
    harness = Harness()
    harness.feed(frame(PIPELINED_KEY) * 4)
    for slot in (2, 0, 3, 1):
        harness.connection.reply(slot, [str(slot).encode()])
    await turn()
    assert harness.sent == b"0123"


async def test_replies_of_one_turn_leave_in_one_call() -> None:
    harness = Harness()
    harness.feed(frame(PIPELINED_KEY) * 4)
    for slot in range(4):
        harness.connection.reply(slot, [b"x"])
    await turn()
    assert harness.channel.sends == 1


async def test_barrier_waits_for_everything_before_it_and_holds_everything_after_it() -> None:
    harness = Harness()
    harness.feed(frame(PIPELINED_KEY, b"a") + frame(BARRIER_KEY, b"b") + frame(PIPELINED_KEY, b"c"))
    assert [body[8:] for _, body in harness.handled] == [b"a"]
    harness.connection.reply(0, [b"A"])
    await turn()
    assert [body[8:] for _, body in harness.handled] == [b"a", b"b"]
    harness.connection.reply(1, [b"B"])
    await turn()
    assert [body[8:] for _, body in harness.handled] == [b"a", b"b", b"c"]
    assert harness.channel.is_reading


async def test_hold_makes_a_pipelined_request_a_barrier() -> None:
    harness = Harness()
    harness.feed(frame(PIPELINED_KEY, b"a"))
    harness.connection.hold()
    harness.feed(frame(PIPELINED_KEY, b"b"))
    assert len(harness.handled) == 1
    harness.connection.reply(0, [])
    await turn()
    assert len(harness.handled) == 2


async def test_requests_in_flight_are_bounded() -> None:
    harness = Harness(max_in_flight=3)
    harness.feed(frame(PIPELINED_KEY) * 10)
    assert len(harness.handled) == 3
    assert not harness.channel.is_reading
    harness.connection.reply(0, [b"x"])
    await turn()
    assert len(harness.handled) == 4


async def test_a_peer_that_does_not_read_is_not_served_more() -> None:
    harness = Harness(max_in_flight=1000)
    harness.answer = lambda slot, body: b"reply"
    harness.channel.queued_bytes = HIGH_WATER_BYTES + 1
    harness.feed(frame(BARRIER_KEY) * 5)
    assert not harness.handled
    assert not harness.channel.is_reading
    harness.channel.queued_bytes = 0
    harness.connection.writable()
    assert len(harness.handled) == 5
    assert harness.channel.is_reading


@pytest.mark.parametrize("size", [-1, 0, 7, MAX_FRAME + 1, 2**31 - 1])
async def test_impossible_sizes_close(size: int) -> None:
    harness = Harness()
    harness.feed(struct.pack(">i", size) + b"\0" * 16)
    assert harness.channel.is_closed
    assert "frame of" in str(harness.errors[0])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "this looks like HTTP"),
        (b"POST /topics/t HTTP/1.1\r\n\r\n", "this looks like HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "this looks like TLS"),
    ],
)
async def test_another_protocol_is_named(data: bytes, says: str) -> None:
    harness = Harness()
    harness.feed(data)
    assert harness.channel.is_closed
    assert str(harness.errors[0]).startswith(says)


async def test_announcing_a_large_frame_costs_no_memory() -> None:
    harness = Harness()
    harness.feed(struct.pack(">i", MAX_FRAME) + b"\0" * 100)
    assert len(harness.connection._buffer) == INITIAL_BUFFER_BYTES


async def test_large_frames_arrive_whole_and_the_buffer_shrinks_again() -> None:
    harness = Harness()
    harness.answer = lambda slot, body: b""
    body = bytes(range(256)) * 3900
    harness.feed(frame(PIPELINED_KEY, body) + frame(PIPELINED_KEY, b"small"))
    assert [received[8:] for _, received in harness.handled] == [body, b"small"]
    assert len(harness.connection._buffer) <= 1 << 20


async def test_a_defect_in_a_handler_closes_the_connection_and_is_raised() -> None:
    harness = Harness()

    def fail(slot: int, body: bytes) -> bytes:
        raise ZeroDivisionError("a bug")

    harness.answer = fail
    with pytest.raises(ZeroDivisionError):
        harness.feed(frame(PIPELINED_KEY))
    assert harness.channel.is_closed


async def test_drain_answers_what_is_in_flight_and_takes_nothing_more() -> None:
    harness = Harness()
    harness.feed(frame(PIPELINED_KEY))
    harness.connection.drain()
    assert not harness.channel.is_closed
    harness.connection.reply(0, [b"last"])
    await turn()
    assert harness.sent == b"last"
    assert harness.channel.is_closed
    assert harness.channel.drained


async def test_a_slow_reader_is_not_idle_while_it_reads() -> None:
    harness = Harness()
    harness.channel.queued_bytes = 1000
    harness.connection.note_progress()
    harness.connection.last_active = before = -100.0
    harness.connection.note_progress()
    assert harness.connection.last_active == before
    harness.channel.queued_bytes = 999
    harness.connection.note_progress()
    assert harness.connection.last_active > before


async def test_reply_after_close_is_ignored() -> None:
    harness = Harness()
    harness.feed(frame(PIPELINED_KEY))
    harness.connection.abort()
    harness.connection.reply(0, [b"late"])
    await turn()
    assert harness.sent == b""
    assert harness.errors == [None]


def test_join_bytes_keeps_order_around_slices() -> None:
    piece = FileSlice(None, 0, 5)  # type: ignore[arg-type]
    assert join_bytes([b"a", b"b", piece, b"c", piece, piece, b"d", b"e"]) == [b"ab", piece, b"c", piece, piece, b"de"]


async def test_one_client_has_a_bounded_part_of_a_turn() -> None:
    """A client that sends without a pause does not keep others from their turn."""
    greedy, modest = Harness(max_in_flight=1000), Harness()
    order: list[str] = []
    for harness, name in ((greedy, "greedy"), (modest, "modest")):
        harness.answer = lambda slot, body, name=name: order.append(name) or b""  # type: ignore[func-returns-value,misc]
    greedy.feed(frame(PIPELINED_KEY) * 200)
    modest.feed(frame(BARRIER_KEY))
    assert order == ["greedy"] * TURN_BUDGET + ["modest"]
    assert not greedy.channel.is_reading
    turns = 0
    while len(order) < 201:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 200 // TURN_BUDGET - 1
    await turn()
    assert greedy.channel.is_reading


async def test_requests_that_are_not_pipelined_cost_more() -> None:
    harness = Harness()
    harness.answer = lambda slot, body: b""
    harness.feed(frame(BARRIER_KEY) * 50)
    assert len(harness.handled) == TURN_BUDGET // OTHER_COST
    for _ in range(10):
        await turn()
    assert len(harness.handled) == 50


async def test_what_takes_long_waits_for_the_next_turn() -> None:
    """Few requests may take as long as many: a turn is bounded by the clock, too."""
    now = 0.0
    harness = Harness(clock=lambda: now)

    def slow(slot: int, body: bytes) -> bytes:
        nonlocal now
        now += TURN_S * 0.6
        return b""

    harness.answer = slow
    harness.feed(frame(PIPELINED_KEY) * 9)
    handed_over = [len(harness.handled)]
    while handed_over[-1] < 9:
        await asyncio.sleep(0)
        handed_over.append(len(harness.handled))
    assert handed_over == [2, 4, 6, 8, 9]
    assert harness.channel.is_reading


async def test_those_that_never_pause_share_one_turn() -> None:
    """However many they are, somebody who sends now and then waits for one of them."""
    limits = ConnectionLimits(MAX_FRAME, 1000, frozenset({PIPELINED_KEY}))
    greedy = [Harness(limits=limits) for _ in range(5)]
    for harness in greedy:
        harness.answer = lambda slot, body: b""
        harness.feed(frame(PIPELINED_KEY) * TURN_BUDGET * 2)
    done = [sum(len(harness.handled) for harness in greedy)]
    for _ in range(5):
        await asyncio.sleep(0)
        done.append(sum(len(harness.handled) for harness in greedy))
    assert done == [TURN_BUDGET * (5 + turns) for turns in range(6)]
    assert all(harness.channel.is_reading for harness in greedy)
    assert not len(limits.line)


async def test_an_answer_is_no_turn_out_of_order() -> None:
    """A connection in the line is not served when an earlier request of it is answered."""
    harness = Harness(max_in_flight=1000)
    harness.feed(frame(PIPELINED_KEY) * (TURN_BUDGET * 3))
    harness.connection.reply(0, [b"x"])
    harness.connection.writable()
    assert len(harness.handled) == TURN_BUDGET
    await asyncio.sleep(0)
    assert len(harness.handled) == TURN_BUDGET * 2


async def test_nodes_of_the_cluster_wait_in_no_line() -> None:
    limits = ConnectionLimits(MAX_FRAME, 1000, frozenset({PIPELINED_KEY}))
    greedy, node = [Harness(limits=limits) for _ in range(5)], Harness(limits=limits)
    node.connection.is_peer = True
    for harness in (*greedy, node):
        harness.answer = lambda slot, body: b""
        harness.feed(frame(PIPELINED_KEY) * TURN_BUDGET * 2)
    await asyncio.sleep(0)
    assert len(node.handled) == TURN_BUDGET * 2


async def test_one_that_ended_holds_up_nobody_in_line() -> None:
    limits = ConnectionLimits(MAX_FRAME, 1000, frozenset({PIPELINED_KEY}))
    first, second = Harness(limits=limits), Harness(limits=limits)
    for harness in (first, second):
        harness.answer = lambda slot, body: b""
        harness.feed(frame(PIPELINED_KEY) * TURN_BUDGET * 2)
    first.connection.abort()
    await turn()
    assert len(second.handled) == TURN_BUDGET * 2


async def test_a_large_answer_leaves_before_the_next_request() -> None:
    harness = Harness()
    harness.answer = lambda slot, body: bytes(LARGE_REPLY_BYTES + 1)
    harness.feed(frame(BARRIER_KEY) * 3)
    assert harness.channel.sends == 3


def _reads(harness: Harness, data: bytes) -> list[int]:
    sizes: list[int] = []
    rest = memoryview(data)
    while rest:
        buffer = harness.connection.receive_buffer()
        size = min(len(buffer), len(rest))
        buffer[:size] = rest[:size]
        del buffer  # as a channel drops it
        harness.connection.received(size)
        sizes.append(size)
        rest = rest[size:]
    return sizes


async def test_reads_into_fresh_memory_are_short() -> None:
    """The system provides its pages within the read: 256 KB take 0.12 ms instead of 0.03."""
    harness = Harness()
    large = frame(PIPELINED_KEY, bytes(STEADY_BUFFER_BYTES - 100))
    assert max(_reads(harness, large)) == COLD_READ_BYTES
    assert max(_reads(harness, large)) == MAX_READ_BYTES
    assert len(harness.handled) == 2


async def test_memory_stays_warm_when_a_buffer_shrinks_in_place() -> None:
    harness = Harness(limits=ConnectionLimits(4 * MAX_FRAME, 5, frozenset({PIPELINED_KEY})))
    larger = frame(PIPELINED_KEY, bytes(STEADY_BUFFER_BYTES * 2))
    _reads(harness, larger)
    assert len(harness.connection._buffer) == STEADY_BUFFER_BYTES
    sizes = _reads(harness, larger)
    assert max(sizes) == MAX_READ_BYTES
    assert COLD_READ_BYTES in sizes  # what was given back is fresh again
    assert len(harness.handled) == 2


async def test_a_frame_that_is_kept_survives_the_next() -> None:
    """A large one takes the buffer along; the connection goes on with another."""
    harness = Harness()
    kept: list[memoryview] = []
    harness.connection.use(lambda connection, slot, given: kept.append(connection.keep_frame(given)))
    bodies = [bytes([at]) * size for at, size in enumerate((MAX_FRAME - 100, 100, MAX_FRAME // 2, 20_000), 1)]
    harness.feed(b"".join(frame(PIPELINED_KEY, body) for body in bodies))
    assert [bytes(one[8:]) for one in kept] == bodies
    assert harness.connection.memory.used_bytes == len(harness.connection._buffer) - INITIAL_BUFFER_BYTES


async def test_a_buffer_grows_though_somebody_looks_at_a_frame() -> None:
    harness = Harness()
    seen: list[memoryview] = []
    harness.connection.use(lambda connection, slot, given: seen.append(given))
    large = frame(PIPELINED_KEY, b"x" * (MAX_FRAME - 100))
    harness.feed(frame(PIPELINED_KEY, b"y" * 100) + large + large[:-1])
    harness.feed(large[-1:])
    assert len(seen) == 3
    assert bytes(seen[-1][8:]) == b"x" * (MAX_FRAME - 100)
