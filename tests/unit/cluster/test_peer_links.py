"""Connections between servers: hello and refusal, loss and return, silence, bounds; and what the other side lets in."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.api.dispatch import PIPELINED, Dispatcher
from penstock.api.handlers.raft import RaftHandler
from penstock.api.request_times import RequestTimes
from penstock.cluster import peer_links
from penstock.cluster.peer_links import MAX_QUEUED, PeerLinks
from penstock.cluster.raft_codec import PING, Hello, encode, encode_hello
from penstock.core.raft.messages import TimeoutNow
from penstock.net.connection import ConnectionLimits
from penstock.net.listener import Listener, ListenerBounds
from penstock.sim.machine.channel import SimSource
from penstock.sim.machine.world import SimPorts, SimWorld
from penstock.wire.peers import peer_answer, peer_frame
from support.raft.cluster import PORT, host_of
from support.worlds.peers import identity, introduce, introductions


class Peer:
    """A server that notes what it is told: `PeerEvents`, and `Introduced`. `links` of server 1 lead to server 2."""

    def __init__(self, ports: SimPorts, node_id: int, cluster_id: str = "here") -> None:
        self.received: list[bytes] = []
        self.events: list[tuple[str, int]] = []
        disk = f"disk-{node_id}"
        addresses = {1: ("node-1", PORT), 2: ("node-2", PORT)}
        self.disks: dict[int, str] = {}
        """Which disk others must have."""
        self.links = PeerLinks(
            ports.loop,
            identity(node_id, directory_id=disk),
            cluster_id,
            addresses,
            ports.clock,
            self,
            f"node-{node_id}:{PORT}",
        )
        self.greetings: list[tuple[int, str, str]] = []
        self.left: list[int] = []
        handler = RaftHandler(
            node_id,
            lambda: cluster_id,
            lambda payload: self.received.append(bytes(payload)),
            self,
            self.links.directory_id,
        )
        source = SimSource(ports.loop, ports.network.bind(ports.process, PORT, ports.process.host))
        limits = ConnectionLimits(1 << 20, 64, PIPELINED)
        self.listener = Listener(ports.loop, "PLAINTEXT", source, limits, ListenerBounds(10, 10, 600_000))
        self.listener.start(
            Dispatcher([], RequestTimes(ports.clock), private=[handler, introductions(node_id, directory_id=disk)])
        )
        self.links.start()

    def peer_lost(self, peer: int) -> None:
        self.events.append(("lost", peer))

    def peer_back(self, peer: int) -> None:
        self.events.append(("back", peer))

    def directory_of(self, peer: int) -> str:
        return self.disks.get(peer, "")

    def greeted_by(self, node: int, address: str, directory_id: str) -> None:
        self.greetings.append((node, address, directory_id))

    def left_by(self, node: int) -> None:
        self.left.append(node)

    def directory_of_sender(self, node: int) -> str:
        return self.directory_of(node)


class Pair:
    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.peers: dict[int, Peer] = {}

    async def start(self, node_id: int, cluster_id: str = "here") -> Peer:
        async def program(ports: SimPorts) -> None:
            self.peers[node_id] = Peer(ports, node_id, cluster_id)

        await self.world.machine(host_of(node_id)).start(program)
        return self.peers[node_id]

    async def until_up(self, node_id: int, within_s: float = 1.0) -> None:
        deadline = self.world.loop.time() + within_s
        while not self.peers[node_id].links.is_up(3 - node_id):
            assert self.world.loop.time() < deadline
            await asyncio.sleep(0.001)


@pytest.fixture
def pair():
    with SimWorld(7) as world:
        yield Pair(world)


def run(pair: Pair, main: Coroutine[Any, Any, None]) -> None:
    pair.world.run(main, timeout_s=120)


def message(number: int, sender: int = 1) -> bytes:
    return encode(TimeoutNow(sender, 2, number))


def test_messages_arrive_in_order_and_those_of_before_the_connection_too(pair: Pair) -> None:
    async def main() -> None:
        first = await pair.start(1)
        first.links.send(2, message(0))
        await asyncio.sleep(2)
        second = await pair.start(2)
        await pair.until_up(1)
        for number in range(1, 50):
            first.links.send(2, message(number))
        await asyncio.sleep(0.2)
        assert second.received == [message(number) for number in range(50)]

    run(pair, main())


def test_what_does_not_fit_the_queue_is_gone(pair: Pair) -> None:
    async def main() -> None:
        first = await pair.start(1)
        for number in range(1000):
            first.links.send(2, message(number))
        second = await pair.start(2)
        await asyncio.sleep(0.5)
        assert second.received == [message(number) for number in range(1000 - MAX_QUEUED, 1000)]

    run(pair, main())


def test_a_killed_peer_is_lost_at_once_and_back_when_it_listens_again(pair: Pair) -> None:
    async def main() -> None:
        first = await pair.start(1)
        assert first.links.lost_since(2) is not None
        await pair.start(2)
        await pair.until_up(1)
        assert first.links.lost_since(2) is None
        assert first.events[-1] == ("back", 2)
        pair.world.machine(host_of(2)).kill()
        killed_at = pair.world.loop.time()
        await asyncio.sleep(0.05)
        assert ("lost", 2) in first.events
        lost_at = first.links.lost_since(2)
        assert lost_at is not None
        assert lost_at - killed_at < 0.05
        await asyncio.sleep(3)
        assert first.links.lost_since(2) == lost_at
        await pair.start(2)
        await pair.until_up(1, within_s=0.3)

    run(pair, main())


def test_a_connection_that_fell_silent_is_replaced(pair: Pair) -> None:
    async def main() -> None:
        first, second = await pair.start(1), await pair.start(2)
        await pair.until_up(1)
        await asyncio.sleep(10)
        assert first.events[-1] == ("back", 2)
        before = len(first.events)
        pair.world.network.hang("node-1", "node-2")
        await asyncio.sleep(6)
        assert first.events[before:] == [("lost", 2), ("back", 2)]
        first.links.send(2, message(1))
        await asyncio.sleep(0.1)
        assert second.received == [message(1)]

    run(pair, main())


def test_a_new_address_is_used_at_once(pair: Pair) -> None:
    async def main() -> None:
        first = await pair.start(1)
        await pair.start(2)
        await pair.until_up(1)

        async def move(host: str) -> None:
            first.links.set_addresses(2, [(host, PORT)])

        machine = pair.world.machine("node-1")
        await machine.run(move("node-3"))
        assert first.links.is_up(2), "it leads to the peer itself, wherever others say that it is"
        pair.world.network.reset("node-1", "node-2")
        await asyncio.sleep(2)
        assert not first.links.is_up(2)
        lost_s = first.links.lost_since(2)
        await machine.run(move("node-1"))
        assert first.links.lost_since(2) == lost_s
        await machine.run(move("node-2"))
        await pair.until_up(1, within_s=0.1)
        first.links.forget(2)
        assert first.links.peers == []
        assert first.links.lost_since(2) is None

    run(pair, main())


def test_every_address_is_tried_until_the_peer_itself_answers(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        first, second = await pair.start(1), await pair.start(2)
        await pair.until_up(1)

        async def move() -> None:
            first.links.set_addresses(2, [("node-1", PORT), ("nowhere", PORT)])

        await pair.world.machine("node-1").run(move())
        pair.world.network.reset("node-1", "node-2")
        await asyncio.sleep(12)
        assert not first.links.is_up(2)
        assert caplog.text.count("node 2 at node-1:9092 refuses this node: this is node 1 itself, not node 2") == 1
        assert "in use twice" not in caplog.text

        async def back() -> None:
            first.links.set_addresses(2, [("node-1", PORT), ("nowhere", PORT), ("node-2", PORT)])

        await pair.world.machine("node-1").run(back())
        await pair.until_up(1)
        assert second.greetings[-1] == (1, f"node-1:{PORT}", "disk-1")

    run(pair, main())


def test_a_port_that_is_none_ends_no_link(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a registration: whoever sends it may write any number."""
    greeted = peer_links._greeted

    async def strictly(loop: Any, address: tuple[str, int], *more: Any) -> Any:
        if address[1] > 65535:
            raise OverflowError("connect(): port must be 0-65535.")  # as the system's
        return await greeted(loop, address, *more)

    monkeypatch.setattr(peer_links, "_greeted", strictly)

    async def main() -> None:
        first, _ = await pair.start(1), await pair.start(2)
        await pair.until_up(1)

        async def move() -> str:
            first.links.set_addresses(2, [("node-2", 70000), ("node-2", PORT)])
            return await first.links.why_not_at(("node-2", 70000), 2)

        assert await pair.world.machine("node-1").run(move()) == "70000 is not a port"
        pair.world.network.reset("node-1", "node-2")
        await asyncio.sleep(0.01)
        assert not first.links.is_up(2)
        await pair.until_up(1)

    run(pair, main())


