"""This broker's membership in the cluster: registration, heartbeats, controlled shutdown.

A broker registers once it can reach the quorum, opens its logs, and sends heartbeats from then on. The first heartbeat
that shows it is caught up unfences it. If heartbeats are not answered for `broker.session.timeout.ms`, or the answers
say that the broker is fenced or receives no metadata, it must assume that other brokers lead: `may_lead` is False.
Before it stops, it asks the controller to move its leaders away. Must not know: partitions, which learn all of this
through the metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from penstock.cluster.controller_access import ControllerAccess
from penstock.config.broker import BrokerConfig
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.requests import Registration
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.clock import Clock
from penstock.wire_client.requests.errors import WireClientError

log = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.1
EAGER_PAUSE_S = 0.1
"""Between heartbeats while a change is expected: fenced, or shutting down."""
TELL_EVERY_S = 5.0
LEAVE_TIMEOUT_S = 10.0
UNFENCE_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 10.0
NO_CONTROLLER_S = 1.5
"""How long a broker that shuts down waits for a controller."""
NOTHING_HEARD = (
    "it is registered, but this node receives no metadata. A voter whose disk is lost has forgotten its votes: stop "
    "it, remove its vote (`penstock cluster remove-voter`), start it, and add it as a voter again when it has caught up"
)
NOT_REACHED = (
    "it is registered, but this node receives no metadata: the other nodes cannot reach it at %s. Check whether they "
    "can connect to that address, or correct listeners and advertised.listeners"
)
ANOTHER_DISK = (
    "this node is a voter, but its data directory is not the one that the quorum knows: its votes are in that "
    "directory. Restore it; or stop the node, remove its vote (`penstock cluster remove-voter`), start it, and add it "
    "as a voter again when it has caught up"
)


class QuorumProgress(Protocol):
    @property
    def last_index(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    @property
    def failure(self) -> Exception | None: ...

    @property
    def leader_id(self) -> int | None: ...


class BrokerLifecycle:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        access: ControllerAccess,
        quorum: QuorumProgress,
        image: MetadataImage,
        clock: Clock,
        registration: Registration,
    ) -> None:
        self._loop = loop
        self._config = config
        self._access = access
        self._quorum = quorum
        self._image = image
        self._clock = clock
        self._registration = registration
        self._heartbeats: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._leaving_s = 0.0
        self._may_go = asyncio.Event()
        self._news = asyncio.Event()
        self._answered_s = clock.monotonic()
        self.heartbeats = 0
        self.heartbeats_failed = 0
        self.is_fenced = True
        self._is_in = asyncio.Event()
        self._is_lease_over = False
        self._on_lease_over: Callable[[], None] | None = None  # None until the broker can lead partitions

    # # -- joining ------------------------------------------------------------------------

    async def register(self) -> None:
        """Return when the metadata here contains this broker's registration. Waits without a limit; raises StorageError
        if this node has left the quorum.
        """
        epoch = await self._be_registered()
        while not await self._reads_of(epoch):
            log.warning("still waiting to join the cluster: %s", self._why_unread())
            # It may have been unregistered meanwhile; a broker that is just slow keeps its epoch.
            epoch = await self._be_registered()
        self._answered_s = self._clock.monotonic()
        if self._config.is_clustered:
            log.info("broker %d is registered with epoch %d", self._config.node_id, epoch)

    def _why_unread(self) -> str:
        if self._quorum.last_index == 0:
            return NOTHING_HEARD
        if self._quorum.leader_id is None:
            return NOT_REACHED % ", ".join(f"{host}:{port}" for host, port in self._registration.endpoints.values())
        return "this node has not received its registration in the metadata"

    async def _be_registered(self) -> int:
        """The epoch, once a controller has granted one."""
        told_s = self._clock.monotonic()
        while True:
            if self._quorum.failure is not None:
                raise self._quorum.failure
            try:
                self._access.broker_epoch = epoch = await self._access.register(self._registration)
                return epoch
            except ApiError as error:
                if error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    reason = "another broker with this node.id is running, or has just stopped"
                elif error.code is ErrorCode.INCONSISTENT_VOTER_SET:
                    reason = ANOTHER_DISK
                elif error.code is ErrorCode.NOT_CONTROLLER:
                    # Name the address tried last, if it did not answer: often it is wrong.
                    tried = error.__cause__ if isinstance(error.__cause__, WireClientError) else None
                    reason = "no majority of the voters can be reached" + (f" ({tried})" if tried else "")
                else:
                    reason = str(error)
            if self._clock.monotonic() - told_s >= TELL_EVERY_S:
                told_s = self._clock.monotonic()
                log.warning("still waiting to join the cluster: %s", reason)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _reads_of(self, epoch: int) -> bool:
        """Whether the metadata here soon contains this broker's epoch."""
        deadline_s = self._clock.monotonic() + READ_TIMEOUT_S
        while not self._is_known(epoch):
            if self._clock.monotonic() >= deadline_s or self._quorum.failure is not None:
                return False
            await self._pause(0.01)
        return True

    def _is_known(self, epoch: int) -> bool:
        known = self._image.brokers.get(self._config.node_id)
        return known is not None and known.epoch >= epoch

    def start(self, on_lease_over: Callable[[], None]) -> None:
        """`on_lease_over`: called when `may_lead` has become False, so that requests do not wait for this leader any
        longer.
        """
        self._on_lease_over = on_lease_over
        self._heartbeats = self._loop.create_task(self._heartbeat())
        self._heartbeats.add_done_callback(_ended)

    async def unfenced(self) -> None:
        """Return when this broker is unfenced and its metadata says so, or after a timeout: it keeps trying."""
        try:
            async with asyncio.timeout(UNFENCE_TIMEOUT_S):
                await self._is_in.wait()
        except TimeoutError:
            log.warning("the controller has not unfenced this broker yet; it keeps asking")

    # # -- heartbeats ---------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._access.broker_epoch

    def brokers_changed(self) -> None:
        """If the metadata says that this broker is fenced, the next heartbeat goes out at once."""
        known = self._image.brokers.get(self._config.node_id)
        if known is None or self.is_fenced:
            return
        if known.is_fenced:
            self._news.set()
        else:
            self._is_in.set()

    def may_lead(self) -> bool:
        """False if the controller may have fenced this broker: another leader may be writing.

        Also False if this node has left the quorum: its heartbeats are answered, but it does not learn of new leaders.
        """
        if self._quorum.failure is not None:
            return False
        return (self._clock.monotonic() - self._answered_s) * 1000 < self._config.broker_session_timeout_ms

    @property
    def unanswered_s(self) -> float:
        """Since the last successful heartbeat was sent."""
        return self._clock.monotonic() - self._answered_s

    def _look_at_lease(self, reason: str = "no controller has answered") -> None:
        if not self._is_lease_over and not self.may_lead():
            self._is_lease_over = True
            if self._quorum.failure is None:
                log.warning(
                    "%s for %d ms: other brokers may lead the partitions that this broker led",
                    reason,
                    self._config.broker_session_timeout_ms,
                )
            if self._on_lease_over is not None:
                self._on_lease_over()

    def quorum_failed(self) -> None:
        """This node no longer receives metadata."""
        self._look_at_lease()

    def controller_changed(self) -> None:
        """The new controller starts its session timeouts from zero: send it a heartbeat at once."""
        self._access.leader_changed()
        self._news.set()

    async def _heartbeat(self) -> None:
        while True:
            sent_s = self._clock.monotonic()
            self.heartbeats += 1
            is_eager = True
            try:
                answer = await self._access.heartbeat(
                    self._quorum.applied_index, want_fence=False, want_shut_down=self._is_leaving
                )
            except ApiError as error:
                self.heartbeats_failed += 1
                self._look_at_lease()
                await self._refused(error)
            else:
                if answer.is_caught_up and not answer.is_fenced:
                    # The lease counts from the time of sending: the answer may have been delayed.
                    self._answered_s = max(self._answered_s, sent_s)
                    self._is_lease_over = not self.may_lead()
                else:  # the controller ignores this heartbeat
                    self._look_at_lease("this broker is fenced" if answer.is_fenced else "no metadata has arrived")
                if answer.is_fenced != self.is_fenced:
                    self.is_fenced = answer.is_fenced
                    log.info("this broker is %s", "fenced" if self.is_fenced else "part of the cluster")
                    if self._image.is_live(self._config.node_id):
                        self._is_in.set()
                if answer.should_shut_down and self._knows_that_it_leaves():
                    self._may_go.set()
                is_eager = answer.is_fenced or not answer.is_caught_up or self._is_leaving
            await self._pause(EAGER_PAUSE_S if is_eager else self._config.broker_heartbeat_interval_ms / 1000)

    def _knows_that_it_leaves(self) -> bool:
        """The metadata with the shutdown also names the new leaders, so clients are redirected while they are still
        served.
        """
        own = self._image.brokers.get(self._config.node_id)
        is_deaf = self._quorum.failure is not None
        return is_deaf or own is None or own.in_controlled_shutdown

    async def _refused(self, error: ApiError) -> None:
        if error.code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED) and not self._is_leaving:
            log.warning("the controller no longer knows this broker (%s): registering again", error.code.name)
            await self.register()
        elif error.code is not ErrorCode.NOT_CONTROLLER:
            log.warning("a heartbeat was refused: %s", error)
        elif self._is_leaving and self._clock.monotonic() - self._leaving_s >= NO_CONTROLLER_S:
            self._may_go.set()  # the other nodes are stopping, too

    async def _pause(self, pause_s: float) -> None:
        self._news.clear()
        timer = self._loop.call_later(pause_s, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()

    # # -- leaving ------------------------------------------------------------------------

    async def leave(self) -> None:
        """Return when this broker leads nothing that another broker could lead, or after a timeout."""
        if self._heartbeats is None or not self._config.controlled_shutdown_enable:
            return
        self._is_leaving = True
        self._leaving_s = self._clock.monotonic()
        self._news.set()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._may_go.wait()
        except TimeoutError:
            log.warning("leadership could not be moved away within %d s; stopping anyway", LEAVE_TIMEOUT_S)

    async def stop(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None
        self._access.close()


def _ended(heartbeats: asyncio.Task[None]) -> None:
    if not heartbeats.cancelled() and (error := heartbeats.exception()) is not None:
        heartbeats.get_loop().call_exception_handler({"message": "heartbeats ended", "exception": error})
