"""A listener: it bounds the number of its connections, closes idle ones, and drains.

`connections` is insertion-ordered on purpose: nothing here iterates a set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.model.errors import ProtocolError, Stranger
from penstock.net.accepting import AcceptedChannel, ConnectionSource
from penstock.net.complaints import Complaints
from penstock.net.connection import Connection, ConnectionLimits, Handler

IDLE_SWEEP_S = 1.0
ON_APPROVAL = 8  # connections above the descriptor limit that may turn out to be nodes of the cluster
APPROVAL_S = 1.0
MIN_CONNECTIONS = 16  # accepted even if files have taken the descriptors for connections


class ListenerBounds(NamedTuple):
    max_connections: int
    max_connections_per_ip: int
    max_idle_ms: int
    max_descriptor: int | None = None
    """A connection with this descriptor or a higher one is refused, except from nodes. The kernel gives out the lowest
    free number, so the higher ones are left for files.
    """


class Listener:
    """One named listener (`PLAINTEXT://host:port`) and its connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        source: ConnectionSource,
        limits: ConnectionLimits,
        bounds: ListenerBounds,
    ) -> None:
        self.refused = 0
        self._loop = loop
        self.name = name
        self._source = source
        self._handler: Handler | None = None
        self._limits = limits
        self._bounds = bounds
        self._max_idle_s = bounds.max_idle_ms / 1000
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
        return self._source.port

    def start(self, handler: Handler) -> None:
        """Accepts connections, and passes requests to `handler`."""
        self._handler = handler
        self._sweep = self._loop.call_later(IDLE_SWEEP_S, self._look_around)
        self._source.open(self)

    def hand_over(self, handler: Handler, is_kept: Callable[[Connection], bool]) -> None:
        """Passes requests to `handler` from now on. Closes connections that are not kept; their peers reconnect."""
        self._handler = handler
        for connection in list(self.connections):
            if is_kept(connection):
                connection.use(handler)
            else:
                connection.abort()

    def admits(self, ip: str) -> bool:
        """Whether one more connection from this address is within the bounds."""
        bounds = self._bounds
        if len(self.connections) < bounds.max_connections and self._per_ip.get(ip, 0) < bounds.max_connections_per_ip:
            return True
        self._note_refusal(ip, "the connection limit is reached")
        return False

    def not_accepted(self, error: OSError) -> None:
        self._complaints.not_accepted(self.name, error)

    def _note_refusal(self, ip: str, reason: str) -> None:
        self.refused += 1
        self._complaints.refused(ip, self.name, reason)

    def _is_left_over(self, descriptor: int | None) -> bool:
        """Whether the descriptor is not reserved for logs."""
        most = self._bounds.max_descriptor
        return most is None or descriptor is None or descriptor < most or len(self.connections) < MIN_CONNECTIONS

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

    def adopt(self, channel: AcceptedChannel, descriptor: int | None = None) -> Connection:
        """Serves a new connection from any network. `descriptor`: of its socket, if it has one."""
        assert self._handler is not None
        is_on_approval = not self._is_left_over(descriptor)
        connection = Connection(self._loop, channel, self._handler, self._limits, self._closed)
        self.accepted += 1
        connection.id = f"{self.name}-{channel.peer[0]}:{channel.peer[1]}-{self.accepted}"
        connection.listener_name = self.name
        self.connections[connection] = None
        ip = channel.peer[0]
        self._per_ip[ip] = self._per_ip.get(ip, 0) + 1
        channel.start(connection)
        if is_on_approval:
            self._approve_later(connection)
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
        self._source.close()
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
