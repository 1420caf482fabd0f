"""Servers that run nothing but Raft, in a simulated world: everything but their state machine is production code.

The state machine is a list of what was applied, so histories can be compared entry by entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.api.dispatch import PIPELINED, Dispatcher
from penstock.api.handlers.raft import RaftHandler
from penstock.api.request_times import RequestTimes
from penstock.cluster.peer_links import PeerLinks
from penstock.cluster.quorum import Quorum
from penstock.cluster.raft_driver import QuorumServer
from penstock.cluster.raft_store import QuorumLane, RaftStore
from penstock.core.raft.settings import RaftSettings
from penstock.net.connection import ConnectionLimits
from penstock.net.listener import Listener, ListenerBounds
from penstock.sim.machine.channel import SimSource
from penstock.sim.machine.world import SimMachine, SimPorts, SimWorld
from penstock.storage.group_commit import GroupCommit
from support.worlds.peers import identity, introductions

PORT = 9092
DATA = "/data"
CLUSTER = "a-cluster"
SETTINGS = RaftSettings(election_timeout_ms=1000, heartbeat_interval_ms=200, entries_kept_behind_snapshot=5)


class History:
    """The applied entries: (index, data), oldest first."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, bytes]] = []
        self.restores = 0

    def apply(self, index: int, data: bytes) -> None:
        assert not self.applied or index > self.applied[-1][0], f"{index} after {self.applied[-1]}"
        self.applied.append((index, data))

    def restore(self, index: int, data: bytes) -> None:
        self.restores += 1
        self.applied = [(int(at), text) for at, _, text in (line.partition(b"=") for line in data.split(b";") if line)]

    def snapshot(self) -> Generator[None, None, bytes]:
        return self._encode(self.applied[:])

    @staticmethod
    def _encode(applied: list[tuple[int, bytes]]) -> Generator[None, None, bytes]:
        """Twenty a step."""
        lines: list[bytes] = []
        for item in applied:
            lines.append(b"%d=%s" % item)
            if len(lines) % 20 == 0:
                yield
        return b";".join(lines)

    @property
    def data(self) -> list[bytes]:
        return [data for _, data in self.applied]


class Strangers:
    """Every introduction is accepted, with any disk, and not remembered."""

    def greeted_by(self, node: int, address: str, directory_id: str) -> None:
        pass

    def left_by(self, node: int) -> None:
        pass

    def directory_of_sender(self, node: int) -> str:
        return ""


class Server:
    """One process."""

    def __init__(
        self, ports: SimPorts, node_id: int, voters: Sequence[int], cluster_id: str, snapshot_every: int
    ) -> None:
        self.ports = ports
        self.history = History()
        self.events: list[str] = []
        ports.disk.make_directory(DATA)
        ports.disk.sync_directory("")
        self.store = RaftStore(ports.disk, DATA, ports.clock)
        addresses = {voter: (host_of(voter), PORT) for voter in voters}
        self.links = PeerLinks(ports.loop, identity(node_id), cluster_id, addresses, ports.clock, self)
        self.quorum = Quorum(
            ports.loop,
            QuorumServer(node_id, addresses, SETTINGS, snapshot_every, ""),
            self.store,
            QuorumLane(GroupCommit(ports.loop.call_soon, ports.flusher), ports.workers),
            self.links,
            self.history,
            self,
            ports.entropy,
            ports.clock,
        )
        handler = RaftHandler(node_id, lambda: cluster_id, self.quorum.receive, Strangers(), "")
        source = SimSource(ports.loop, ports.network.bind(ports.process, PORT, ports.process.host))
        limits = ConnectionLimits(100 << 20, 64, PIPELINED)
        self.listener = Listener(ports.loop, "PLAINTEXT", source, limits, ListenerBounds(1000, 1000, 600_000))
        self.dispatcher = Dispatcher([], RequestTimes(ports.clock), private=[handler, introductions(node_id)])

    def start(self) -> None:
        self.quorum.start()
        self.listener.start(self.dispatcher)

    def activated(self, term: int) -> None:
        self.events.append(f"active {term}")

    def deactivated(self) -> None:
        self.events.append("inactive")

    def leader_changed(self, leader: int | None, term: int) -> None:
        self.events.append(f"leader {leader} {term}")

    def members_changed(self) -> None:
        pass

    def quorum_failed(self, error: Exception) -> None:
        self.events.append(f"failed: {error}")

    def peer_lost(self, peer: int) -> None:
        self.quorum.peer_lost(peer)

    def peer_back(self, peer: int) -> None:
        self.quorum.peer_back(peer)

    def directory_of(self, peer: int) -> str:
        return ""


def host_of(node_id: int) -> str:
    return f"node-{node_id}"


class Cluster:
    def __init__(self, world: SimWorld, voters: Sequence[int] = (1, 2, 3), snapshot_every: int = 1 << 20) -> None:
        self.world = world
        self.voters = list(voters)
        self.snapshot_every = snapshot_every
        self.servers: dict[int, Server] = {}
        self.cluster_id = CLUSTER

    def machine(self, node_id: int) -> SimMachine:
        return self.world.machine(host_of(node_id))

    async def start(self, *nodes: int, voters: Sequence[int] | None = None) -> None:
        for node_id in nodes or self.voters:
            await self.machine(node_id).start(self._program(node_id, self.voters if voters is None else voters))

    def _program(self, node_id: int, voters: Sequence[int]) -> Any:
        async def run(ports: SimPorts) -> None:
            server = Server(ports, node_id, voters, self.cluster_id, self.snapshot_every)
            server.start()
            self.servers[node_id] = server

        return run

    def call(self, node_id: int, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        return self.machine(node_id).run(work)

    def propose(self, node_id: int, data: bytes) -> asyncio.Future[int]:
        return self.call(node_id, self.servers[node_id].quorum.propose(data))

    def kill(self, node_id: int) -> None:
        self.machine(node_id).kill()
        del self.servers[node_id]

    def crash(self, node_id: int) -> None:
        self.machine(node_id).crash()
        del self.servers[node_id]

    @property
    def running(self) -> dict[int, Server]:
        return {node: server for node, server in self.servers.items() if self.machine(node).is_running}

    def active(self) -> list[int]:
        return [node for node, server in self.running.items() if server.quorum.is_active]

    async def until_active(self, within_s: float = 30.0, among: Sequence[int] | None = None) -> int:
        deadline = self.world.loop.time() + within_s
        while self.world.loop.time() < deadline:
            found = [node for node in self.active() if among is None or node in among]
            if found:
                return found[-1]
            await asyncio.sleep(0.005)
        raise AssertionError(f"nobody is active after {within_s} s: {self.describe()}")

    async def until_equal(self, within_s: float = 30.0) -> list[bytes]:
        """All that run have applied the same."""
        deadline = self.world.loop.time() + within_s
        while True:
            states = [(server.quorum.applied_index, server.history.data) for server in self.running.values()]
            if all(state == states[0] for state in states):
                return states[0][1]
            assert self.world.loop.time() < deadline, f"not equal after {within_s} s: {self.describe()}"
            await asyncio.sleep(0.01)

    def describe(self) -> str:
        return "; ".join(f"{node}: {server.quorum.status}" for node, server in self.running.items())


@contextmanager
def cluster(seed: int, **options: Any) -> Iterator[Cluster]:
    with SimWorld(seed) as world:
        yield Cluster(world, **options)
