"""Listeners keep file descriptors for logs, and wait where there are none."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from test_connection import PIPELINED_KEY, FakeChannel, frame
from test_request_memory import feed

from penstock.net.accepting import ListeningSockets, bind
from penstock.net.connection import INITIAL_BUFFER_BYTES, Connection, ConnectionLimits
from penstock.net.listener import MIN_CONNECTIONS, ON_APPROVAL, Listener, ListenerBounds
from penstock.net.request_memory import MAX_HOLD_S, RequestMemory
from penstock.ports.channel import Receiver
from penstock.runtime.descriptors import max_connection_descriptor


def answer(connection: Connection, slot: int, frame: memoryview) -> None:
    connection.reply(slot, [b"yes"])


@pytest.fixture
async def listen() -> AsyncIterator[Callable[[int | None], Listener]]:
    made: list[Listener] = []

    def start(max_descriptor: int | None, sockets: list[socket.socket] | None = None) -> Listener:
        loop = asyncio.get_running_loop()
        limits = ConnectionLimits(1 << 20, 5, frozenset())
        bounds = ListenerBounds(1000, 1000, 0, max_descriptor)
        source = ListeningSockets(loop, sockets or bind("127.0.0.1", 0))
        listener = Listener(loop, "PLAINTEXT", source, limits, bounds)
        listener.start(answer)
        made.append(listener)
        return listener

    yield start
    for listener in made:
        listener.stop_accepting()
        await listener.drain(0.1)


async def settle(listener: Listener, count: int) -> None:
    """Until so many have been accepted, if only on approval."""
    for _ in range(500):
        if listener.accepted >= count:
            return
        await asyncio.sleep(0.01)


async def test_connections_leave_descriptors_for_files(
    listen: Callable[[int | None], Listener], caplog: pytest.LogCaptureFixture
) -> None:
    probe = socket.socket()
    listener = listen(probe.fileno() + 2 * MIN_CONNECTIONS)
    probe.close()
    with caplog.at_level(logging.WARNING):
        clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(60)]
        await settle(listener, 60)
    assert MIN_CONNECTIONS <= len(listener.connections) < 60
    assert len(listener.connections) + listener.refused == 60
    assert len(listener._on_approval) <= ON_APPROVAL
    assert len(caplog.records) == 1, "one line, however many are refused"
    for client in clients:
        client.close()


async def test_some_clients_are_served_whatever_files_have_taken(listen: Callable[[int | None], Listener]) -> None:
    listener = listen(0)
    clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(MIN_CONNECTIONS + 5)]
    await settle(listener, MIN_CONNECTIONS + 5)
    listener._on_approval = dict.fromkeys(listener._on_approval, 0.0)
    listener._look_around()
    assert (len(listener.connections), listener.refused) == (MIN_CONNECTIONS, 5)
    for client in clients:
        client.close()


async def test_a_flood_of_clients_does_not_keep_nodes_out(listen: Callable[[int | None], Listener]) -> None:
    listener = listen(0)
    clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(MIN_CONNECTIONS + 50)]
    await settle(listener, MIN_CONNECTIONS + 50)
    node = socket.create_connection(("127.0.0.1", listener.port))
    await settle(listener, MIN_CONNECTIONS + 51)
    connection = list(listener.connections)[-1]
    assert connection.channel.peer == node.getsockname()
    connection.is_peer = True  # it has shown the cluster's secret
    clients += [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(50)]
    await settle(listener, MIN_CONNECTIONS + 101)
    assert not connection.is_closed
    assert len(listener.connections) <= MIN_CONNECTIONS + 1 + ON_APPROVAL
    listener._on_approval = dict.fromkeys(listener._on_approval, 0.0)
    listener._look_around()
    assert len(listener.connections) == MIN_CONNECTIONS + 1
    assert not connection.is_closed
    for client in (node, *clients):
        client.close()


async def test_an_idle_buffer_is_freed_and_its_connection_kept_when_memory_is_short() -> None:
    loop = asyncio.get_running_loop()
    clock = [0.0]
    memory = RequestMemory(1 << 20, lambda: clock[0])
    limits = ConnectionLimits(8 << 20, 5, frozenset(), memory=memory)
    listener = Listener(loop, "PLAINTEXT", ListeningSockets(loop, []), limits, ListenerBounds(9, 9, 0))
    listener.start(answer)
    idle, busy, waiting = (listener_peer(listener) for _ in range(3))
    feed(*idle, frame(PIPELINED_KEY, bytes(200_000)))
    assert memory.used_bytes > 0, "it keeps its buffer for the next one"
    clock[0] = 3600.0
    half = frame(PIPELINED_KEY, bytes(4 << 20))[: 3 << 20]
    feed(*busy, half)
    feed(*waiting, half)
    clock[0] += MAX_HOLD_S + 1
    assert set(memory.late()) > {idle[0]}, "before idle buffers are freed"
    listener._look_around()
    assert not idle[0].is_closed
    assert len(idle[0].receive_buffer()) == INITIAL_BUFFER_BYTES
    assert busy[0].is_closed
    listener.stop_accepting()
    await listener.drain(0.1)


class AcceptedFake(FakeChannel):
    def start(self, receiver: Receiver) -> None:
        pass


def listener_peer(listener: Listener) -> tuple[Connection, FakeChannel]:
    channel = AcceptedFake()
    listener.adopt(channel)
    return list(listener.connections)[-1], channel


class ShortSocket:
    """A listening socket of a process without descriptors."""

    def __init__(self, whole: socket.socket) -> None:
        self.whole = whole
        self.is_short = True
        self.tries = 0

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        self.tries += 1
        if self.is_short:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.whole.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


async def test_without_descriptors_it_waits_and_does_not_spin(
    listen: Callable[..., Listener], caplog: pytest.LogCaptureFixture
) -> None:
    short = ShortSocket(bind("127.0.0.1", 0)[0])
    listener = listen(None, [short])
    client = socket.create_connection(("127.0.0.1", listener.port))
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(0.1)
        assert short.tries == 1
        short.is_short = False
        await settle(listener, 1)
    assert (short.tries, listener.accepted) >= (2, 1)
    assert len(caplog.records) == 1
    client.close()


def test_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((100, 50), (300, 172), (1024, 896), (65536, 57344)):
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        assert max_connection_descriptor() == most
