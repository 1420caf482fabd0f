"""The cluster as the metadata quorum knows it: this member's state, and the view of the active controller.

Only the active controller reports facts about the whole cluster. Other brokers report 0, or no sample for metrics with
labels, so sums over the brokers are correct here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

from penstock.api.forwarding import Forwarding
from penstock.cluster.broker_lifecycle import BrokerLifecycle
from penstock.cluster.broker_watch import BrokerWatch
from penstock.cluster.controller import Controller
from penstock.cluster.peer_links import PeerLinks
from penstock.cluster.proposals import BOUNDS_S
from penstock.cluster.quorum import Quorum
from penstock.core.metadata.image import NO_LEADER, MetadataImage
from penstock.core.raft.states import Role
from penstock.observability.exposition import Family, HistogramSample, Sample, counter, gauge, histogram

_ROLES = tuple(role.value for role in Role)


class Census(NamedTuple):
    """Counts over all partitions of the image."""

    partitions: int
    leaderless: int
    not_preferred: int
    reassigning: int
    leaders_by_broker: Counter[int]
    partitions_by_broker: Counter[int]


class PartitionCensus:
    """Counts again only when partitions have changed."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._version = -1
        self._counted = Census(0, 0, 0, 0, Counter(), Counter())

    @property
    def current(self) -> Census:
        if self._version != self._image.partitions_version:
            self._version = self._image.partitions_version
            self._counted = self._count()
        return self._counted

    def _count(self) -> Census:
        total = leaderless = not_preferred = reassigning = 0
        leaders: Counter[int] = Counter()
        replicas: Counter[int] = Counter()
        for _, state in self._image.all_partitions():
            total += 1
            leaderless += state.leader == NO_LEADER
            not_preferred += state.leader != state.replicas[0]
            reassigning += state.is_reassigning
            leaders[state.leader] += 1
            replicas.update(state.replicas)
        return Census(total, leaderless, not_preferred, reassigning, leaders, replicas)


class ControllerMetrics:
    def __init__(self, controller: Controller, watch: BrokerWatch, census: PartitionCensus) -> None:
        self._controller = controller
        self._watch = watch
        self._census = census

    async def families(self) -> AsyncIterator[Family]:
        controller, image = self._controller, self._controller.image
        is_active = controller.is_active
        fenced = sum(broker.is_fenced for broker in image.brokers.values())

        def of_the_cluster(name: str, help_text: str, number: Callable[[], float]) -> Family:
            samples: list[Sample] = [((), number() if is_active else 0)]
            return gauge(f"kafka_controller_kafkacontroller_{name}", help_text, (), samples)

        yield of_the_cluster("activecontrollercount", "1 if this broker is the active controller.", lambda: 1)
        yield of_the_cluster("activebrokercount", "Brokers that are alive.", lambda: len(controller.brokers))
        yield of_the_cluster("fencedbrokercount", "Brokers that are registered but not alive.", lambda: fenced)
        yield of_the_cluster("globaltopiccount", "Topics.", lambda: len(image.topics))
        yield of_the_cluster("globalpartitioncount", "Partitions.", lambda: self._census.current.partitions)
        yield of_the_cluster(
            "preferredreplicaimbalancecount",
            "Partitions whose leader is not the preferred replica.",
            lambda: self._census.current.not_preferred,
        )
        yield of_the_cluster(
            "reassigningpartitions", "Partitions that are being reassigned.", lambda: self._census.current.reassigning
        )
        yield counter(
            "penstock_leader_elections_total",
            "Partitions that got another leader while this broker was the controller.",
            (),
            [((), controller.elections)],
        )
        yield counter(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "Leader changes among these that were unclean: the new leader may lack committed records.",
            (),
            [((), controller.unclean_elections)],
        )
        for family in self._by_broker() if is_active else ():
            yield family

    def _by_broker(self) -> Iterator[Family]:
        brokers, census = self._controller.image.brokers, self._census.current

        def each(name: str, help_text: str, numbers: Counter[int]) -> Family:
            return gauge(name, help_text, ("broker",), [((str(one),), numbers[one]) for one in brokers])

        yield each("penstock_broker_leaders", "Partitions that a broker leads.", census.leaders_by_broker)
        yield each("penstock_broker_replicas", "Replicas on a broker.", census.partitions_by_broker)
        silences = self._watch.silences_s()
        yield gauge(
            "penstock_broker_silence_seconds",
            "Time since the controller heard from a broker.",
            ("broker",),
            [((str(one),), silences[one]) for one in brokers if one in silences],
        )


