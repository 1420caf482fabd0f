"""The controller: all decisions on the metadata, made by its parts in turn.

Every node has one. It is active on the node that leads the metadata quorum, once that node has applied everything
committed before. A handler may be given one part alone:

    topics       topics, settings, credentials, producer ids    `cluster.topic_decisions`
    partitions   leaders, in-sync replicas, reassignments       `cluster.partition_decisions`
    voters       voters of the quorum and their addresses       `cluster.voter_decisions`
    registry     brokers of the cluster                         `cluster.broker_registry`

The parts share one `cluster.agreement`, so decisions are made one after the other. This module contains what the
controller does on its own: it creates a new cluster, finishes what the previous controller left undone, and fences
silent brokers (found by `broker_watch`). Must not know: sockets, the data of partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from penstock.cluster.agreement import Agreement, ProposingQuorum
from penstock.cluster.broker_registry import BrokerRegistry
from penstock.cluster.broker_watch import BrokerWatch
from penstock.cluster.own_work import OwnWork
from penstock.cluster.partition_decisions import PartitionDecisions
from penstock.cluster.running_config import RunningConfig
from penstock.cluster.topic_decisions import TopicDecisions
from penstock.cluster.topic_policies import ConfiguredPolicies
from penstock.cluster.voter_decisions import QuorumMembers, VoterDecisions, WhyNotAt
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import ClusterCreated, MetadataRecord
from penstock.model.addresses import Address
from penstock.ports.clock import Entropy


class MetadataQuorum(ProposingQuorum, QuorumMembers, Protocol):
    """The part of `cluster.quorum.Quorum` that the controller uses."""


class NewCluster(NamedTuple):
    """The first settings of a cluster that has no id yet."""

    cluster_id: str
    addresses: Mapping[int, Address]
    """The addresses of its voters in this node's file."""


class Controller:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        quorum: MetadataQuorum,
        image: MetadataImage,
        running: RunningConfig,
        entropy: Entropy,
        watch: BrokerWatch,
        why_not_at: WhyNotAt,
        new_cluster: NewCluster,
        incarnation_id: bytes = b"",
    ) -> None:
        """`incarnation_id`: of the broker in this process, if it has one."""
        self.image = image
        self._quorum = quorum
        self._watch = watch
        self._new_cluster_id = new_cluster.cluster_id
        self._agreement = agreement = Agreement(quorum, image)
        self._work = work = OwnWork(loop)
        policies = ConfiguredPolicies(image, running)
        self.topics = TopicDecisions(node_id, agreement, image, running, policies, entropy)
        self.partitions = PartitionDecisions(agreement, image, policies)
        self.voters = VoterDecisions(node_id, agreement, quorum, image, why_not_at, new_cluster.addresses)
        self.registry = BrokerRegistry(
            node_id, incarnation_id, agreement, quorum, image, running, policies, self.voters, watch, work
        )

    @property
    def is_active(self) -> bool:
        return self._agreement.is_active

    @property
    def brokers(self) -> list[int]:
        """The live brokers."""
        return self.topics.brokers

    @property
    def elections(self) -> int:
        return self._agreement.elections

    @property
    def unclean_elections(self) -> int:
        return self._agreement.unclean_elections

    # # -- activation ---------------------------------------------------------------------

    def activated(self) -> None:
        """This node leads the quorum now: session timeouts start here."""
        self.registry.activated()
        if not self.image.cluster_id:
            self._work.run(self._create_cluster())
        members = self._quorum.status.configuration.members
        for broker in self.image.brokers:  # the previous controller may have stopped right after the registration
            if broker not in members:
                self._work.run(self.registry.add_observer(broker))
        self._work.run(self.partitions.elect_leaderless())
        self._watch.start(self)

    def deactivated(self) -> None:
        self._watch.stop()

    async def stop(self) -> None:
        self.deactivated()
        await self._work.stop()

    async def _create_cluster(self) -> None:
        async with self._agreement.turn:
            if not self.image.cluster_id:
                records: list[MetadataRecord] = [ClusterCreated(self._new_cluster_id)]
                if not self.registry.stands_alone:
                    records += [*self.voters.first_addresses(), *self.registry.agreed_settings()]
                await self._agreement.commit(records)

    # # -- for the watch --------------------------------------------------------------------

    def fence(self, broker_id: int) -> None:
        self._work.run(self.registry.fence(broker_id))

    def move_leaders_back(self) -> None:
        self._work.run(self.partitions.move_leaders_back())
