"""One broker process: an ordered list of steps up, the same list down.

`start` and `stop` are the whole life of a node. Everything is built with plain
constructors in the order in which it is needed; nothing looks anything up.
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
from penstock.config.broker import BrokerConfig
from penstock.coordination.groups import OFFSETS_TOPIC, GroupCoordinator
from penstock.model.errors import StorageError
from penstock.net.connection import ConnectionLimits
from penstock.net.listener import Listener
from penstock.net.request_memory import RequestMemory
from penstock.node.handlers import FOR_BROKERS, FOR_CLIENTS, Apis
from penstock.node.health import health_page
from penstock.node.membership import Membership, QuorumLane
from penstock.node.metadata_listeners import MetadataListeners
from penstock.node.preload import preload
from penstock.node.progress import Progress
from penstock.node.timers import Timers
from penstock.node.world import ClosableWorkers, OsWorld, World
from penstock.observability.channel import HEALTH, METRICS
from penstock.replica.cleaning import LogCleaning
from penstock.replica.disk_watch import DiskWatch
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.isr import IsrKeeper
from penstock.replica.partition import Partition
from penstock.replica.revival import Revivals
from penstock.storage.group_commit import GroupCommit
from penstock.storage.probe import probe

if TYPE_CHECKING:
    from penstock.observability.metrics import Metrics

log = logging.getLogger(__name__)

# Hosts that mean more than one address: how a client here reaches them, and what to call them.
LOCAL = {"": "localhost", "0.0.0.0": "127.0.0.1", "::": "::1"}
EVERY = {"": " (every interface)", "0.0.0.0": " (every IPv4 interface)", "::": " (every IPv6 interface)"}


class Node:
    def __init__(self, config: BrokerConfig, world: World | None = None) -> None:
        self.config = config
        self._world = world = OsWorld() if world is None else world
        self.clock = world.clock
        self._entropy = world.entropy
        self._disk = world.disk
        self._undo: list[Callable[[], Awaitable[None]]] = []
        self.listeners: list[Listener] = []
        self.doors = world.doors(config)
        self.is_stopping = False
        self.is_abandoned = False
        """It was stopped while its disk hung: threads still wait for it, and logs may not be closed."""
        self._closing_since_s: float | None = None
        self.started_ms = self.clock.now_ms()
        self._metrics: Metrics | None = None
        self.when_failed: Callable[[Exception], None] = lambda error: None
        """Told when this node can take no further part in its cluster: it should be stopped."""

    # -- up -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve. Raises ConfigError or StorageError, with everything undone. Waits for a quorum if others are named."""
        self._loop = asyncio.get_running_loop()
        try:
            self._open_directory()
            self._bind_listeners()
            await self._bind_doors()
            self._start_threads()
            self._open_metadata()
            await self.membership.join(FOR_CLIENTS)
            await self._open_partitions()
            self._check_quorum()
            self._build_apis()
            self._build_cleaner()
            self._warn_of_missing_brokers()
            self._start_timers()
            await self._serve()
            self._check_quorum()
            if self._watchdog is not None:
                self._watchdog.started()
        except BaseException:
            with suppress(StorageError, OSError):  # what kept it from starting is said; this was logged
                await self._roll_back()
            raise

    def _check_quorum(self) -> None:
        """One that failed while we started has told nobody, and a node deaf to the metadata must not serve."""
        failure = self.membership.quorum.failure
        if self.config.is_clustered and failure is not None:
            raise failure

    def _open_directory(self) -> None:
        self.directory = self._world.open_directory(self.config)
        self._undo.append(self._close_directory)

    async def _close_directory(self) -> None:
        self.directory.close()

    def _bind_listeners(self) -> None:
        """Early, so that a taken port is said at once; clients wait in the backlog until we serve."""
        self.request_memory = RequestMemory(self.config.queued_max_request_bytes, self._loop.time)
        limits = ConnectionLimits(
            self.config.socket_request_max_bytes,
            self.config.penstock_requests_in_flight_per_connection,
            PIPELINED,
            frame_limits((*FOR_CLIENTS, *FOR_BROKERS), self.config.socket_request_max_bytes),
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

    async def _bind_doors(self) -> None:
        if self.doors is not None:
            self._undo.append(self.doors.close)
            await self.doors.bind()

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
        """Blocks: one may still wait for the disk."""
        self._workers.close()
        self._quorum_workers.close()

    async def _run_watched(self, work: Callable[[], None]) -> None:
        """In a thread: the disk may hang in this too, and then the loop must be free to find out."""
        self._closing_since_s = self._loop.time()
        try:
            await self._disk_lane.run(work)
        finally:
            self._closing_since_s = None

    async def _flushed(self) -> None:
        """Every flush that was asked for is done."""
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
        )
        self._undo.append(self.membership.close)
        if self.config.is_clustered:
            # Deaf to the metadata it would go on as if nothing had changed. Alone there is nobody to fall behind.
            self.membership.quorum.events.on_failed = self._quorum_failed
        self.membership.open()
        self.image = self.membership.image
        self.running = self.membership.running
        self.controller = self.membership.controller
        self._watch_disk()

    def _watch_disk(self) -> None:
        """One directory, one disk: what hangs on it hangs for all logs, also that of the metadata."""
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
        )
        self.disk_watch.on_change.append(self.membership.quorum.disk_hung)
        # Until everything that needs the disk has ended, the threads included.
        self._undo.insert(self._undo.index(self._stop_threads), self._stop_watching_disk)
        self.disk_watch.start()

    async def _stop_watching_disk(self) -> None:
        self.disk_watch.stop()

    def _quorum_failed(self, error: Exception) -> None:
        self.membership.lifecycle.quorum_failed()
        self.when_failed(error)

    async def _open_partitions(self) -> None:
        """Of a copy of the image, elsewhere than on the loop: other nodes wait for this one's votes meanwhile."""
        machine = self.membership.machine
        image = machine.copy() if self.config.is_clustered else self.image
        self.partitions = HostedPartitions(
            self._disk,
            self.directory.path,
            self.running.current,
            image,
            self.commit,
            self._workers,
            self.clock,
            self._entropy,
        )
        lifecycle = self.membership.lifecycle
        self.partitions.host.own_broker_epoch = lambda: lifecycle.epoch
        if self.config.is_clustered:
            self.partitions.host.lease = lifecycle.may_lead
        progress = Progress(self._loop.time, "opened")
        started = self._loop.time()
        open_all = partial(self.partitions.open_all, progress, self.config.penstock_flush_threads)
        report = await self._workers.run(open_all)
        self._undo.append(self._close_partitions)
        if report.partitions:
            how = "after a clean stop" if report.was_clean else "after a crash"
            log.info(
                "opened %d partition%s %s in %.2f s (scanned %d bytes, cut %d torn bytes, rebuilt %d indexes)",
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
        tell = Progress(self._loop.time, "closed")

        def progress(done: int, total: int) -> None:
            self._closing_since_s = self._loop.time()  # a log that was closed shows a disk that answers
            tell(done, total)

        epoch = self.membership.lifecycle.epoch
        threads = self.config.penstock_flush_threads
        await self._run_watched(lambda: self.partitions.close_all(progress, threads, epoch))

    def _build_apis(self) -> None:
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
        self.revivals.on_revived = self._role_changed
        self._undo.append(self._stop_fetchers)
        self.isr = IsrKeeper(self.partitions, self.partitions.host, membership.access.alter_partitions, self._loop)
        self.groups = GroupCoordinator(
            self._loop,
            self.running,
            membership.access,
            self.partitions,
            self._workers,
            self._record_workers,
            self.clock,
        )
        self._undo.append(self._stop_groups)
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
        self.apis = Apis(
            self._loop,
            membership,
            cluster,
            self.partitions,
            self.groups,
            self._workers,
            self._record_workers,
            self.clock,
            self._entropy,
        )
        preload(self.apis.handlers)
        self._follow_metadata()

    def _follow_metadata(self) -> None:
        """From here on partitions, fetchers and coordinators hear of every change."""
        self.partitions.on_role = self._role_changed
        self.partitions.host.on_offline = self._cannot_be_used
        self.partitions.host.on_append_failed = self.fetchers.withdrawals.cannot_append
        self.disk_watch.waiting_since_s.append(self.partitions.held_since_s)
        self.disk_watch.on_change.append(self._disk_hung)
        self.partitions.host.is_disk_hung = self.disk_watch.is_hung
        self.membership.lifecycle.on_lease_over = self._lease_over
        self.running.subscribe(self.partitions.broker_config_changed)
        if self.partitions.broker is not self.running.current:  # it has changed while they were opened
            self.partitions.broker_config_changed(self.running.current)
        self.partitions.use_image(self.image)
        for partition in self.partitions:
            self._role_changed(partition)
        self.groups.start()
        listener = MetadataListeners(self.partitions, self.groups)
        self.membership.machine.listen(listener, self._opened)
        self.isr.start()

    def _cannot_be_used(self, partition: Partition) -> None:
        self.fetchers.withdrawals.look_at(partition)
        self.revivals.look_at(partition)

    def _disk_hung(self, is_hung: bool) -> None:
        self.partitions.host.is_disk_hung = is_hung
        if is_hung:
            self.partitions.disk_hung()
        for partition in self.partitions:
            self.fetchers.withdrawals.look_at(partition)

    def _lease_over(self) -> None:
        for partition in self.partitions:
            partition.lease_over()

    def _role_changed(self, partition: Partition) -> None:
        self.fetchers.role_changed(partition)
        if partition.topic == OFFSETS_TOPIC:
            self.groups.role_changed(partition)

    async def _stop_fetchers(self) -> None:
        self.revivals.stop()
        self.isr.stop()
        await self.fetchers.stop()
        await self.partitions.settled()

    async def _stop_groups(self) -> None:
        self.groups.stop()

    def _build_cleaner(self) -> None:
        """Nothing runs before a log is due: the process that rewrites is started by the first one."""
        self._rewriter = self._world.rewriter(
            self._loop, lambda: self.running.current.log_cleaner_io_max_bytes_per_second
        )
        self.cleaning = LogCleaning(self.partitions, self._rewriter, self._disk, self._workers, self.clock)
        self._undo.append(self._close_cleaner)

    async def _close_cleaner(self) -> None:
        self._rewriter.close()

    def _warn_of_missing_brokers(self) -> None:
        """Settings made for a cluster: each is valid, and each stops somebody's producer here."""
        if self.config.is_clustered:
            return  # the others may just be late
        brokers = len(self.controller.brokers)
        settings = self.running.current.settings
        factor = self.running.current.default_replication_factor
        if factor > brokers:
            log.warning(
                "default.replication.factor=%d, but there is %d broker: topics that leave the factor to the broker "
                "will be refused with INVALID_REPLICATION_FACTOR",
                factor,
                brokers,
            )
        in_sync = cast(int, settings.value("min.insync.replicas"))
        if in_sync > brokers:
            log.warning(
                "min.insync.replicas=%d, but there is %d broker: it counts as %d, and acks=all waits for no more",
                in_sync,
                brokers,
                brokers,
            )

    def _start_timers(self) -> None:
        timers = Timers(self._loop, self.partitions.housekeeping, self.cleaning, self.running)
        self._undo.append(timers.stop)
        timers.start(self.config, self.apis.produce.expire)

    async def _serve(self) -> None:
        self.membership.serve(self.apis.dispatcher)
        if self.doors is not None:
            bootstrap = [(_reachable(self.config.listeners[0].host), self.listeners[0].port)]
            self.doors.open(bootstrap, {METRICS: self.metrics_page, HEALTH: self.health_page})
        if self.config.is_clustered:
            self.membership.lifecycle.start()
            await self.membership.lifecycle.unfenced()

    async def metrics_page(self) -> bytes:
        """What /metrics shows."""
        if self._metrics is None:
            from penstock.node.metrics import metrics_of

            self._metrics = metrics_of(self)
        return await self._metrics.page()

    async def health_page(self) -> bytes:
        """What /health shows."""
        return health_page(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def workers(self) -> ClosableWorkers:
        return self._workers

    @property
    def addresses(self) -> list[str]:
        """What a client on this machine may use, one a listener."""
        return [
            f"{_bracketed(LOCAL.get(endpoint.host, endpoint.host))}:{listener.port}"
            for listener, endpoint in zip(self.listeners, self.config.listeners, strict=False)
        ]

    @property
    def places(self) -> list[str]:
        """Where it listens, for people, one a listener."""
        return [
            f"{_bracketed(endpoint.host) or '*'}:{listener.port}{EVERY.get(endpoint.host, '')}"
            for listener, endpoint in zip(self.listeners, self.config.listeners, strict=False)
        ]

    # -- down ---------------------------------------------------------------------------

    async def stop(self) -> None:
        """Drain connections, make everything stable, leave the clean-shutdown mark."""
        if self.is_stopping:
            return
        self.is_stopping = True
        await self.membership.leave()
        # Clients first: nothing new may arrive while logs are being closed.
        if self.doors is not None:
            self._undo.remove(self.doors.close)
            await self.doors.close()
        # Members that wait for a rebalance would keep their connections from draining.
        self.groups.stop()
        self._undo.remove(self._close_listeners)
        await self._close_listeners()
        await self._roll_back_unless_hung()

    async def _roll_back_unless_hung(self) -> None:
        """A disk may hang for hours. The next start recovers as after a crash, and nothing is lost by that."""
        hung = asyncio.Event()
        self.disk_watch.on_change.append(lambda is_hung: hung.set() if is_hung else None)
        if self.disk_watch.is_hung:
            hung.set()
        steps = [asyncio.ensure_future(self._roll_back()), asyncio.ensure_future(hung.wait())]
        await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        rolling, waiting = steps
        waiting.cancel()
        if rolling.done():
            rolling.result()
            return
        self.is_abandoned = True
        log.critical("the disk under %s hangs: stopping without waiting for it", self.directory.path)

    async def _roll_back(self) -> None:
        """Every step, also after one that failed: the next start may want what they hold. Raises the first error."""
        failure: StorageError | OSError | None = None
        while self._undo:
            try:
                await self._undo.pop()()
            except (StorageError, OSError) as error:
                log.error("while stopping: %s", error)
                failure = failure or error
        if failure is not None:
            raise failure


def _reachable(host: str) -> str:
    """An address of this machine for a host to listen on."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