def test_who_listens_at_an_address(pair: Pair) -> None:
    async def main() -> None:
        first, _ = await pair.start(1), await pair.start(2)

        async def ask() -> list[str]:
            there = ("node-2", PORT)
            return [
                await first.links.why_not_at(there, 2),
                await first.links.why_not_at(there, 2, "disk-2"),
                await first.links.why_not_at(("node-1", PORT), 1, "disk-1"),
                await first.links.why_not_at(there, 4),
                await first.links.why_not_at(there, 2, "disk-9"),
                await first.links.why_not_at(("node-1", PORT), 4),
                await first.links.why_not_at(("node-2", PORT + 1), 2),
            ]

        right, right_disk, itself, *wrong = await pair.world.machine("node-1").run(ask())
        assert (right, right_disk, itself) == ("", "", "")
        assert wrong == [
            f"node-2:{PORT} says: this is node 2, not node 4",
            f"node-2:{PORT} says: this is node 2 with another disk: the directory id is disk-2, not disk-9",
            f"node-1:{PORT} says: this is node 1 itself, not node 4",
            f"nothing listens at node-2:{PORT + 1}",
        ]

    run(pair, main())


def test_a_peer_with_another_disk_is_neither_heard_nor_told_anything(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        first, second = await pair.start(1), await pair.start(2)
        await pair.until_up(1)
        await pair.until_up(2)
        pair.world.machine(host_of(2)).kill()
        first.disks[2] = "disk-of-old"
        first.received.clear()
        second = await pair.start(2)
        second.links.send(1, encode(TimeoutNow(2, 1, 7)))
        first.links.send(2, message(7))
        await asyncio.sleep(3)
        assert not first.links.is_up(2)
        assert not second.links.is_up(1)
        assert (first.received, second.received) == ([], [])
        assert "this is node 2 with another disk: the directory id is disk-2, not disk-of-old" in caplog.text
        assert "node 2 votes with another disk: the directory id is disk-of-old, not disk-2" in caplog.text

    run(pair, main())


def test_who_has_a_vote_with_another_disk_by_now_takes_and_says_nothing_more(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The connections of the one before are still up."""

    async def main() -> None:
        first, second = await pair.start(1), await pair.start(2)
        await pair.until_up(1)
        await pair.until_up(2)

        async def send(number: int) -> None:
            first.links.send(2, message(number))

        machine, other = pair.world.machine("node-1"), pair.world.machine("node-2")
        first.disks[2] = "disk-2"
        for number in (1, 2):
            await machine.run(send(number))
        await asyncio.sleep(1)
        assert (first.links.losses, len(first.events)) == (0, 1), "it has that disk"
        assert second.received == [message(1), message(2)]
        first.disks[2] = "disk-of-another"
        await machine.run(send(3))

        async def answer() -> None:
            second.links.send(1, encode(TimeoutNow(2, 1, 7)))

        await other.run(answer())
        await asyncio.sleep(1)
        assert (first.received, second.received) == ([], [message(1), message(2)])
        assert not first.links.is_up(2)
        assert not second.links.is_up(1)
        assert (first.left, second.left) == ([2], [1])
        assert "this is node 2 with another disk: the directory id is disk-2, not disk-of-another" in caplog.text

    run(pair, main())


def test_who_has_introduced_himself_is_gone_with_the_last_connection(pair: Pair) -> None:
    async def main() -> None:
        _, second = await pair.start(1), await pair.start(2)
        await pair.until_up(1)
        await pair.world.spawn("a-guest", talk(HELLO))
        assert (second.greetings, second.left) == ([(1, f"node-1:{PORT}", "disk-1"), (1, "", "")], [])
        await asyncio.sleep(0.1)
        assert (second.greetings[-1], second.left) == ((1, f"node-1:{PORT}", "disk-1"), [])
        pair.world.machine(host_of(1)).kill()
        await asyncio.sleep(0.1)
        assert second.left == [1]

    run(pair, main())


def test_an_unknown_cluster_id_fits_every_other(pair: Pair) -> None:
    async def main() -> None:
        await pair.start(1, "")
        await pair.start(2, "here")
        await pair.until_up(1)

    run(pair, main())


# ---- what is let in


async def talk(*frames: bytes) -> bytes:
    """The answers of server 2, until it closes or half a second has passed."""
    reader, writer = await asyncio.open_connection("node-2", PORT)
    await introduce(reader, writer)
    heard = bytearray()
    try:
        for frame in frames:
            writer.write(frame)
            await asyncio.sleep(0.1)
        async with asyncio.timeout(0.5):
            while data := await reader.read(100):
                heard += data
            heard += b"closed"
    except TimeoutError:
        return bytes(heard)
    finally:
        writer.transport.abort()
    return bytes(heard)


HELLO = peer_frame(encode_hello(Hello(1, 2, "here")), 5)


@pytest.mark.parametrize(
    ("frames", "answer"),
    [
        ([HELLO, peer_frame(PING, 6)], peer_answer(5) + peer_answer(6)),
        ([HELLO, peer_frame(message(1))], peer_answer(5)),
        ([peer_frame(message(1))], b"closed"),
        ([peer_frame(PING)], b"closed"),
        ([peer_frame(b"")], b"closed"),
        ([HELLO, peer_frame(message(1, sender=3))], peer_answer(5) + b"closed"),
        ([HELLO, peer_frame(b"\x02\x00")], peer_answer(5) + b"closed"),
        (
            [peer_frame(encode_hello(Hello(1, 2, "elsewhere")), 5)],
            peer_answer(5, "it belongs to cluster elsewhere, this is cluster here"),
        ),
        (
            [peer_frame(encode_hello(Hello(2, 2, "here")), 5)],
            peer_answer(5, "node.id 2 is in use twice: give each node its own"),
        ),
        (
            [peer_frame(encode_hello(Hello(1, 3, "here")), 5)],
            peer_answer(5, "this is node 2, not node 3"),
        ),
        ([peer_frame(encode_hello(Hello(1, 2, "elsewhere"))), peer_frame(message(1))], None),
    ],
)
def test_who_is_let_in(pair: Pair, frames: list[bytes], answer: bytes | None) -> None:
    async def main() -> None:
        second = await pair.start(2)
        heard = await pair.world.spawn("a-guest", talk(*frames))
        if answer is None:
            assert heard.endswith(b"closed")
        else:
            assert heard == answer
        is_let_in = frames[0] == HELLO and frames[-1] == peer_frame(message(1))
        assert second.received == ([message(1)] if is_let_in else [])

    run(pair, main())
