"""Everything of the machine that a node uses, as one seam.

In production this is the operating system (`OsWorld`), in a simulation `sim.broker`. A node asks its world once for
each part, in the order of its steps, and closes each part it was given. Must not know: what a node does with the parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Endpoint
from penstock.net.accepting import ListeningSockets, bind
from penstock.net.connection import ConnectionLimits
from penstock.net.listener import Listener, ListenerBounds
from penstock.node.gateway import Gateway, GatewaySettings
from penstock.ports.clock import Clock, Entropy
from penstock.ports.disk import Disk
from penstock.ports.flusher import Flusher
from penstock.ports.workers import RecordWorkers, Workers
from penstock.replica.cleaning import Rewriter
from penstock.runtime.cleaner_process import CleanerProcess
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.runtime.data_directory import DataDirectory
from penstock.runtime.descriptors import max_connection_descriptor
from penstock.runtime.disk import OsDisk
from penstock.runtime.kernel_flusher import open_flusher
from penstock.runtime.loop import TurnLoop
from penstock.runtime.loop_watchdog import LoopWatchdog
from penstock.runtime.record_processes import RecordProcesses
from penstock.runtime.workers import ThreadWorkers

WORKER_THREADS = 4


class Directory(Protocol):
    """The data directory as a whole: locked while the node runs, and owned by one node."""

    path: str
    cluster_id: str
    """Empty until the node knows its cluster."""
    directory_id: str
    """The directory id; empty in a directory that was formatted without one."""
    secrets: tuple[bytes, ...]
    """The cluster's secrets: the first is presented to other nodes, all are accepted."""

    def adopt(self, cluster_id: str) -> None:
        """Belong to this cluster permanently from now on."""
        ...

    def close(self) -> None: ...


class ClosableFlusher(Flusher, Protocol):
    def close(self) -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


class Watchdog(Closable, Protocol):
    def started(self) -> None:
        """The node is ready: stalls are reported from the next turn on."""
        ...


class ClosableRecordWorkers(RecordWorkers, Protocol):
    def close(self) -> None: ...


class ClosableWorkers(Workers, Protocol):
    def close(self) -> None: ...


class ClosableRewriter(Rewriter, Protocol):
    def close(self) -> None: ...


class World(Protocol):
    clock: Clock
    entropy: Entropy
    disk: Disk

    def open_directory(self, config: BrokerConfig) -> Directory: ...

    def listen(
        self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint, limits: ConnectionLimits, config: BrokerConfig
    ) -> Listener: ...

    def gateway(self, config: BrokerConfig) -> Gateway | None: ...

    def flusher(self, loop: asyncio.AbstractEventLoop, threads: int) -> ClosableFlusher: ...

    def workers(self, loop: asyncio.AbstractEventLoop) -> ClosableWorkers: ...

    def quorum_lane(self, loop: asyncio.AbstractEventLoop) -> tuple[ClosableFlusher, ClosableWorkers]:
        """Workers for the metadata quorum alone: votes and terms must not wait for cold reads, recompression or opening
        logs.
        """
        ...

    def disk_lane(self, loop: asyncio.AbstractEventLoop) -> ClosableWorkers:
        """Workers for probes of a disk that hung: the time of a probe must depend on the disk, not on a queue."""
        ...

    def record_workers(self, loop: asyncio.AbstractEventLoop) -> ClosableRecordWorkers: ...

    def rewriter(
        self, loop: asyncio.AbstractEventLoop, max_bytes_per_second: Callable[[], float]
    ) -> ClosableRewriter: ...

    def watchdog(self, loop: asyncio.AbstractEventLoop, stall_ms: int) -> Watchdog | None:
        """Reports code that blocks the loop for longer than that. Called on the loop; None: no watchdog."""
        ...


class OsWorld:
    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.entropy: Entropy = SystemEntropy()
        self.disk: Disk = OsDisk()

    def open_directory(self, config: BrokerConfig) -> Directory:
        return DataDirectory.open(
            config.log_dir,
            config.node_id,
            config.penstock_cluster_id,
            self.entropy,
            is_joining=config.is_clustered,
            secret_file=config.penstock_cluster_secret_file,
        )

    def listen(
        self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint, limits: ConnectionLimits, config: BrokerConfig
    ) -> Listener:
        source = ListeningSockets(loop, bind(endpoint.host, endpoint.port))
        bounds = ListenerBounds(
            config.max_connections,
            config.max_connections_per_ip,
            config.connections_max_idle_ms,
            max_connection_descriptor(),
        )
        return Listener(loop, endpoint.name, source, limits, bounds)

    def gateway(self, config: BrokerConfig) -> Gateway | None:
        return Gateway(GatewaySettings.of(config))

    def flusher(self, loop: asyncio.AbstractEventLoop, threads: int) -> ClosableFlusher:
        return open_flusher(loop, self.disk, threads)

    def workers(self, loop: asyncio.AbstractEventLoop) -> ClosableWorkers:
        return ThreadWorkers(loop, WORKER_THREADS)

    def quorum_lane(self, loop: asyncio.AbstractEventLoop) -> tuple[ClosableFlusher, ClosableWorkers]:
        return open_flusher(loop, self.disk, 1), ThreadWorkers(loop, 1, "penstock-quorum")

    def disk_lane(self, loop: asyncio.AbstractEventLoop) -> ClosableWorkers:
        return ThreadWorkers(loop, 1, "penstock-probe")

    def record_workers(self, loop: asyncio.AbstractEventLoop) -> ClosableRecordWorkers:
        return RecordProcesses(loop)

    def rewriter(self, loop: asyncio.AbstractEventLoop, max_bytes_per_second: Callable[[], float]) -> ClosableRewriter:
        return CleanerProcess(loop, max_bytes_per_second)

    def watchdog(self, loop: asyncio.AbstractEventLoop, stall_ms: int) -> Watchdog | None:
        return LoopWatchdog(loop, stall_ms / 1000) if isinstance(loop, TurnLoop) and stall_ms else None
