"""Listening sockets: they accept connections, bound their number, close idle ones, and drain.

`connections` is insertion-ordered on purpose: nothing here iterates a set.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Protocol

from penstock.model.errors import ConfigError, ProtocolError, Stranger
from penstock.net.channel import SocketChannel
from penstock.net.complaints import Complaints
from penstock.net.connection import Connection, ConnectionLimits, Handler
from penstock.ports.channel import Channel, Receiver

BACKLOG = 512
ACCEPTS_PER_TURN = 64
IDLE_SWEEP_S = 1.0
ON_APPROVAL = 8  # connections above the descriptor limit that may turn out to be nodes of the cluster
APPROVAL_S = 1.0
MIN_CONNECTIONS = 16  # accepted even if files have taken the descriptors for connections


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for a host. An empty host means all interfaces, IPv4 and IPv6."""
    try:
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"cannot resolve the listener's host '{host}': {error.strerror}") from error
    sockets: list[socket.socket] = []
    chosen_port = port
    for family, kind, protocol, _, address in sorted(infos, key=lambda info: info[0]):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], chosen_port, *address[2:]))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            if family == socket.AF_INET6 and sockets and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # no IPv6 on this machine
            for other in sockets:
                other.close()
            raise ConfigError(_bind_error(host, port, error)) from error
        sock.setblocking(False)
        sockets.append(sock)
        chosen_port = sock.getsockname()[1]  # port 0: the same free port for both families
    return sockets


def _bind_error(host: str, port: int, error: OSError) -> str:
    place = f"{host or '*'}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {place}: the port is taken; stop the other process or choose another port"
    if error.errno == errno.EACCES:
        return f"cannot listen on {place}: permission denied; ports below 1024 need privileges"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {place}: this machine has no such address"
    return f"cannot listen on {place}: {error.strerror}"


class AcceptedChannel(Channel, Protocol):
    """The channel of a connection that was just accepted. Nothing is read before `start`."""

    def start(self, receiver: Receiver) -> None: ...


