"""The real broker in a simulated world: `node.Node` with its start and stop steps, on a simulated machine's ports.

Everything from the dispatcher to the log is production code, composed by `node.Node` itself. The gateway is left out:
it is another process and a client of this one.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Endpoint
from penstock.net.connection import ConnectionLimits
from penstock.net.listener import Listener, ListenerBounds
from penstock.node.gateway import Gateway
from penstock.node.node import Node, no_supervisor
from penstock.ports.clock import Clock, Entropy
from penstock.ports.disk import Disk
from penstock.sim.machine.channel import SimSource
from penstock.sim.machine.threads import SimFlusher, SimRecordWorkers, SimRewriter, SimWorkers
from penstock.sim.machine.world import SimPorts

DATA = "/data"
PORT = 9092
CLUSTER_ID = "simulatedworldcluster0"
CLUSTER_SECRET = b"known to every simulated node..."


class SimDirectory:
    """A data directory that needs no lock: a machine runs one broker."""

    def __init__(self, path: str, cluster_id: str, machine: str) -> None:
        self.path = path
        self.cluster_id = cluster_id
        # The same form as over the wire: 16 bytes in base64. Other text would not survive decoding.
        self.secrets: tuple[bytes, ...] = (CLUSTER_SECRET,)
        self.directory_id = urlsafe_b64encode(f"disk of {machine}".encode().ljust(16)[:16]).decode().rstrip("=")

    def adopt(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id

    def close(self) -> None:
        """The simulated directory has no lock to release."""


def broker_config(host: str, node_id: int, settings: Mapping[str, str] | None = None) -> BrokerConfig:
    given = {
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://{host}:{PORT}",
        "log.dirs": DATA,
        "penstock.cluster.id": CLUSTER_ID,
        "penstock.http.listener": "",
        "penstock.line.listener": "",
        **(settings or {}),
    }
    return BrokerConfig.load(None, given)[0]


class SimNodeWorld:
    """A `node.world.World` of one simulated process."""

    def __init__(self, ports: SimPorts) -> None:
        self._ports = ports
        self.clock: Clock = ports.clock
        self.entropy: Entropy = ports.entropy
        self.disk: Disk = ports.disk

    def open_directory(self, config: BrokerConfig) -> SimDirectory:
        disk = self._ports.disk
        disk.make_directory(config.log_dir)
        disk.sync_directory(config.log_dir.rpartition("/")[0])
        return SimDirectory(config.log_dir, config.penstock_cluster_id or CLUSTER_ID, self._ports.process.host)

    def listen(
        self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint, limits: ConnectionLimits, config: BrokerConfig
    ) -> Listener:
        ports = self._ports
        source = SimSource(loop, ports.network.bind(ports.process, endpoint.port, endpoint.host))
        bounds = ListenerBounds(config.max_connections, config.max_connections_per_ip, config.connections_max_idle_ms)
        return Listener(loop, endpoint.name, source, limits, bounds)

    def gateway(self, config: BrokerConfig) -> Gateway | None:
        return None

    def flusher(self, loop: asyncio.AbstractEventLoop, threads: int) -> SimFlusher:
        return self._ports.flusher

    def workers(self, loop: asyncio.AbstractEventLoop) -> SimWorkers:
        return self._ports.workers

    def quorum_lane(self, loop: asyncio.AbstractEventLoop) -> tuple[SimFlusher, SimWorkers]:
        return self._ports.quorum_flusher, self._ports.quorum_workers

    def disk_lane(self, loop: asyncio.AbstractEventLoop) -> SimWorkers:
        return self._ports.disk_workers

    def record_workers(self, loop: asyncio.AbstractEventLoop) -> SimRecordWorkers:
        return SimRecordWorkers(self._ports.workers)

    def rewriter(self, loop: asyncio.AbstractEventLoop, max_bytes_per_second: Callable[[], float]) -> SimRewriter:
        return SimRewriter(self._ports.disk, self._ports.workers)

    def watchdog(self, loop: asyncio.AbstractEventLoop, stall_ms: int) -> None:
        return None  # no real time passes in a simulation


class SimBroker(Node):
    def __init__(self, config: BrokerConfig, ports: SimPorts, when_failed: Callable[[Exception], None]) -> None:
        super().__init__(config, when_failed, SimNodeWorld(ports))


def broker(
    node_id: int = 1, settings: Mapping[str, str] | None = None
) -> Callable[[SimPorts], Coroutine[Any, Any, SimBroker]]:
    """A program for `SimMachine.start`: done when the broker serves."""

    async def start(ports: SimPorts) -> SimBroker:
        served = SimBroker(broker_config(ports.process.host, node_id, settings), ports, no_supervisor)
        await served.start()
        ports.trace.note(ports.process.name, "serves")
        return served

    return start
