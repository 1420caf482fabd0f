"""One broker process: an ordered list of steps at start, undone in reverse at stop.

`start` and `stop` are the whole lifecycle of a node. Everything is built with plain constructors in the order in which
it is needed; there are no lookups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.api.bounds import frame_limits
from penstock.api.cluster_view import ClusterView
from penstock.api.dispatch import PIPELINED
from penstock.broker_link.peer_requests import PeerRequests
from penstock.cluster.raft_store import QuorumLane
from penstock.config.broker import BrokerConfig
from penstock.coordination.shard_host import Surroundings
from penstock.model.errors import StorageError
from penstock.net.connection import ConnectionLimits
from penstock.net.listener import Listener
from penstock.net.request_memory import RequestMemory
from penstock.node.coordinators import Coordinators
from penstock.node.handlers import Apis, Parts, for_clients
from penstock.node.health import health_page
from penstock.node.membership import Membership
from penstock.node.metadata_listeners import MetadataListeners
from penstock.node.partition_listeners import PartitionListeners
from penstock.node.preload import preload
from penstock.node.progress import ProgressLines
from penstock.node.timers import NodeTimers
from penstock.node.world import ClosableWorkers, OsWorld, World
from penstock.observability.channel import HEALTH, METRICS
from penstock.replica.cleaning import LogCleaning
from penstock.replica.disk_watch import DiskWatch
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.host import BrokerStanding
from penstock.replica.hosting import HostedPartitions
from penstock.replica.isr import IsrKeeper
from penstock.replica.revival import Revivals
from penstock.storage.group_commit import GroupCommit
from penstock.storage.probe import probe

if TYPE_CHECKING:
    from penstock.observability.metrics import Metrics

log = logging.getLogger(__name__)

# Hosts that mean more than one address: the address for a client on this machine, and the description.
LOCAL = {"": "localhost", "0.0.0.0": "127.0.0.1", "::": "::1"}
EVERY = {"": " (every interface)", "0.0.0.0": " (every IPv4 interface)", "::": " (every IPv6 interface)"}


class Node:
    def __init__(
        self, config: BrokerConfig, when_failed: Callable[[Exception], None], world: World | None = None
    ) -> None:
        """`when_failed`: called when a serving node has to leave its cluster; the node should then be stopped. Before
        the node serves, `start` raises the error instead.
        """
        self.config = config
        self._when_failed = when_failed
        self._has_started = False
        self._world = world = OsWorld() if world is None else world
        self.clock = world.clock
        self._entropy = world.entropy
        self._disk = world.disk
        self._undo: list[Callable[[], Awaitable[None]]] = []
        self.listeners: list[Listener] = []
        self.gateway = world.gateway(config)
        self.is_stopping = False
        self.is_abandoned = False
        """True if the node was stopped while its disk hung: threads still wait for the disk, and logs may not be
        closed.
        """
        self._closing_since_s: float | None = None
        self.started_ms = self.clock.now_ms()
        self._metrics: Metrics | None = None

    # # -- start --------------------------------------------------------------------------

    async def start(self) -> None:
        """Start serving. Raises ConfigError or StorageError, with everything undone. Waits for a quorum if there are
        others.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self._open_directory()
            self._bind_listeners()
            await self._bind_gateway()
            self._start_threads()
            self._open_metadata()
            await self.membership.join(for_clients(self.config))
            await self._open_partitions()
            self._check_quorum()
            self._build_replication()
            self._build_coordinators()
            self._build_apis()
            self._follow_metadata()
            self._build_cleaner()
            self._warn_of_missing_brokers()
            self._start_timers()
            await self._serve()
            self._check_quorum()
            self._has_started = True
            if self._watchdog is not None:
                self._watchdog.started()
        except BaseException:
            with suppress(StorageError, OSError):  # the error that stopped the start is raised; this one was logged
                await self._roll_back()
            raise

    def _check_quorum(self) -> None:
        """`when_failed` is not called during the start, and a node without metadata must not serve."""
        failure = self.membership.quorum.failure
        if self.config.is_clustered and failure is not None:
            raise failure

    def _open_directory(self) -> None:
        self.directory = self._world.open_directory(self.config)
        self._undo.append(self._close_directory)

    async def _close_directory(self) -> None:
        self.directory.close()

    def _bind_listeners(self) -> None:
        """Early, so that a port in use is reported at once; clients wait in the backlog until we serve."""
        self.request_memory = RequestMemory(self.config.queued_max_request_bytes, self._loop.time)
        limits = ConnectionLimits(
            self.config.socket_request_max_bytes,
            self.config.penstock_requests_in_flight_per_connection,
            PIPELINED,
            frame_limits(for_clients(self.config), self.config.socket_request_max_bytes),
            self.request_memory,
            self._world.clock.monotonic,
        )
        self._undo.append(self._close_listeners)
        for endpoint in (*self.config.listeners, *self.config.controller_listeners):
            self.listeners.append(self._world.listen(self._loop, endpoint, limits, self.config))

    async def _close_listeners(self) -> None:
        for listener in self.listeners:
            listener.stop_accepting()
        await asyncio.gather(
            *(listener.drain(self.config.penstock_shutdown_drain_ms / 1000) for listener in self.listeners)
        )

    async def _bind_gateway(self) -> None:
        if self.gateway is not None:
            self._undo.append(self.gateway.close)
            await self.gateway.bind()

    def _start_threads(self) -> None:
        self._flusher = self._world.flusher(self._loop, self.config.penstock_flush_threads)
        self._workers = self._world.workers(self._loop)
        self.commit = GroupCommit(self._loop.call_soon, self._flusher, self._loop)
        self._quorum_flusher, self._quorum_workers = self._world.quorum_lane(self._loop)
        self.quorum_commit = GroupCommit(self._loop.call_soon, self._quorum_flusher, self._loop)
        self._disk_lane = self._world.disk_lane(self._loop)
        self._undo.append(self._close_disk_lane)
        self._record_workers = self._world.record_workers(self._loop)
        self._watchdog = self._world.watchdog(self._loop, self.config.penstock_loop_stall_ms)
        self._undo.append(self._stop_threads)

    async def _stop_threads(self) -> None:
        await self._flushed()
        for each in (self._flusher, self._quorum_flusher):
            each.close()
        await self._run_watched(self._join_workers)
        self._record_workers.close()
        if self._watchdog is not None:
            self._watchdog.close()

    async def _close_disk_lane(self) -> None:
        self._disk_lane.close()

    def _join_workers(self) -> None:
        """Blocks: a worker may still wait for the disk."""
        self._workers.close()
        self._quorum_workers.close()

    async def _run_watched(self, work: Callable[[], None]) -> None:
        """In a thread: the disk may hang here too, and the loop must be free to notice."""
        self._closing_since_s = self._loop.time()
        try:
            await self._disk_lane.run(work)
        finally:
            self._closing_since_s = None

    async def _flushed(self) -> None:
        """Wait until every requested flush is done."""
        for commit in (self.commit, self.quorum_commit):
            idle = asyncio.Event()
            commit.when_idle(idle.set)
            await idle.wait()

    def _open_metadata(self) -> None:
        self.membership = Membership(
            self._loop,
            self.config,
            self._world,
            self.directory,
            QuorumLane(self.quorum_commit, self._quorum_workers),
            self.listeners,
            self._quorum_failed,
        )
        self._undo.append(self.membership.close)
        self.membership.open()
        self.image = self.membership.image
        self.running = self.membership.running
        self.controller = self.membership.controller
        self._watch_disk()

    def _watch_disk(self) -> None:
        """One directory, one disk: if it hangs, it hangs for all logs, including the metadata log."""
        path = self.directory.path
        self.disk_watch = DiskWatch(
            self._loop,
            path,
            (
                self.commit.waiting_since_s,
                self.quorum_commit.waiting_since_s,
                self.membership.writing_since_s,
                lambda: self._closing_since_s,
            ),
            lambda age_s: max(self.commit.last_ended_s(age_s), self.quorum_commit.last_ended_s(age_s)),
            lambda: self.running.current.penstock_disk_hung_ms,
            lambda: self._disk_lane.run(partial(probe, self._disk, path)),
            self.membership.quorum.disk_hung,
        )
        # Watch until everything that needs the disk has ended, threads included.
        self._undo.insert(self._undo.index(self._stop_threads), self._stop_watching_disk)
        self.disk_watch.start()

    async def _stop_watching_disk(self) -> None:
        self.disk_watch.stop()

    def _quorum_failed(self, error: Exception) -> None:
        if self._has_started:
            self._when_failed(error)

    async def _open_partitions(self) -> None:
        """With a copy of the image, off the loop: other nodes wait for this one's votes meanwhile."""
        machine = self.membership.machine
        image = machine.copy() if self.config.is_clustered else self.image
        lifecycle = self.membership.lifecycle
        self.partitions = HostedPartitions(
            self._disk,
            self.directory.path,
            self.running.current,
            image,
            self.commit,
            self._workers,
            self.clock,
            self._entropy,
            BrokerStanding(lambda: lifecycle.epoch, lifecycle.may_lead if self.config.is_clustered else None),
        )
        progress = ProgressLines(self._loop.time, "opened")
        started = self._loop.time()
        open_all = partial(self.partitions.open_all, progress, self.config.penstock_flush_threads)
        report = await self._workers.run(open_all)
        self._undo.append(self._close_partitions)
        if report.partitions:
            how = "after a clean stop" if report.was_clean else "after a crash"
            log.info(
                "opened %d partition%s %s in %.2f s (scanned %d bytes, truncated %d torn bytes, rebuilt %d indexes)",
                report.partitions,
                "s" * (report.partitions != 1),
                how,
                self._loop.time() - started,
                report.scanned_bytes,
                report.truncated_bytes,
                report.rebuilt_indexes,
            )
        self._opened = image

    async def _close_partitions(self) -> None:
        await self._flushed()
        tell = ProgressLines(self._loop.time, "closed")

        def progress(done: int, total: int) -> None:
            self._closing_since_s = self._loop.time()  # each closed log shows that the disk answers
            tell(done, total)

        epoch = self.membership.lifecycle.epoch
        threads = self.config.penstock_flush_threads
        await self._run_watched(lambda: self.partitions.close_all(progress, threads, epoch))

    def _build_replication(self) -> None:
        membership = self.membership
        self.fetchers = ReplicaFetchers(
            self._loop,
            membership.identity,
            lambda: membership.lifecycle.epoch,
            membership.addresses.for_requests,
            self.partitions,
            self.running,
            self._workers,
            self.clock,
        )
        self.revivals = Revivals(self._loop, self.partitions, self.fetchers)
        self._undo.append(self._stop_fetchers)
        self.isr = IsrKeeper(self.partitions, self.partitions.host, membership.access.alter_partitions, self._loop)

    def _build_coordinators(self) -> None:
        membership = self.membership
        around = Surroundings(self._loop, self.running, membership.access, self.partitions, self._workers, self.clock)
        peers = partial(PeerRequests, self.config.node_id, membership.identity, membership.addresses.for_requests)
        self.coordinators = Coordinators(around, membership.access, self._record_workers, peers)
        self.groups = self.coordinators.groups
        self._undo.append(self._stop_coordinators)

    def _build_apis(self) -> None:
        membership = self.membership
        advertised = {
            name: (endpoint.host, endpoint.port) for name, endpoint in self.config.advertised_listeners.items()
        }
        cluster = ClusterView(
            self.config.node_id,
            self.config.broker_rack,
            self.image,
            advertised,
            lambda: membership.quorum.leader_id,
            membership.neighbours.voter_addresses,
            [endpoint.name for endpoint in self.config.controller_listeners],
            membership.suspects,
            membership.is_cut_off,
        )
        parts = Parts(
            self._loop,
            membership,
            cluster,
            self.partitions,
            self.coordinators,
            self._workers,
            self._record_workers,
            self.clock,
            self._entropy,
        )
        self.apis = Apis(parts)
        preload(self.apis.handlers)

    def _follow_metadata(self) -> None:
        """From here on partitions, fetchers and coordinators receive every change."""
        self._listeners = PartitionListeners(self.partitions, self.fetchers, self.revivals, self.isr, self.coordinators)
        is_hung = self.disk_watch.join(self.partitions.held_since_s, self._listeners.disk_hung)
        self.running.subscribe(self.partitions.broker_config_changed)
        self.partitions.follow(self.image, self.running.current, self._listeners, is_disk_hung=is_hung)
        self.coordinators.start()
        self.membership.machine.listen(MetadataListeners(self.partitions, self.coordinators), self._opened)
        self.isr.start()

    async def _stop_fetchers(self) -> None:
        self.revivals.stop()
        self.isr.stop()
        await self.fetchers.stop()
        await self.partitions.settled()

    async def _stop_coordinators(self) -> None:
        self.coordinators.stop()

    def _build_cleaner(self) -> None:
        """The rewriting process starts with the first log that needs compaction."""
        self._rewriter = self._world.rewriter(
            self._loop, lambda: self.running.current.log_cleaner_io_max_bytes_per_second
        )
        self.cleaning = LogCleaning(self.partitions, self._rewriter, self._disk, self._workers, self.clock)
        self._undo.append(self._close_cleaner)

    async def _close_cleaner(self) -> None:
        self._rewriter.close()

    def _warn_of_missing_brokers(self) -> None:
        """Warns of settings for a larger cluster: each is valid, but makes some producers fail here."""
        if self.config.is_clustered:
            return  # the others may just be late
        brokers = len(self.controller.brokers)
        settings = self.running.current.settings
        factor = self.running.current.default_replication_factor
        if factor > brokers:
            log.warning(
                "default.replication.factor=%d, but there is %d broker: creating a topic without its own replication "
                "factor will fail with INVALID_REPLICATION_FACTOR",
                factor,
                brokers,
            )
        in_sync = cast(int, settings.value("min.insync.replicas"))
        if in_sync > brokers:
            log.warning(
                "min.insync.replicas=%d, but there is %d broker: the effective value is %d, and acks=all waits for no "
                "more",
                in_sync,
                brokers,
                brokers,
            )

    def _start_timers(self) -> None:
        timers = NodeTimers(self._loop, self.partitions.housekeeping, self.cleaning, self.running)
        self._undo.append(timers.stop)
        timers.start(self.config, self.apis.produce.expire)

    async def _serve(self) -> None:
        self.membership.serve(self.apis.dispatcher)
        if self.gateway is not None:
            bootstrap = [(_reachable(self.config.listeners[0].host), self.listeners[0].port)]
            self.gateway.open(bootstrap, {METRICS: self.metrics_page, HEALTH: self.health_page})
        if self.config.is_clustered:
            self.membership.lifecycle.start(self._listeners.lease_over)
            await self.membership.lifecycle.unfenced()

    async def metrics_page(self) -> bytes:
        """The content of /metrics."""
        if self._metrics is None:
            from penstock.node.metrics import metrics_of

            self._metrics = metrics_of(self)
        return await self._metrics.page()

    async def health_page(self) -> bytes:
        """The content of /health."""
        return health_page(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def workers(self) -> ClosableWorkers:
        return self._workers

    @property
    def addresses(self) -> list[str]:
        """The addresses for clients on this machine, one for each listener."""
        return [
            f"{_bracketed(LOCAL.get(endpoint.host, endpoint.host))}:{listener.port}"
            for listener, endpoint in zip(self.listeners, self.config.listeners, strict=False)
        ]

    @property
    def places(self) -> list[str]:
        """The listening addresses for people, one for each listener."""
        return [
            f"{_bracketed(endpoint.host) or '*'}:{listener.port}{EVERY.get(endpoint.host, '')}"
            for listener, endpoint in zip(self.listeners, self.config.listeners, strict=False)
        ]

    # # -- stop ---------------------------------------------------------------------------

    async def stop(self) -> None:
        """Drain connections, make everything stable, write the clean-shutdown marker."""
        if self.is_stopping:
            return
        self.is_stopping = True
        await self.membership.leave()
        # Clients first: no requests may arrive while logs are being closed.
        if self.gateway is not None:
            self._undo.remove(self.gateway.close)
            await self.gateway.close()
        # Members that wait for a rebalance would keep their connections from draining.
        self.groups.stop()
        self._undo.remove(self._close_listeners)
        await self._close_listeners()
        await self._roll_back_unless_hung()

    async def _roll_back_unless_hung(self) -> None:
        """A disk may hang for hours. The next start recovers as after a crash, and loses nothing."""
        steps = [asyncio.ensure_future(self._roll_back()), asyncio.ensure_future(self.disk_watch.hangs())]
        await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        rolling, waiting = steps
        waiting.cancel()
        if rolling.done():
            rolling.result()
            return
        self.is_abandoned = True
        log.critical("the disk under %s hangs: stopping without waiting for it", self.directory.path)

    async def _roll_back(self) -> None:
        """Run every step, also after a failed one: the next start may need the resources. Raises the first error."""
        failure: StorageError | OSError | None = None
        while self._undo:
            try:
                await self._undo.pop()()
            except (StorageError, OSError) as error:
                log.error("while stopping: %s", error)
                failure = failure or error
        if failure is not None:
            raise failure


def no_supervisor(error: Exception) -> None:
    """`when_failed` if no supervisor restarts the node. The log has the reason of the failure."""


def _reachable(host: str) -> str:
    """An address of this machine that reaches a listening host."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
