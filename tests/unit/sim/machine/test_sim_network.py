"""The simulated network: one connection keeps its order, everything else may go wrong."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from penstock.sim.machine.network import LAN, LinkProfile
from penstock.sim.machine.world import SimPorts, SimWorld

PORT = 7


@pytest.fixture
def world():
    with SimWorld(5) as made:
        yield made


async def echo(ports: SimPorts) -> asyncio.AbstractServer:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    return await asyncio.start_server(serve, None, PORT)


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await reader.readexactly(len(data))


def test_bytes_come_back_in_order_however_they_are_cut(world: SimWorld) -> None:
    data = world.random("data").randbytes(1_000_000)

    async def main() -> None:
        await world.machine("server").start(echo)
        reader, writer = await asyncio.open_connection("server", PORT)
        assert writer.get_extra_info("peername") == ("server", PORT)
        reading = asyncio.create_task(reader.readexactly(len(data)))
        for at in range(0, len(data), 7000):
            writer.write(data[at : at + 7000])
            await writer.drain()
        assert await reading == data
        writer.write_eof()
        assert await reader.read() == b""

    world.run(main(), timeout_s=60)


def test_a_slow_path_takes_its_time(world: SimWorld) -> None:
    world.network.profile = LinkProfile(0.1, 0, 0, 0, 1_000_000, 0, (1 << 20,))

    async def main() -> float:
        await world.machine("server").start(echo)
        reader, writer = await asyncio.open_connection("server", PORT)
        began = world.loop.time()
        await talk(reader, writer, bytes(500_000))
        return world.loop.time() - began

    # Half a second there, half a second back, and the latencies; the two ways overlap a little.
    assert 0.7 < world.run(main(), timeout_s=60) < 1.4


def test_connections_overtake_each_other(world: SimWorld) -> None:
    async def main() -> list[int]:
        await world.machine("server").start(echo)
        ends = [await asyncio.open_connection("server", PORT) for _ in range(20)]
        order: list[int] = []

        async def one(number: int) -> None:
            await talk(*ends[number], b"x")
            order.append(number)

        await asyncio.gather(*(one(number) for number in range(20)))
        return order

    order = world.run(main(), timeout_s=60)
    assert sorted(order) == list(range(20)) != order


def test_refused_unknown_and_taken(world: SimWorld) -> None:
    async def main() -> None:
        machine = world.machine("server")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("server", PORT)
        with pytest.raises(socket.gaierror):
            await asyncio.open_connection("nowhere", PORT)
        server = await machine.start(echo)
        with pytest.raises(OSError, match="in use") as caught:
            await machine.run(asyncio.start_server(lambda *_: None, None, PORT))
        assert caught.value.errno == errno.EADDRINUSE
        await asyncio.open_connection("server", PORT)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("server", PORT)

    world.run(main(), timeout_s=60)


@pytest.mark.parametrize("one_way", ["", "there", "back"])
def test_what_a_partition_holds_up_arrives_when_it_heals(world: SimWorld, one_way: str) -> None:
    async def main() -> float:
        await world.machine("server").start(echo)
        reader, writer = await asyncio.open_connection("server", PORT)
        sides = (["driver"], ["server"])
        world.network.partition(*(reversed(sides) if one_way == "back" else sides), one_way=bool(one_way))
        answer = asyncio.create_task(talk(reader, writer, b"hello"))
        await asyncio.sleep(10)
        assert not answer.done()
        world.network.heal()
        assert await answer == b"hello"
        return world.loop.time()

    assert 10 < world.run(main(), timeout_s=60) < 11


def test_a_shut_way_back_fills_the_window_of_who_still_gets_through(world: SimWorld) -> None:
    """Bytes that the peer reads cannot be acknowledged, so the sender runs into its window."""

    async def main() -> None:
        received = 0

        async def swallow(ports: SimPorts) -> None:
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal received
                while data := await reader.read(1 << 16):
                    received += len(data)

            await asyncio.start_server(serve, None, PORT)

        await world.machine("server").start(swallow)
        _, writer = await asyncio.open_connection("server", PORT)
        world.network.partition(["server"], ["driver"], one_way=True)
        writer.write(bytes(2_000_000))
        await asyncio.sleep(10)
        assert 0 < received <= max(LAN.windows_bytes)
        world.network.heal()
        await asyncio.sleep(10)
        assert received == 2_000_000

    world.run(main(), timeout_s=60)


def test_connecting_through_a_partition_takes_retries_or_times_out(world: SimWorld) -> None:
    async def main() -> None:
        await world.machine("server").start(echo)
        world.network.isolate("server")
        connecting = asyncio.create_task(asyncio.open_connection("server", PORT))
        await asyncio.sleep(5)
        world.network.heal()
        await connecting
        assert world.loop.time() < 10
        world.network.isolate("server")
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("server", PORT)
        assert world.loop.time() > 120

    world.run(main(), timeout_s=600)


def test_a_flapping_path_lets_everything_through_in_the_end(world: SimWorld) -> None:
    async def main() -> None:
        await world.machine("server").start(echo)
        reader, writer = await asyncio.open_connection("server", PORT)
        world.network.flap(["driver"], ["server"], shut_s=2, open_s=1)
        for _ in range(20):
            assert await talk(reader, writer, b"hello") == b"hello"
            await asyncio.sleep(0.3)
        world.network.heal()
        began = world.loop.time()
        await asyncio.sleep(5)
        await talk(reader, writer, b"hello")
        assert world.loop.time() - began < 6
        assert "shut" not in "".join(world.trace.tail(2))

    world.run(main(), timeout_s=300)


def test_a_reset_is_seen_by_both_sides_and_a_hang_by_nobody(world: SimWorld) -> None:
    async def main() -> None:
        await world.machine("server").start(echo)
        reader, writer = await asyncio.open_connection("server", PORT)
        assert world.network.reset("driver", "server") == 1
        with pytest.raises(ConnectionResetError):
            await talk(reader, writer, b"hello")
        reader, writer = await asyncio.open_connection("server", PORT)
        assert world.network.hang("driver", "server") == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(talk(reader, writer, b"hello"), 60)
        with pytest.raises(OSError, match="timed out"):  # the kernel gives up at last
            await reader.read()
        assert 900 < world.loop.time() < 1000
        await talk(*await asyncio.open_connection("server", PORT), b"hello")

    world.run(main(), timeout_s=2000)


def test_links_are_machines_that_talk(world: SimWorld) -> None:
    async def main() -> None:
        await world.machine("server").start(echo)
        world.machine("idle")
        assert world.network.links() == []
        await talk(*await asyncio.open_connection("server", PORT), b"hello")
        assert world.network.links() == [("driver", "server")]
        world.network.hang("driver", "server")
        assert world.network.links() == []
        _, writer = await asyncio.open_connection("server", PORT)
        assert world.network.links() == [("driver", "server")]
        writer.close()
        await asyncio.sleep(1)
        assert world.network.links() == []

    world.run(main())


def test_a_dead_process_hangs_up_at_once_and_a_dead_machine_says_nothing(world: SimWorld) -> None:
    async def main() -> None:
        machine = world.machine("server")
        await machine.start(echo)
        reader, writer = await asyncio.open_connection("server", PORT)
        machine.kill()
        assert await asyncio.wait_for(reader.read(), 1) == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("server", PORT)

        await machine.start(echo)
        reader, writer = await asyncio.open_connection("server", PORT)
        machine.crash()
        answer = asyncio.create_task(talk(reader, writer, b"hello"))
        await asyncio.sleep(30)
        assert not answer.done()
        await machine.start(echo)  # its kernel knows nothing of the connection
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(answer, 5)

    world.run(main(), timeout_s=300)


def test_closing_with_bytes_unread_resets_the_peer(world: SimWorld) -> None:
    async def main() -> None:
        async def deaf(ports: SimPorts) -> None:
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(1)
                writer.transport.abort()

            await asyncio.start_server(serve, None, PORT)

        await world.machine("server").start(deaf)
        reader, writer = await asyncio.open_connection("server", PORT)
        writer.write(b"hello")
        with pytest.raises(ConnectionResetError):
            await reader.read()

    world.run(main(), timeout_s=60)
