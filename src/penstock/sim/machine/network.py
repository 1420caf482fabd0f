"""The network between simulated machines: names, ports, paths with latency and bandwidth, and their faults.

Fair faults:

- latency that varies from piece to piece, so connections overtake each other; bytes of one connection never do;
- limited bandwidth, shared by all connections from one machine to another; small windows; reads cut anywhere;
- a path blocked in one direction or both (`block`, `partition`), for a while or repeatedly (`flap`): bytes in flight
  wait and arrive later, connecting takes retries and ends in ETIMEDOUT;
- connections that are reset (`reset`) or stay silent forever (`hang`), without a visible reason;
- a process that dies: its sockets are closed at once. A machine that dies: silence, and resets once it is back.

Not fair, and not simulated: bytes lost, changed, duplicated or out of order within a live connection; bytes delivered
to another receiver; connections without a client.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from itertools import product
from random import Random

from penstock.model.addresses import Address
from penstock.sim.machine.endpoint import SimEndpoint
from penstock.sim.machine.loop import SimError, SimLoop
from penstock.sim.machine.process import SimProcess, current_process
from penstock.sim.machine.trace import Trace
from penstock.sim.machine.transport import SimServer, SimTransport

FIRST_EPHEMERAL_PORT = 32768
BACKLOG = 512
SYN_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
ANY_HOST = (None, "", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """Properties of the path from one machine to another. A local path is fast and never blocked."""

    latency_s: float = 0.0002
    jitter_s: float = 0.0008
    slow_chance: float = 0.005
    """Chance that a piece is delayed by up to `slow_s`."""
    slow_s: float = 0.05
    bandwidth_bytes_per_s: float = 125e6
    cut_chance: float = 0.1
    """Chance that bytes written together arrive in two pieces."""
    windows_bytes: tuple[int, ...] = (16 << 10, 256 << 10)


LAN = LinkProfile()
LOCAL = LinkProfile(0.00002, 0.00003, 0.0, 0.0, 1e9, 0.0, (256 << 10,))


class SimListening:
    """A bound port. Connections wait in its backlog until accepted."""

    def __init__(self, network: SimNetwork, process: SimProcess, address: Address) -> None:
        self._network = network
        self.process = process
        self.address = address
        self._backlog: list[SimEndpoint] = []
        self._on_connection: Callable[[SimEndpoint], None] | None = None

    def accept(self, on_connection: Callable[[SimEndpoint], None]) -> None:
        self._on_connection = on_connection
        backlog, self._backlog = self._backlog, []
        for endpoint in backlog:
            self.arrived(endpoint)

    @property
    def is_full(self) -> bool:
        return len(self._backlog) >= BACKLOG

    def arrived(self, endpoint: SimEndpoint) -> None:
        if self._on_connection is None:
            self._backlog.append(endpoint)
        else:
            self._network.loop.call_soon(self._on_connection, endpoint, context=self.process.context)

    def close(self) -> None:
        """From now on connections are refused; those in the backlog are reset."""
        self._network.unbind(self)
        for endpoint in self._backlog:
            endpoint.abort()
        self._backlog.clear()


class Flapping:
    """A path that is blocked and opened repeatedly until stopped."""

    def __init__(self, network: SimNetwork, pairs: Sequence[tuple[str, str]], shut_s: float, open_s: float) -> None:
        self._network = network
        self._pairs = pairs
        self._shut_s = shut_s
        self._open_s = open_s
        self._timer: asyncio.TimerHandle | None = None
        self._shut()

    def _shut(self) -> None:
        for pair in self._pairs:
            self._network.block(*pair)
        self._timer = self._network.later(self._shut_s, self._open)

    def _open(self) -> None:
        self._network.unblock(*self._pairs)
        self._timer = self._network.later(self._open_s, self._shut)

    def stop(self) -> None:
        """The path is open afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._network.unblock(*self._pairs)