class Listener:
    """One named listener (`PLAINTEXT://host:port`) and its connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        sockets: list[socket.socket],
        limits: ConnectionLimits,
        *,
        max_connections: int,
        max_connections_per_ip: int,
        max_idle_ms: int,
        max_descriptor: int | None = None,
    ) -> None:
        """`max_descriptor`: a connection with this descriptor or a higher one is refused, except from nodes. The kernel
        gives out the lowest free number, so the higher ones are left for files."""
        self._max_descriptor = max_descriptor
        self.refused = 0
        self._loop = loop
        self.name = name
        self._sockets = sockets
        self._handler: Handler | None = None
        self._limits = limits
        self._max_connections = max_connections
        self._max_connections_per_ip = max_connections_per_ip
        self._max_idle_s = max_idle_ms / 1000
        self.connections: dict[Connection, None] = {}
        self._on_approval: dict[Connection, float] = {}
        self._per_ip: dict[str, int] = {}
        self.accepted = 0
        self.closed_for_errors = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._complaints = Complaints(loop.time)
        self.strangers = 0
        """Connections closed because they sent what only nodes of this cluster may send."""

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    def start(self, handler: Handler) -> None:
        """Accepts connections, and passes requests to `handler`."""
        self._handler = handler
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)
        self._sweep = self._loop.call_later(IDLE_SWEEP_S, self._look_around)

    def hand_over(self, handler: Handler, is_kept: Callable[[Connection], bool]) -> None:
        """Passes requests to `handler` from now on. Closes connections that are not kept; their peers reconnect."""
        self._handler = handler
        for connection in list(self.connections):
            if is_kept(connection):
                connection.use(handler)
            else:
                connection.abort()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # EMFILE or similar: the kernel keeps the client in the backlog, so accept again soon.
                self._complaints.not_accepted(self.name, error)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(0.5, self._accept_again, listening)
                return
            if not self.admits(address[0]):
                sock.close()
                continue
            try:
                channel = SocketChannel(self._loop, sock)
            except OSError:
                sock.close()  # the peer has already disconnected
                continue
            is_on_approval = not self._is_left_over(sock.fileno())
            connection = self.adopt(channel)
            if is_on_approval:
                self._approve_later(connection)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def admits(self, ip: str) -> bool:
        """Whether one more connection from this address is within the bounds."""
        if len(self.connections) < self._max_connections and self._per_ip.get(ip, 0) < self._max_connections_per_ip:
            return True
        self._note_refusal(ip, "the connection limit is reached")
        return False

    def _note_refusal(self, ip: str, reason: str) -> None:
        self.refused += 1
        self._complaints.refused(ip, self.name, reason)

    def _is_left_over(self, descriptor: int) -> bool:
        """Whether the descriptor is not reserved for logs."""
        most = self._max_descriptor
        return most is None or descriptor < most or len(self.connections) < MIN_CONNECTIONS

    def _approve_later(self, connection: Connection) -> None:
        """Gives the connection a second to prove that it is a node: a flood of clients must not keep nodes out. If more
        connections arrive, the oldest are decided early."""
        self._on_approval[connection] = self._loop.time() + APPROVAL_S
        while len(self._on_approval) > ON_APPROVAL:
            self._decide(next(iter(self._on_approval)))

    def _decide(self, connection: Connection) -> None:
        del self._on_approval[connection]
        if not connection.is_peer and not connection.is_closed:
            reason = "the remaining file descriptors are reserved for logs; raise `ulimit -n`"
            self._note_refusal(connection.channel.peer[0], reason)
            connection.abort()

    def adopt(self, channel: AcceptedChannel) -> Connection:
        """Serves a new connection from any network."""
        assert self._handler is not None
        connection = Connection(self._loop, channel, self._handler, self._limits, self._closed)
        self.accepted += 1
        connection.id = f"{self.name}-{channel.peer[0]}:{channel.peer[1]}-{self.accepted}"
        connection.listener_name = self.name
        self.connections[connection] = None
        ip = channel.peer[0]
        self._per_ip[ip] = self._per_ip.get(ip, 0) + 1
        channel.start(connection)
        return connection

    def _closed(self, connection: Connection, error: Exception | None) -> None:
        del self.connections[connection]
        self._on_approval.pop(connection, None)
        ip = connection.channel.peer[0]
        left = self._per_ip[ip] - 1
        if left:
            self._per_ip[ip] = left
        else:
            del self._per_ip[ip]
        if isinstance(error, ProtocolError):
            self.closed_for_errors += 1
            self.strangers += isinstance(error, Stranger)
            self._complaints.closed(connection.id, error)
        if self._drained and not self.connections and not self._drained.done():
            self._drained.set_result(None)

    def _look_around(self) -> None:
        """Runs once a second."""
        self._sweep = self._loop.call_later(IDLE_SWEEP_S, self._look_around)
        now = self._loop.time()
        for connection in [one for one, until in self._on_approval.items() if one.is_peer or until <= now]:
            self._decide(connection)
        deadline = now - self._max_idle_s if self._max_idle_s > 0 else float("-inf")
        for connection in list(self.connections):
            connection.note_progress()
            connection.free_idle_memory(now)
            if connection.last_active < deadline and not connection.in_flight:
                if connection.is_draining:
                    connection.abort()  # a second after `drain`: the peer does not take its answers
                else:
                    connection.drain()
            elif connection.is_blocked and connection.channel.is_peer_gone():
                connection.abort()
        # After idle buffers were freed, since a connection with only idle buffers delays nobody.
        for late in self._limits.memory.late():
            late.abort(ProtocolError("its incomplete request holds memory that other connections wait for"))

    def stop_accepting(self) -> None:
        for sock in self._sockets:
            if self._handler is not None:
                self._loop.remove_reader(sock.fileno())
            sock.close()
        if self._sweep:
            self._sweep.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Answers requests in flight, then closes all connections, after `timeout_s` by force."""
        self._drained = self._loop.create_future()
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._loop.call_later(timeout_s, self._give_up_draining)
            await self._drained

    def _give_up_draining(self) -> None:
        for connection in list(self.connections):
            connection.abort()
