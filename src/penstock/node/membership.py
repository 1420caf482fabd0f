"""This node in its cluster: metadata log and image, the metadata quorum, the controller, the registration.

A single node is a cluster of one: its quorum leads at once, and `open` leaves the image as the last run left it. A node
of a larger cluster first exchanges only metadata until it is registered (`join`), and moves its leaders away before it
stops (`leave`). Must not know: partitions' data, clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.api.dispatch import Dispatcher
from penstock.api.forwarding import Forwarding
from penstock.api.handler import Handler, PrivateHandler
from penstock.api.handlers.allocate_producer_ids import AllocateProducerIdsHandler
from penstock.api.handlers.alter_partition import AlterPartitionHandler
from penstock.api.handlers.api_versions import ApiVersionsHandler
from penstock.api.handlers.broker_heartbeat import BrokerHeartbeatHandler
from penstock.api.handlers.broker_registration import BrokerRegistrationHandler
from penstock.api.handlers.introduction import IntroductionHandler
from penstock.api.handlers.raft import RaftHandler
from penstock.api.handlers.update_raft_voter import UpdateRaftVoterHandler
from penstock.api.request_times import RequestTimes
from penstock.broker_link.introduction import PeerIdentity
from penstock.cluster.broker_lifecycle import BrokerLifecycle
from penstock.cluster.broker_watch import BrokerWatch
from penstock.cluster.controller import Controller, NewCluster
from penstock.cluster.controller_access import ControllerAccess
from penstock.cluster.metadata_machine import MetadataMachine
from penstock.cluster.peer_addresses import PeerAddresses
from penstock.cluster.peer_links import PeerLinks
from penstock.cluster.quorum import Quorum
from penstock.cluster.raft_driver import QuorumServer
from penstock.cluster.raft_store import QuorumLane, RaftStore
from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.core.metadata.features import SUPPORTED
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.requests import Registration
from penstock.core.raft.settings import RaftSettings
from penstock.model.addresses import Address
from penstock.model.errors import ConfigError
from penstock.net.connection import Connection
from penstock.net.listener import Listener
from penstock.node.neighbours import Neighbours
from penstock.node.own_addresses import OwnAddresses
from penstock.node.world import Directory, World
from penstock.runtime.data_directory import random_id
from penstock.storage.checkpoints import read_clean_epoch

log = logging.getLogger(__name__)

INCARNATION_BYTES = 16
SUSPECTED_S = 1.0
OPENING_AT_MOST_S = 2.0  # how long a controller may start without serving before it hands over
SHORTEST_ELECTION_TIMEOUT_MS = 50
NEVER_VOTED_KEY = "penstock.voter.never.voted"


class Membership:
    """Also receives the events of the quorum (`QuorumEvents`) and of the links (`PeerEvents`), from `open` on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        world: World,
        directory: Directory,
        lane: QuorumLane,
        listeners: Sequence[Listener],
        when_failed: Callable[[Exception], None],
    ) -> None:
        """Opens the metadata log; blocks. Raises StorageError. `when_failed` is called when this node of a
        cluster receives no more metadata, because it would go on with outdated metadata.
        """
        self._loop = loop
        self._world = world
        self._clock = world.clock
        self._config = config
        self._directory = directory
        self._lane = lane
        self._listeners = listeners
        self._when_failed = when_failed
        self._own = OwnAddresses(config, listeners)
        self._incarnation_id = b""
        self._is_serving = False
        self._closing_since_s: float | None = None
        self._opened_s = 0.0
        self._passing_on: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._open_log()
        self._build_quorum()
        self._build_controller()
        self._build_access()
        self._build_handlers_for_nodes()
        self._build_lifecycle()

    # # -- parts, in the order of their dependencies -------------------------------------------

    def _open_log(self) -> None:
        self.image = MetadataImage()
        self.running = RunningConfig(self._config, self.image)
        self.machine = MetadataMachine(
            self.image,
            on_cluster_id=self._adopt,
            on_brokers=self._brokers_changed,
            on_settings=self.running.refresh,
        )
        self._store = RaftStore(self._world.disk, self._directory.path, self._clock)
        self._heed_operator()

    def _build_quorum(self) -> None:
        config, directory, voters = self._config, self._directory, self._own.voters
        self.identity = PeerIdentity(config.node_id, directory.secrets, self._world.entropy, directory.directory_id)
        self.links = PeerLinks(
            self._loop,
            self.identity,
            directory.cluster_id,
            voters,
            self._clock,
            self,
            ":".join(map(str, self._own.for_nodes)),
        )
        server = QuorumServer(
            config.node_id,
            voters,
            _raft_settings(config),
            config.metadata_log_max_record_bytes_between_snapshots,
            f"{NEVER_VOTED_KEY}={directory.directory_id}",
        )
        self.quorum = Quorum(
            self._loop,
            server,
            self._store,
            self._lane,
            self.links,
            self.machine,
            self,
            self._world.entropy,
            self._clock,
        )
        self.addresses = PeerAddresses(self.image, voters)
        self.neighbours = Neighbours(config.node_id, self.addresses, self.links, self.quorum)

    def _build_controller(self) -> None:
        entropy = self._world.entropy
        self.watch = BrokerWatch(
            self._loop, self._config.node_id, self.image, self.running, self._clock, self.links.lost_since
        )
        new_cluster = NewCluster(self._directory.cluster_id or random_id(entropy), self._own.of_first_voters)
        self._incarnation_id = entropy.random_bytes(INCARNATION_BYTES)
        self.controller = Controller(
            self._loop,
            self._config.node_id,
            self.quorum,
            self.image,
            self.running,
            entropy,
            self.watch,
            self.links.why_not_at,
            new_cluster,
            self._incarnation_id,
        )

    def _build_access(self) -> None:
        """Access to the controller, here or over a link."""
        address_of = self.addresses.for_requests
        self.access = ControllerAccess(
            self.identity, self.quorum, self.controller, address_of, _addresses(self._config)
        )
        self.forwarding = Forwarding(
            self.identity, self.controller, self.quorum, address_of, self.neighbours.voter_addresses
        )

    def _build_handlers_for_nodes(self) -> None:
        self.handlers: list[Handler] = [
            BrokerRegistrationHandler(self.controller.registry),
            BrokerHeartbeatHandler(self.controller.registry),
            AlterPartitionHandler(self.controller.partitions),
            AllocateProducerIdsHandler(self.controller.topics),
            UpdateRaftVoterHandler(self.controller.voters),
        ]
        """APIs between nodes: none of them is advertised to clients."""
        self.raft_handler = RaftHandler(
            self._config.node_id,
            lambda: self._directory.cluster_id,
            self.quorum.receive,
            self.neighbours,
            self._directory.directory_id,
        )
        self._introductions = IntroductionHandler(
            self.identity, [endpoint.name for endpoint in self._config.peer_listeners], self._clock.monotonic
        )

    def _build_lifecycle(self) -> None:
        registration = Registration(
            self._config.node_id,
            self._directory.cluster_id,
            self._incarnation_id,
            self._own.endpoints,
            self._config.broker_rack,
            read_clean_epoch(self._world.disk, self._directory.path),
            features=SUPPORTED,
            directory_id=self._directory.directory_id,
        )
        self.lifecycle = BrokerLifecycle(
            self._loop, self._config, self.access, self.quorum, self.image, self._clock, registration
        )

    # # -- start --------------------------------------------------------------------------

    def open(self) -> None:
        """Join the quorum. A sole voter has applied everything when this returns."""
        self._opened_s = self._loop.time()
        self._loop.call_later(OPENING_AT_MOST_S + 0.1, self._pass_on)
        self.quorum.start()
        self.addresses.look_ahead(self.quorum)
        self.neighbours.learn()
        if self.image.cluster_id and self._directory.cluster_id not in ("", self.image.cluster_id):
            raise ConfigError(
                f"{self._directory.path}: meta.properties says cluster {self._directory.cluster_id}, "
                f"the metadata log says {self.image.cluster_id}; restore the right files"
            )

    def _pass_on(self) -> None:
        """Hand the controller over to a node that serves: while this node opens its logs, it cannot answer admin
        clients.

        Only once: after a restart of all nodes, the metadata lists brokers as live although they are still opening
        their logs. The next controller has to find that out, so it must stay.
        """
        if self._is_serving or not self._config.is_clustered or not self.quorum.is_active:
            return
        if self._loop.time() < self._opened_s + OPENING_AT_MOST_S:
            return
        serving = [broker for broker in self.image.live_brokers() if broker != self._config.node_id]
        if serving and self._passing_on is None:
            log.info("handing the controller over to a node that already serves")
            self._passing_on = self._loop.create_task(self.quorum.hand_over(serving))

    async def join(self, for_clients: Sequence[type[Handler]]) -> None:
        """Return when this broker is registered and the image here contains it. `for_clients`: the APIs served then."""
        if self._config.is_clustered:
            self._serve_peers(for_clients)
            others = [f"{node}@{host}:{port}" for node, (host, port) in self._own.voters.items()]
            others += [f"{host}:{port}" for host, port in self._config.bootstrap_addresses]
            log.info("looking for the cluster of %s", ", ".join(others))
        await self.lifecycle.register()
        if self._config.is_clustered:
            for sentence in self.running.overruled():
                log.warning("%s", sentence)
            telling = self.neighbours.tell(self.access.update_voter, self._directory.directory_id, self._own.of_voter)
            self._telling = self._loop.create_task(telling)

    def _serve_peers(self, for_clients: Sequence[type[Handler]]) -> None:
        """Before this node serves clients, it tells them only that it is a broker. Other requests close the connection,
        so that clients try again.
        """
        api_versions = ApiVersionsHandler(self.image, lambda: self.quorum.applied_index, for_clients)
        nodes = Dispatcher(
            [api_versions, *self.handlers],
            RequestTimes(self._clock),
            self.forwarding,
            self.private_handlers,
            is_complete=False,
        )

        def dispatch(connection: Connection, slot: int, frame: memoryview) -> None:
            if nodes.knows(frame):
                nodes(connection, slot, frame)
            else:
                connection.abort()

        for listener in self._listeners:
            listener.start(dispatch)

    def _heed_operator(self) -> None:
        """By directory id: a setting for one disk must not apply to its replacement."""
        said, own = self._config.penstock_voter_never_voted, self._directory.directory_id
        if not said or not self._store.is_new:
            return
        if said == own:
            self._store.trust_empty_disk()
            log.warning(
                "%s: this voter votes with an empty disk, because the operator has confirmed that it never ran",
                NEVER_VOTED_KEY,
            )
        else:
            log.warning(
                "%s=%s names another data directory and is ignored; this directory is %s", NEVER_VOTED_KEY, said, own
            )

    def writing_since_s(self) -> float | None:
        """The start time of the current write of a term, vote or snapshot."""
        return self._store.waiting_since_s() if self._closing_since_s is None else self._closing_since_s

    def serve(self, dispatcher: Dispatcher) -> None:
        """Serve clients, too, from now on."""
        self._is_serving = True
        for listener in self._listeners:
            if self._config.is_clustered:
                listener.hand_over(dispatcher, self.raft_handler.is_peer)
            else:
                listener.start(dispatcher)

    @property
    def private_handlers(self) -> list[PrivateHandler]:
        """A single node has no peers: no other node may introduce itself."""
        return [self.raft_handler, self._introductions] if self._config.is_clustered else [self.raft_handler]

    def suspects(self) -> list[int]:
        """Brokers that still count as live although their connection broke a moment ago: the controller will decide
        soon.
        """
        if not self._config.is_clustered:
            return []
        now_s, lost_since = self._clock.monotonic(), self.links.lost_since
        return [
            broker.broker_id
            for broker in self.image.brokers.values()
            if not broker.is_fenced
            and (lost_s := lost_since(broker.broker_id)) is not None
            and now_s - lost_s < SUSPECTED_S
        ]

    def is_cut_off(self) -> bool:
        """The quorum is silent, and at least one peer does not answer: this node's metadata may be outdated."""
        return self._config.is_clustered and not self.lifecycle.may_lead() and self.links.has_silent_peer

    # # -- events -------------------------------------------------------------------------

    def activated(self, term: int) -> None:
        self.controller.activated()
        self._pass_on()

    def deactivated(self) -> None:
        self.controller.deactivated()

    def leader_changed(self, leader: int | None, term: int) -> None:
        self.neighbours.learn()
        self.lifecycle.controller_changed()

    def members_changed(self) -> None:
        self.neighbours.learn()

    def quorum_failed(self, error: Exception) -> None:
        if self._config.is_clustered:  # a single node cannot fall behind
            self.lifecycle.quorum_failed()
            self._when_failed(error)

    def peer_lost(self, peer: int) -> None:
        self.quorum.peer_lost(peer)
        self.watch.peer_lost(peer)

    def peer_back(self, peer: int) -> None:
        self.quorum.peer_back(peer)

    def directory_of(self, peer: int) -> str:
        return self.neighbours.directory_of_voter(peer)

    def _brokers_changed(self) -> None:
        self.neighbours.learn()
        self.lifecycle.brokers_changed()
        self._pass_on()

    def _adopt(self, cluster_id: str) -> None:
        if not self._directory.cluster_id:
            self._directory.adopt(cluster_id)
            self.links.cluster_id = cluster_id

    # # -- stop ---------------------------------------------------------------------------

    async def leave(self) -> None:
        """If there are other brokers, first move leaders to them."""
        if any(broker != self._config.node_id for broker in self.image.live_brokers()):
            log.info("moving leaders to other brokers")
            await self.lifecycle.leave()
            await self.quorum.hand_over()  # needs messages from other nodes: before the listeners close

    async def close(self) -> None:
        for task in (self._passing_on, self._telling):
            if task is not None:
                task.cancel()
        await self.lifecycle.stop()
        self.forwarding.close()
        await self.controller.stop()
        await self.machine.settle()
        await self.quorum.stop()
        self._closing_since_s = self._loop.time()
        try:
            # closing syncs the log: the loop must see whether the disk hangs
            await self._lane.workers.run(self._store.close)
        finally:
            self._closing_since_s = None


def _raft_settings(config: BrokerConfig) -> RaftSettings:
    """Heartbeats and campaign retries are always shorter than the election timeout."""
    usual = RaftSettings()
    timeout_ms = max(config.controller_quorum_election_timeout_ms, SHORTEST_ELECTION_TIMEOUT_MS)
    return RaftSettings(
        election_timeout_ms=timeout_ms,
        heartbeat_interval_ms=min(usual.heartbeat_interval_ms, timeout_ms // 5),
        lost_leader_grace_ms=min(config.penstock_broker_lost_grace_ms, timeout_ms),
        election_retry_ms=min(usual.election_retry_ms, timeout_ms),
    )


def _addresses(config: BrokerConfig) -> list[Address]:
    """Addresses at which a node outside the cluster may find it."""
    others = [voter for voter in config.controller_quorum_voters if voter.node_id != config.node_id]
    return [(voter.host, voter.port) for voter in others] + config.bootstrap_addresses
