"""Frames cut out of the receive buffer: whole, in order, however the bytes come; and the buffer's size."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock.broker_link.frames import INITIAL_BUFFER_BYTES, SHRINK_AFTER_FRAMES, FrameConnection
from penstock.model.errors import ProtocolError
from penstock.sim.machine.world import SimPorts, SimWorld


class Receiver:
    def __init__(self, max_frame_bytes: int = 1 << 20) -> None:
        self.frames: list[bytes] = []
        self.lost: list[Exception | None] = []
        self.connection = FrameConnection(
            lambda frame: self.frames.append(bytes(frame)), self.lost.append, max_frame_bytes
        )

    def feed(self, data: bytes, pieces: Random | None = None) -> None:
        at = 0
        while at < len(data):
            lent = self.connection.get_buffer(-1)
            size = min(len(lent), len(data) - at)
            if pieces is not None:
                size = pieces.randint(1, size)
            assert size > 0
            lent[:size] = data[at : at + size]
            self.connection.buffer_updated(size)
            at += size


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@pytest.mark.parametrize("seed", range(30))
def test_frames_come_whole_and_in_order(seed: int) -> None:
    random = Random(seed)
    frames = [random.randbytes(random.choice((1, 7, 300, 5_000, 70_000, 300_000))) for _ in range(40)]
    receiver = Receiver()
    receiver.feed(framed(*frames), random)
    assert receiver.frames == frames
    assert receiver.lost == []


def test_the_buffer_grows_for_a_large_frame_and_shrinks_when_only_small_ones_come() -> None:
    receiver = Receiver()
    receiver.feed(framed(b"x" * 700_000))
    assert receiver.connection.buffer_bytes == 1 << 20
    for _ in range(SHRINK_AFTER_FRAMES - 1):
        receiver.feed(framed(b"small"))
    assert receiver.connection.buffer_bytes == 1 << 20
    receiver.feed(framed(b"small"))
    assert receiver.connection.buffer_bytes == INITIAL_BUFFER_BYTES
    receiver.feed(framed(b"y" * 100_000))
    assert receiver.frames[-1] == b"y" * 100_000


@pytest.mark.parametrize("size", [-1, 0, (1 << 20) + 1])
def test_a_frame_of_no_sensible_size_ends_the_connection(size: int) -> None:
    receiver = Receiver()
    receiver.feed(framed(b"first") + size.to_bytes(4, "big", signed=True) + b"rest")
    assert receiver.frames == [b"first"]
    assert len(receiver.lost) == 1
    assert isinstance(receiver.lost[0], ProtocolError)
    assert receiver.connection.is_lost


def test_whoever_closes_in_a_frame_gets_no_further_one() -> None:
    frames: list[bytes] = []
    lost: list[Exception | None] = []

    def take(frame: memoryview) -> None:
        frames.append(bytes(frame))
        connection.close()

    connection = FrameConnection(take, lost.append)
    data = framed(b"one", b"two")
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    connection.connection_lost(None)
    assert frames == [b"one"]
    assert lost == []


@pytest.mark.parametrize("seed", range(3))
def test_over_a_network(seed: int) -> None:
    """The simulated one: its transports lend the protocol's buffer, as asyncio's and uvloop's do."""
    with SimWorld(seed) as world:
        sent = [world.random("frames").randbytes(size) for size in (5, 200_000, 1, 64 << 10)]

        async def serve(ports: SimPorts) -> asyncio.AbstractServer:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                assert await reader.readexactly(5) == b"hello"
                writer.write(framed(*sent))
                await writer.drain()
                writer.close()

            return await asyncio.start_server(answer, None, 7)

        async def main() -> None:
            await world.machine("server").start(serve)
            frames: list[bytes] = []
            lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: FrameConnection(lambda frame: frames.append(bytes(frame)), lost.set_result), "server", 7
            )
            connection.send(b"hello")
            assert await lost is None
            assert frames == sent

        world.run(main(), timeout_s=60)
