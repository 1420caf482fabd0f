"""A controller that is alone: the real quorum of one voter on a disk of the test's, without sockets."""

from __future__ import annotations

import asyncio

from penstock.cluster.broker_watch import BrokerWatch
from penstock.cluster.controller import Controller, NewCluster
from penstock.cluster.metadata_machine import MetadataMachine
from penstock.cluster.peer_links import PeerLinks
from penstock.cluster.quorum import Quorum
from penstock.cluster.raft_driver import QuorumServer
from penstock.cluster.raft_store import QuorumLane, RaftStore
from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import ClusterCreated, encode_entry
from penstock.core.raft.settings import RaftSettings
from penstock.ports.clock import Clock, Entropy
from penstock.ports.disk import Disk
from penstock.ports.workers import Workers
from penstock.storage.group_commit import GroupCommit
from support.worlds.peers import identity

CLUSTER_ID = "c" * 22


class Alone:
    """Has no peers, and hears of its quorum in the answers."""

    def activated(self, term: int) -> None:
        pass

    def deactivated(self) -> None:
        pass

    def leader_changed(self, leader: int | None, term: int) -> None:
        pass

    def members_changed(self) -> None:
        pass

    def quorum_failed(self, error: Exception) -> None:
        raise error

    def peer_lost(self, peer: int) -> None:
        pass

    def peer_back(self, peer: int) -> None:
        pass

    def directory_of(self, peer: int) -> str:
        return ""


class SoleController:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        directory: str,
        config: BrokerConfig,
        commit: GroupCommit,
        workers: Workers,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.image = MetadataImage()
        self.running = RunningConfig(config, self.image)
        self.machine = MetadataMachine(
            self.image, on_cluster_id=lambda _: None, on_brokers=lambda: None, on_settings=self.running.refresh
        )
        self.store = RaftStore(disk, directory, clock)
        node_id = config.node_id
        links = PeerLinks(loop, identity(node_id), CLUSTER_ID, {}, clock, Alone())
        self.quorum = Quorum(
            loop,
            QuorumServer(node_id, {node_id: ("127.0.0.1", 9092)}, RaftSettings(), 1 << 30, ""),
            self.store,
            QuorumLane(commit, workers),
            links,
            self.machine,
            Alone(),
            entropy,
            clock,
        )
        watch = BrokerWatch(loop, node_id, self.image, self.running, clock, links.lost_since)
        self.controller = Controller(
            loop,
            node_id,
            self.quorum,
            self.image,
            self.running,
            entropy,
            watch,
            links.why_not_at,
            NewCluster(CLUSTER_ID, {}),
        )
        self.quorum.start()
        if not self.image.cluster_id:
            loop.run_until_complete(self.quorum.propose(encode_entry([ClusterCreated(CLUSTER_ID)])))
