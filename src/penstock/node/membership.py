"""This node in its cluster: metadata log and image, the quorum that agrees on it, the controller, the registration.

A node alone is a cluster of one: its quorum leads at once, and `open` leaves the image as the last run left it. A node
among others first speaks of nothing but metadata until it is registered (`join`), and takes leave before it stops
(`leave`). Must not know: partitions' data, clients.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

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
from penstock.cluster.raft_store import RaftStore
from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Endpoint
from penstock.core.metadata.features import SUPPORTED
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.requests import Registration
from penstock.core.raft.settings import Settings
from penstock.model.errors import ConfigError
from penstock.net.connection import Connection
from penstock.net.listener import Listener
from penstock.node.neighbours import Neighbours
from penstock.node.world import Directory, World
from penstock.ports.workers import Workers
from penstock.runtime.data_directory import random_id
from penstock.storage.checkpoints import read_clean_epoch
from penstock.storage.group_commit import GroupCommit

log = logging.getLogger(__name__)

Address: TypeAlias = tuple[str, int]
EVERY_INTERFACE = ("", "0.0.0.0", "::")
INCARNATION_BYTES = 16
SUSPECTED_S = 1.0
OPENING_AT_MOST_S = 2.0  # a controller may take to serve, before another node is asked to be it
SHORTEST_ELECTION_TIMEOUT_MS = 50
NEVER_VOTED_KEY = "penstock.voter.never.voted"


class QuorumLane(NamedTuple):
    """How the metadata quorum writes, beside everything else that the node writes."""

    commit: GroupCommit
    workers: Workers


class Membership:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        world: World,
        directory: Directory,
        lane: QuorumLane,
        listeners: Sequence[Listener],
    ) -> None:
        """Opens the metadata log; blocks. Raises StorageError."""
        self._loop = loop
        self._clock = world.clock
        self._config = config
        self._directory = directory
        self._lane = lane
        self._listeners = listeners
        self._is_serving = False
        self._closing_since_s: float | None = None
        self._opened_s = 0.0
        self._passing_on: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self.image = MetadataImage()
        self.machine = MetadataMachine(self.image)
        self.machine.on_cluster_id = self._adopt
        self.machine.on_brokers = self._brokers_changed
        self._store = RaftStore(world.disk, directory.path, world.clock)
        self._store.attach(loop, lane.commit, lane.workers)
        self._heed_operator()
        voters = {voter.node_id: (voter.host, voter.port) for voter in config.controller_quorum_voters}
        self._configured = voters
        if not config.is_clustered:
            self._configured = voters = {config.node_id: self._own_address()}
        self.identity = PeerIdentity(config.node_id, directory.secrets, world.entropy, directory.directory_id)
        self.links = PeerLinks(loop, self.identity, directory.cluster_id, voters, world.clock)
        self.links.own_address = ":".join(map(str, self._own_address()))
        self.quorum = Quorum(
            loop,
            config.node_id,
            voters,
            _raft_settings(config),
            self._store,
            self.links,
            self.machine,
            world.entropy,
            world.clock,
            snapshot_every_bytes=config.metadata_log_max_record_bytes_between_snapshots,
        )
        self.quorum.how_to_vote = f"{NEVER_VOTED_KEY}={directory.directory_id}"
        self.addresses = PeerAddresses(self.image, voters)
        self.neighbours = Neighbours(config.node_id, self.addresses, self.links, self.quorum)
        self.running = RunningConfig(config, self.image)
        self.watch = BrokerWatch(loop, config.node_id, self.image, self.running, world.clock, self.links.lost_since)
        first_addresses = {
            node: where if where[0] not in EVERY_INTERFACE else self._own_address()
            for node, where in voters.items()
            if where[0] not in EVERY_INTERFACE or node == config.node_id
        }
        new_cluster = NewCluster(directory.cluster_id or random_id(world.entropy), first_addresses)
        incarnation_id = world.entropy.random_bytes(INCARNATION_BYTES)
        self.controller = Controller(
            loop,
            config.node_id,
            self.quorum,
            self.image,
            self.running,
            world.entropy,
            self.watch,
            self.links.why_not_at,
            new_cluster,
            incarnation_id,
        )
        self.machine.on_settings = self.running.refresh
        self.access = ControllerAccess(
            self.identity, self.quorum, self.controller, self.addresses.for_requests, _addresses(config)
        )
        self.forwarding = Forwarding(
            self.identity, self.controller, self.quorum, self.addresses.for_requests, self.neighbours.voter_addresses
        )
        self.raft_handler = RaftHandler(
            config.node_id,
            lambda: directory.cluster_id,
            self.quorum.receive,
            self.neighbours.greeted_by,
            directory.directory_id,
            self.neighbours.directory_of_sender,
        )
        self.raft_handler.left_by = self.neighbours.left_by
        self._introductions = IntroductionHandler(
            self.identity, [endpoint.name for endpoint in config.peer_listeners], world.clock.monotonic
        )
        self.lifecycle = BrokerLifecycle(
            loop,
            config,
            self.access,
            self.quorum,
            self.image,
            world.clock,
            Registration(
                config.node_id,
                directory.cluster_id,
                incarnation_id,
                self._endpoints(),
                config.broker_rack,
                read_clean_epoch(world.disk, directory.path),
                features=SUPPORTED,
                directory_id=directory.directory_id,
            ),
        )

    # -- up -----------------------------------------------------------------------------

    def open(self) -> None:
        """Take part in the quorum. The only voter has applied everything then."""
        self.quorum.events.on_active = lambda term: self._activated()
        self.quorum.events.on_inactive = self.controller.deactivated
        self.quorum.events.on_leader = lambda leader, term: self._leader_changed()
        self.quorum.events.on_members = self.neighbours.learn
        self._opened_s = self._loop.time()
        self._loop.call_later(OPENING_AT_MOST_S + 0.1, self._pass_on)
        self.quorum.start()
        self.addresses.look_ahead(self.quorum)
        self.neighbours.learn()
        self.links.on_lost = _both(self.links.on_lost, self.watch.peer_lost)
        if self.image.cluster_id and self._directory.cluster_id not in ("", self.image.cluster_id):
            raise ConfigError(
                f"{self._directory.path}: meta.properties says cluster {self._directory.cluster_id}, "
                f"the metadata log says {self.image.cluster_id}; restore the right files"
            )

    def _activated(self) -> None:
        self.controller.activated()
        self._pass_on()

    def _pass_on(self) -> None:
        """The controller should be a node that serves: while this one opens its logs, it can answer no admin client.

        Once: after a restart of all, the metadata calls brokers live that open their logs as well, and whoever is to
        find that out must stay the controller.
        """
        if self._is_serving or not self._config.is_clustered or not self.quorum.is_active:
            return
        if self._loop.time() < self._opened_s + OPENING_AT_MOST_S:
            return
        serving = [broker for broker in self.image.live_brokers() if broker != self._config.node_id]
        if serving and self._passing_on is None:
            log.info("a node that already serves shall be the controller until this one does")
            self._passing_on = self._loop.create_task(self.quorum.hand_over(serving))

    async def join(self, for_clients: Sequence[type[Handler]]) -> None:
        """Returns when this broker is registered and the image here knows it. `for_clients`: to be served then."""
        if self._config.is_clustered:
            self._serve_peers(for_clients)
            others = [f"{node}@{host}:{port}" for node, (host, port) in self._configured.items()]
            others += [f"{host}:{port}" for host, port in self._config.bootstrap_addresses]
            log.info("looking for the cluster of %s", ", ".join(others))
        await self.lifecycle.register()
        if self._config.is_clustered:
            for sentence in self.running.overruled():
                log.warning("%s", sentence)
            bound = self._own_address()
            written = self._configured.get(self._config.node_id, bound)
            own = [bound] if written[0] in EVERY_INTERFACE else [written, bound]
            telling = self.neighbours.tell(self.access.update_voter, self._directory.directory_id, own)
            self._telling = self._loop.create_task(telling)

    def _serve_peers(self, for_clients: Sequence[type[Handler]]) -> None:
        """Before there is anything to tell clients: they learn that this is a broker, are turned away by closed
        connections when they ask for more, and come again."""
        api_versions = ApiVersionsHandler(self.image, lambda: self.quorum.applied_index)
        api_versions.advertise(for_clients)
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
        """By directory: the word for one disk must not count for the one that replaces it."""
        said, own = self._config.penstock_voter_never_voted, self._directory.directory_id
        if not said or not self._store.is_new:
            return
        if said == own:
            self._store.trust_empty_disk()
            log.warning(
                "%s: this voter votes with an empty disk, as the operator says that it never ran", NEVER_VOTED_KEY
            )
        else:
            log.warning("%s=%s is of another data directory, this one is %s: ignored", NEVER_VOTED_KEY, said, own)

    def writing_since_s(self) -> float | None:
        """When the write of a term, vote or snapshot began that is under way."""
        return self._store.waiting_since_s() if self._closing_since_s is None else self._closing_since_s

    def serve(self, dispatcher: Dispatcher) -> None:
        """Clients, too, from now on."""
        self._is_serving = True
        for listener in self._listeners:
            if self._config.is_clustered:
                listener.hand_over(dispatcher, self.raft_handler.is_peer)
            else:
                listener.start(dispatcher)

    @property
    def handlers(self) -> list[Handler]:
        """What nodes ask each other."""
        return [
            BrokerRegistrationHandler(self.controller.registry),
            BrokerHeartbeatHandler(self.controller.registry),
            AlterPartitionHandler(self.controller.partitions),
            AllocateProducerIdsHandler(self.controller.topics),
            UpdateRaftVoterHandler(self.controller.voters),
        ]

    @property
    def private_handlers(self) -> list[PrivateHandler]:
        """A node that is alone has no peers, so nobody may become one."""
        return [self.raft_handler, self._introductions] if self._config.is_clustered else [self.raft_handler]

    def suspects(self) -> list[int]:
        """Brokers that count as live although their connection here broke a moment ago: the controller is about to
        decide. Empty but for that moment."""
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
        """Nobody of the quorum answers, and not because nobody is there: what this node knows may be out of date."""
        return self._config.is_clustered and not self.lifecycle.may_lead() and self.links.has_silent_peer

    # -- addresses ----------------------------------------------------------------------

    def _own_address(self) -> Address:
        endpoint = self._config.peer_listeners[0]
        advertised = self._config.advertised_listeners.get(endpoint.name)
        if advertised is not None:
            return advertised.host, advertised.port
        host = endpoint.host if endpoint.host not in EVERY_INTERFACE else self._host_name()
        return host, self._port_of(endpoint)

    def _port_of(self, endpoint: Endpoint) -> int:
        names = [other.name for other in (*self._config.listeners, *self._config.controller_listeners)]
        return self._listeners[names.index(endpoint.name)].port

    def _endpoints(self) -> dict[str, Address]:
        """What others are told: as advertised, else as bound, and a host that means every interface by a name."""
        endpoints: dict[str, Address] = {}
        for endpoint in self._config.listeners:
            advertised = self._config.advertised_listeners.get(endpoint.name)
            if advertised is not None:
                endpoints[endpoint.name] = advertised.host, advertised.port
            else:
                host = endpoint.host if endpoint.host not in EVERY_INTERFACE else self._host_name()
                endpoints[endpoint.name] = host, self._port_of(endpoint)
        first = self._config.inter_broker_listener_name
        if first and first.upper() in endpoints:
            return {first.upper(): endpoints.pop(first.upper()), **endpoints}
        return endpoints

    def _host_name(self) -> str:
        """Whoever wrote the list of voters knows how the others reach this node."""
        own = self._configured.get(self._config.node_id)
        return own[0] if own is not None and own[0] not in EVERY_INTERFACE else socket.gethostname()

    def _brokers_changed(self) -> None:
        self.neighbours.learn()
        self.lifecycle.brokers_changed()
        self._pass_on()

    def _leader_changed(self) -> None:
        self.neighbours.learn()
        self.lifecycle.controller_changed()

    def _adopt(self, cluster_id: str) -> None:
        if not self._directory.cluster_id:
            self._directory.adopt(cluster_id)
            self.links.cluster_id = cluster_id

    # -- down ---------------------------------------------------------------------------

    async def leave(self) -> None:
        """Have leaders moved to others first, if there are any."""
        if any(broker != self._config.node_id for broker in self.image.live_brokers()):
            log.info("moving leaders to other brokers")
            await self.lifecycle.leave()
            await self.quorum.hand_over()  # before listeners are closed, and this node is deaf to the others

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
            await self._lane.workers.run(self._store.close)  # syncs: the loop must see whether the disk hangs
        finally:
            self._closing_since_s = None


def _both(first: Callable[[int], None], second: Callable[[int], None]) -> Callable[[int], None]:
    def call(peer: int) -> None:
        first(peer)
        second(peer)

    return call


def _raft_settings(config: BrokerConfig) -> Settings:
    """Whatever the election timeout is, heartbeats come more often and campaigns are tried again sooner."""
    usual = Settings()
    timeout_ms = max(config.controller_quorum_election_timeout_ms, SHORTEST_ELECTION_TIMEOUT_MS)
    return Settings(
        election_timeout_ms=timeout_ms,
        heartbeat_interval_ms=min(usual.heartbeat_interval_ms, timeout_ms // 5),
        lost_leader_grace_ms=min(config.penstock_broker_lost_grace_ms, timeout_ms),
        election_retry_ms=min(usual.election_retry_ms, timeout_ms),
    )


def _addresses(config: BrokerConfig) -> list[Address]:
    """Where the cluster may be found by a node that is not part of it yet."""
    others = [voter for voter in config.controller_quorum_voters if voter.node_id != config.node_id]
    return [(voter.host, voter.port) for voter in others] + config.bootstrap_addresses