class SimNetwork:
    def __init__(self, loop: SimLoop, random: Random, trace: Trace, profile: LinkProfile = LAN) -> None:
        self.loop = loop
        self.trace = trace
        self.context = copy_context()
        self.profile = profile
        self._random = random
        self._profiles: dict[tuple[str, str], LinkProfile] = {}
        self._busy_until: dict[tuple[str, str], float] = {}
        self._boots: dict[str, int] = {}
        self._down: dict[str, None] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._listening: dict[Address, SimListening] = {}
        self._endpoints: dict[SimEndpoint, None] = {}
        self._stalled: dict[SimEndpoint, None] = {}
        self._flapping: list[Flapping] = []
        self._connections = 0
        self._next_port: dict[str, int] = {}

    # -- machines and processes ---------------------------------------------------------

    @property
    def hosts(self) -> list[str]:
        return list(self._boots)

    def boot(self, host: str) -> None:
        """A machine starts, for the first time or again."""
        self._boots[host] = self._boots.get(host, 0) + 1
        self._down.pop(host, None)
        self._resume()

    def machine_died(self, host: str) -> None:
        """Silence: no peer is notified."""
        self._down[host] = None
        for address in [address for address in self._listening if address[0] == host]:
            del self._listening[address]
        for endpoint in [endpoint for endpoint in self._endpoints if endpoint.local[0] == host]:
            endpoint.vanish()

    def fall_asleep(self, host: str) -> None:
        """The machine is suspended: arriving bytes are sent again until it wakes."""
        self._down[host] = None

    def wake(self, host: str) -> None:
        self._down.pop(host, None)
        self._resume()

    def process_died(self, process: SimProcess) -> None:
        """The kernel closes the sockets at once."""
        for address in [address for address, bound in self._listening.items() if bound.process is process]:
            del self._listening[address]
        for endpoint in [endpoint for endpoint in self._endpoints if endpoint.process is process]:
            endpoint.close_by_kernel()

    def is_up(self, host: str) -> bool:
        return host not in self._down

    def is_passable(self, source: str, destination: str) -> bool:
        return destination not in self._down and (source, destination) not in self._blocked

    def boot_of(self, host: str) -> int:
        return self._boots[host]

    # -- paths --------------------------------------------------------------------------

    def set_profile(self, source: str, destination: str, profile: LinkProfile) -> None:
        self._profiles[source, destination] = profile

    def _profile(self, source: str, destination: str) -> LinkProfile:
        if source == destination:
            return LOCAL
        return self._profiles.get((source, destination), self.profile)

    def latency_s(self, source: str, destination: str) -> float:
        return self._latency_s(self._profile(source, destination))

    def _latency_s(self, profile: LinkProfile) -> float:
        random = self._random
        latency_s = profile.latency_s + random.random() * profile.jitter_s
        if profile.slow_chance and random.random() < profile.slow_chance:
            latency_s += random.random() * profile.slow_s
        return latency_s

    def arrival_time(self, source: str, destination: str, size: int) -> float:
        link, profile = (source, destination), self._profile(source, destination)
        sent, busy_until = self.loop.world_time(), self._busy_until.get(link, 0.0)
        if sent < busy_until:
            sent = busy_until
        sent += size / profile.bandwidth_bytes_per_s
        self._busy_until[link] = sent
        return sent + self._latency_s(profile)

    def cut(self, source: str, destination: str, size: int) -> int:
        chance = self._profile(source, destination).cut_chance
        if size < 2 or not chance or self._random.random() >= chance:
            return size
        return self._random.randrange(1, size)

    def retransmission_delay_s(self) -> float:
        return 0.01 + self._random.random() * 0.4

    def is_open(self, source: str, destination: str) -> bool:
        return (source, destination) not in self._blocked

    @property
    def is_whole(self) -> bool:
        """Whether no path is blocked."""
        return not self._blocked

    # -- faults -------------------------------------------------------------------------

    def block(self, source: str, destination: str) -> None:
        """Block one direction; the other stays as it is."""
        if source != destination and (source, destination) not in self._blocked:
            self._blocked[source, destination] = None
            self.trace.note("network", f"shut {source}->{destination}")

    def unblock(self, *pairs: tuple[str, str]) -> None:
        for source, destination in pairs:
            if (source, destination) in self._blocked:
                del self._blocked[source, destination]
                self.trace.note("network", f"open {source}->{destination}")
        self._resume()

    def partition(self, left: Sequence[str], right: Sequence[str], *, one_way: bool = False) -> None:
        """`one_way`: only from left to right."""
        for source, destination in _pairs(left, right, one_way):
            self.block(source, destination)

    def isolate(self, host: str) -> None:
        self.partition([host], [other for other in self._boots if other != host])

    def flap(
        self, left: Sequence[str], right: Sequence[str], *, shut_s: float, open_s: float, one_way: bool = False
    ) -> Flapping:
        flapping = Flapping(self, _pairs(left, right, one_way), shut_s, open_s)
        self._flapping.append(flapping)
        return flapping

    def heal(self) -> None:
        """Open all paths and stop flapping. Hung or reset connections stay so."""
        for flapping in self._flapping:
            flapping.stop()
        self._flapping.clear()
        self.unblock(*list(self._blocked))

    def reset(self, left: str, right: str) -> int:
        """Break every connection between the two; return their number."""
        pairs = self._between(left, right)
        for endpoint in pairs:
            endpoint.break_off()
            endpoint.remote.break_off()
        return len(pairs)

    def hang(self, left: str, right: str) -> int:
        """Silence all current connections between the two permanently. New ones work."""
        pairs = self._between(left, right)
        for endpoint in pairs:
            endpoint.is_hung = endpoint.remote.is_hung = True
            self.trace.note(endpoint.name, "hangs")
        return len(pairs)

    def _between(self, left: str, right: str) -> list[SimEndpoint]:
        return [end for end in self._endpoints if end.local[0] == left and end.peer[0] == right]

    def links(self) -> list[tuple[str, str]]:
        """Pairs of machines with a working connection, in the order of their oldest one."""
        ends = (end for end in self._endpoints if not end.is_hung and not end.is_peer_gone)
        pairs = ((end.local[0], end.peer[0]) for end in ends if end.local[0] != end.peer[0])
        return list(dict.fromkeys((min(pair), max(pair)) for pair in pairs))

    def stalled(self, endpoint: SimEndpoint) -> None:
        self._stalled[endpoint] = None

    def forget(self, endpoint: SimEndpoint) -> None:
        self._endpoints.pop(endpoint, None)
        self._stalled.pop(endpoint, None)

    def _resume(self) -> None:
        for endpoint in list(self._stalled):
            if endpoint.resume():
                self._stalled.pop(endpoint, None)

    def later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s, callback, context=self.context)

    # -- connections --------------------------------------------------------------------

    def bind(self, process: SimProcess, port: int, host: str | None = None) -> SimListening:
        """Raises OSError: EADDRINUSE, EADDRNOTAVAIL."""
        if host not in (*ANY_HOST, process.host):
            raise OSError(errno.EADDRNOTAVAIL, f"{process.host} has no address {host}")
        address = (process.host, port or self._ephemeral_port(process.host))
        if address in self._listening:
            raise OSError(errno.EADDRINUSE, "address already in use")
        listening = self._listening[address] = SimListening(self, process, address)
        return listening

    def unbind(self, listening: SimListening) -> None:
        if self._listening.get(listening.address) is listening:
            del self._listening[listening.address]

    def _ephemeral_port(self, host: str) -> int:
        port = self._next_port.get(host, FIRST_EPHEMERAL_PORT)
        self._next_port[host] = port + 1 if port < 65535 else FIRST_EPHEMERAL_PORT
        return port

    async def connect(self, process: SimProcess, host: str, port: int) -> SimEndpoint:
        """Raises OSError: unknown host, ECONNREFUSED, ETIMEDOUT."""
        source = process.host
        if host in ("localhost", "127.0.0.1", "::1"):
            host = source
        if host not in self._boots:
            raise socket.gaierror(socket.EAI_NONAME, f"there is no machine {host}")
        for pause_s in SYN_RETRIES_S:
            await asyncio.sleep(self.latency_s(source, host))
            if self.is_up(host) and self.is_open(source, host) and self.is_open(host, source):
                listening = self._listening.get((host, port))
                if listening is None:
                    await asyncio.sleep(self.latency_s(host, source))
                    self.trace.note(process.name, f"refused by {host}:{port}")
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
                if not listening.is_full:
                    return await self._establish(process, listening)
            await asyncio.sleep(pause_s)
        self.trace.note(process.name, f"no answer from {host}:{port}")
        raise TimeoutError(errno.ETIMEDOUT, "connection timed out")

    async def _establish(self, process: SimProcess, listening: SimListening) -> SimEndpoint:
        source, host = process.host, listening.address[0]
        self._connections += 1
        local = (source, self._ephemeral_port(source))
        window = self._random.choice(self._profile(source, host).windows_bytes)
        ours = SimEndpoint(self, process, local, listening.address, self._connections, window)
        theirs = SimEndpoint(self, listening.process, listening.address, local, self._connections, window)
        ours.join(theirs)
        self._endpoints[ours] = self._endpoints[theirs] = None
        self.trace.note(ours.name, "connected")
        listening.arrived(theirs)
        try:
            await asyncio.sleep(self.latency_s(host, source))
        except asyncio.CancelledError:
            ours.abort()
            raise
        return ours

    # -- asyncio's side -----------------------------------------------------------------

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        endpoint = await self.connect(_process(), host, port)
        protocol = factory()
        return SimTransport(self.loop, endpoint, protocol), protocol

    def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> asyncio.AbstractServer:
        listening = self.bind(_process(), port, host)
        listening.accept(lambda endpoint: _serve(self.loop, endpoint, factory()))
        return SimServer(self.loop, listening.address, listening.close)


def _serve(loop: SimLoop, endpoint: SimEndpoint, protocol: asyncio.BaseProtocol) -> None:
    SimTransport(loop, endpoint, protocol)


def _process() -> SimProcess:
    process = current_process()
    if process is None:
        raise SimError("only a process of the world has an address: start this with SimWorld.spawn")
    return process


def _pairs(left: Sequence[str], right: Sequence[str], one_way: bool) -> list[tuple[str, str]]:
    pairs = list(product(left, right))
    return pairs if one_way else pairs + [(b, a) for a, b in pairs]
