"""Observes the metadata quorum and passes votes, terms, entries and snapshots to its judges.

Knows the names in production code. Must not know: partitions, clients, faults. Invariant: listening changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.cluster.metadata_machine import MetadataMachine
from penstock.cluster.quorum import Quorum
from penstock.cluster.raft_driver import RaftDriver
from penstock.core.raft.configuration import Configuration
from penstock.core.raft.exchange import Leadership
from penstock.core.raft.messages import Entry, EntryKind, Message, RequestVote, VoteResponse
from penstock.core.raft.node import RaftNode
from penstock.core.raft.states import Role
from penstock.sim.checks.platter import PlatterChecker
from penstock.sim.checks.quorum import QuorumChecker
from penstock.sim.checks.snapshots import SnapshotChecker
from penstock.sim.cluster import SimCluster
from penstock.sim.judges.judging import Judging
from penstock.sim.places import replaced

MACHINE = "penstock.cluster.metadata_machine:MetadataMachine"
DRIVER = "penstock.cluster.raft_driver:RaftDriver"


class QuorumEars:
    def __init__(
        self, cluster: SimCluster, judging: Judging, platters: PlatterChecker, speaker: Callable[[], int]
    ) -> None:
        """`speaker`: returns the node whose code runs."""
        self._cluster = cluster
        self._judging = judging
        self._platters = platters
        self._speaker = speaker
        self.quorum = QuorumChecker()
        self.snapshots = SnapshotChecker()

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, make in (
                (f"{MACHINE}.apply", self._overhear_apply),
                (f"{MACHINE}.restore", self._overhear_restore),
                ("penstock.cluster.quorum:Quorum.start", self._overhear_start),
                (f"{DRIVER}._send", self._overhear_votes),
                (f"{DRIVER}._apply", self._overhear_commit),
                (f"{DRIVER}._leadership_changed", self._overhear_leadership),
                ("penstock.core.raft.election:campaign", self._overhear_campaign),
            ):
                stack.enter_context(replaced(place, make))
            yield

    def _overhear_apply(self, apply: Any) -> Any:
        def overheard(machine: MetadataMachine, index: int, data: bytes) -> None:
            with self._judging.judging():
                self.quorum.applied(self._speaker(), index, bytes(data))
                if self._platters.is_first(index):
                    self._platters.applied(index, self._voters_since(index))
            self.snapshots.applied(index, bytes(data))
            apply(machine, index, data)

        return overheard

    def _voters_since(self, index: int) -> list[tuple[int, ...]]:
        """The voters that may have committed the entry, as known to the leader, which applies it first."""
        node = self._cluster.nodes[self._speaker()]
        configurations = node.membership.quorum._driver.core.node.configurations
        return [configuration.voters for configuration in configurations.since(index)]

    def _overhear_restore(self, restore: Any) -> Any:
        def overheard(machine: MetadataMachine, index: int, data: bytes) -> None:
            node = self._speaker()
            self.quorum.restored(node, index)
            with self._judging.judging():
                self.snapshots.restored(node, index, bytes(data))
            restore(machine, index, data)

        return overheard

    def _overhear_start(self, start: Any) -> Any:
        def overheard(quorum: Quorum) -> None:
            node = self._speaker()
            with self._judging.judging():
                self.quorum.started(node, quorum.term)
            start(quorum)

        return overheard

    def _overhear_votes(self, send: Any) -> Any:
        def overheard(driver: RaftDriver, messages: list[Message]) -> None:
            for message in messages:
                is_vote = isinstance(message, VoteResponse) and message.granted
                if is_vote or isinstance(message, RequestVote):  # a candidate votes for itself before it requests votes
                    with self._judging.judging():
                        self.quorum.voted(
                            driver.node_id, message.term, message.recipient if is_vote else driver.node_id
                        )
                        self._platters.voted(driver.node_id, message.term)
            send(driver, messages)

        return overheard

    def _overhear_commit(self, apply: Any) -> Any:
        def overheard(driver: RaftDriver, entry: Entry) -> None:
            self.quorum.committed(entry.index, entry.term)
            if entry.kind is EntryKind.CONFIGURATION:
                self.quorum.configured(entry.index, Configuration.decode(entry.data).voters)
            apply(driver, entry)

        return overheard

    def _overhear_leadership(self, changed: Any) -> Any:
        def overheard(driver: RaftDriver, leadership: Leadership) -> None:
            if leadership.role is Role.LEADER:
                with self._judging.judging():
                    self.quorum.elected(driver.node_id, leadership.term, driver.core.node.log.last_index)
            changed(driver, leadership)

        return overheard

    def _overhear_campaign(self, campaign: Any) -> Any:
        def overheard(node: RaftNode, **named: Any) -> None:
            with self._judging.judging():
                self.quorum.campaigns(self._speaker(), node.term + 1, self._cluster.world.loop.world_time())
            campaign(node, **named)

        return overheard