class QuorumMetrics:
    def __init__(self, quorum: Quorum, links: PeerLinks, lifecycle: BrokerLifecycle, forwarding: Forwarding) -> None:
        self._quorum = quorum
        self._links = links
        self._lifecycle = lifecycle
        self._forwarding = forwarding

    async def families(self) -> AsyncIterator[Family]:
        for family in self._standing():
            yield family
        for family in self._log():
            yield family
        for family in self._exchange():
            yield family

    def _standing(self) -> Iterator[Family]:
        quorum = self._quorum
        status = quorum.status
        yield gauge(
            "penstock_quorum_role",
            "1 for the current role of this broker in the metadata quorum.",
            ("role",),
            [((role,), int(role == status.role.value)) for role in _ROLES],
        )
        yield gauge(
            "penstock_quorum_is_voter",
            "1 for a voter, 0 for an observer.",
            (),
            [((), int(quorum.node_id in status.configuration.voters))],
        )
        yield gauge("penstock_quorum_term", "Term of the quorum (Kafka's leader epoch).", (), [((), status.term)])
        yield gauge(
            "penstock_quorum_leader",
            "Node id of the leader as this broker knows it, -1 if there is none.",
            (),
            [((), -1 if quorum.leader_id is None else quorum.leader_id)],
        )
        yield gauge(
            "penstock_quorum_commit_index",
            "Last entry that this broker knows to be committed.",
            (),
            [((), quorum.commit_index)],
        )
        yield gauge(
            "penstock_quorum_applied_index", "Last entry applied on this broker.", (), [((), quorum.applied_index)]
        )
        yield gauge(
            "penstock_quorum_member_lag",
            "Entries that another member lacks, as seen by the quorum leader.",
            ("node", "is_voter"),
            [
                ((str(one.node), str(int(one.is_voter))), max(status.last_index - one.match_index, 0))
                for one in status.replicas
                if one.node != quorum.node_id
            ],
        )

    def _log(self) -> Iterator[Family]:
        quorum = self._quorum
        times = quorum.proposal_times
        yield gauge("penstock_metadata_log_bytes", "Size of the metadata log.", (), [((), quorum.log_bytes)])
        yield gauge(
            "penstock_metadata_snapshot_bytes",
            "Size of the newest snapshot of the metadata, 0 if there is none.",
            (),
            [((), quorum.snapshot_bytes)],
        )
        yield counter(
            "penstock_metadata_snapshots_total",
            "Metadata snapshots taken by this broker.",
            (),
            [((), quorum.snapshots_taken)],
        )
        yield histogram(
            "penstock_metadata_proposal_seconds",
            "Time from a metadata proposal until it is committed and applied, on the controller that proposed it.",
            (),
            [HistogramSample((), BOUNDS_S, list(times.counts), times.sum_s)],
        )
        yield counter(
            "penstock_metadata_proposals_failed_total",
            "Proposals that were refused or whose outcome is unknown.",
            (),
            [((), times.failed)],
        )

    def _exchange(self) -> Iterator[Family]:
        links, lifecycle, forwarding = self._links, self._lifecycle, self._forwarding
        yield gauge(
            "penstock_peer_connected",
            "1 if the connection to another node is up.",
            ("node",),
            [((str(peer),), int(links.is_up(peer))) for peer in links.peers],
        )
        yield counter(
            "penstock_peer_connections_lost_total", "Broken connections to other nodes.", (), [((), links.losses)]
        )
        yield gauge("penstock_broker_epoch", "Epoch of this broker's registration.", (), [((), lifecycle.epoch)])
        yield gauge(
            "penstock_heartbeat_age_seconds",
            "Time since this broker sent the last heartbeat that the controller answered.",
            (),
            [((), lifecycle.unanswered_s)] if lifecycle.heartbeats else [],  # a single broker sends none
        )
        yield counter("penstock_heartbeats_total", "Heartbeats sent by this broker.", (), [((), lifecycle.heartbeats)])
        yield counter(
            "penstock_heartbeats_failed_total",
            "Heartbeats that were refused or not answered.",
            (),
            [((), lifecycle.heartbeats_failed)],
        )
        yield counter(
            "penstock_forwarded_requests_total",
            "Client requests forwarded to the controller, counting each attempt.",
            (),
            [((), forwarding.sent)],
        )
        yield counter(
            "penstock_forwarded_requests_failed_total",
            "Forwarding attempts that found no controller or got no answer.",
            (),
            [((), forwarding.failed)],
        )
