"""The real broker in a simulated world: `node.Node` with its steps up and down, its real world exchanged for ports.

Everything from the dispatcher to the log is production code, composed by `node.Node` itself. Exchanged are the steps
that touch the machine: the data directory's lock, listening sockets, threads, the process that rewrites segments. Left
out are the doors, which are another process and clients of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.api.dispatch import PIPELINED
from penstock.config.broker import BrokerConfig
from penstock.net.connection import ConnectionLimits
from penstock.node.node import Node
from penstock.replica.cleaning import LogCleaning
from penstock.sim.channel import SimListener
from penstock.sim.threads import SimRewriter
from penstock.sim.world import SimPorts
from penstock.storage.group_commit import GroupCommit

DATA = "/data"
PORT = 9092
CLUSTER_ID = "simulatedworldcluster0"


class SimDirectory:
    """A data directory that needs no lock: a machine runs one broker."""

    def __init__(self, path: str, cluster_id: str) -> None:
        self.path = path
        self.cluster_id = cluster_id

    def close(self) -> None:
        """Nothing is held."""


def broker_config(host: str, node_id: int, settings: Mapping[str, str] | None = None) -> BrokerConfig:
    given = {
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://{host}:{PORT}",
        "log.dirs": DATA,
        "penstock.cluster.id": CLUSTER_ID,
        # Opening and closing use a pool of real threads; one of them works in a fixed order.
        "penstock.flush.threads": "1",
        "penstock.http.listener": "",
        "penstock.line.listener": "",
        **(settings or {}),
    }
    return BrokerConfig.load(None, given)[0]


class SimBroker(Node):
    def __init__(self, config: BrokerConfig, ports: SimPorts) -> None:
        super().__init__(config)
        self._ports = ports
        # `Node` makes its own ports; these are what it uses from here on.
        vars(self).update(clock=ports.clock, _entropy=ports.entropy, _disk=ports.disk, started_ms=ports.clock.now_ms())

    def _open_directory(self) -> None:
        cluster_id = self.config.penstock_cluster_id or CLUSTER_ID
        self._ports.disk.make_directory(self.config.log_dir)
        self._ports.disk.sync_directory(self.config.log_dir.rpartition("/")[0])
        vars(self).update(directory=SimDirectory(self.config.log_dir, cluster_id))

    def _bind_listeners(self) -> None:
        config, ports = self.config, self._ports
        limits = ConnectionLimits(
            config.socket_request_max_bytes, config.penstock_requests_in_flight_per_connection, PIPELINED
        )
        self._undo.append(self._close_listeners)
        for endpoint in config.listeners:
            self.listeners.append(
                SimListener(
                    ports.loop,
                    endpoint.name,
                    ports.network.bind(ports.process, endpoint.port, endpoint.host),
                    limits,
                    max_connections=config.max_connections,
                    max_connections_per_ip=config.max_connections_per_ip,
                    max_idle_ms=config.connections_max_idle_ms,
                )
            )

    def _start_threads(self) -> None:
        vars(self).update(_flusher=self._ports.flusher, _workers=self._ports.workers)
        self.commit = GroupCommit(self._loop.call_soon, self._flusher)
        self._metadata_log.attach(self.commit)
        self._undo.append(self._stop_threads)

    def _build_cleaner(self) -> None:
        rewriter = SimRewriter(self._ports.disk, self._ports.workers)
        self.cleaning = LogCleaning(self.partitions, rewriter, self._ports.disk, self._ports.workers, self._ports.clock)

    def _serve(self) -> None:
        for listener in self.listeners:
            listener.start(self.apis.dispatcher)


def broker(
    node_id: int = 1, settings: Mapping[str, str] | None = None
) -> Callable[[SimPorts], Coroutine[Any, Any, SimBroker]]:
    """A program for `SimMachine.start`: done when the broker serves."""

    async def start(ports: SimPorts) -> SimBroker:
        served = SimBroker(broker_config(ports.process.host, node_id, settings), ports)
        await served.start()
        ports.trace.note(ports.process.name, "serves")
        return served

    return start
