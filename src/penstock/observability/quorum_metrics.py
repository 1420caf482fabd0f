"""The cluster as the metadata quorum knows it: this member's standing, and what the active controller sees.

What is true of the cluster as a whole is told by its active controller alone (the others say 0, or nothing where there
is a label), so sums over the brokers are right here, too.
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
    """Counted over all partitions of the image."""

    partitions: int
    leaderless: int
    not_preferred: int
    reassigning: int
    leaders_by_broker: Counter[int]
    partitions_by_broker: Counter[int]


class PartitionCensus:
    """Counts anew only when partitions have changed."""

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
        yield of_the_cluster("activebrokercount", "Brokers that live.", lambda: len(controller.brokers))
        yield of_the_cluster("fencedbrokercount", "Brokers that are registered and do not live.", lambda: fenced)
        yield of_the_cluster("globaltopiccount", "Topics.", lambda: len(image.topics))
        yield of_the_cluster("globalpartitioncount", "Partitions.", lambda: self._census.current.partitions)
        yield of_the_cluster(
            "preferredreplicaimbalancecount",
            "Partitions that another than the preferred replica leads.",
            lambda: self._census.current.not_preferred,
        )
        yield of_the_cluster(
            "reassigningpartitions", "Partitions that are being reassigned.", lambda: self._census.current.reassigning
        )
        yield counter(
            "penstock_leader_elections_total",
            "Partitions for which this broker, as the controller, chose another leader.",
            (),
            [((), controller.elections)],
        )
        yield counter(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "Of these such whose new leader may lack what was committed.",
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
        yield each("penstock_broker_replicas", "Replicas that a broker has.", census.partitions_by_broker)
        silences = self._watch.silences_s()
        yield gauge(
            "penstock_broker_silence_seconds",
            "Since the controller heard of a broker.",
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
            "1 for what this broker is in the metadata quorum.",
            ("role",),
            [((role,), int(role == status.role.value)) for role in _ROLES],
        )
        yield gauge(
            "penstock_quorum_is_voter",
            "1 if this broker has a vote.",
            (),
            [((), int(quorum.node_id in status.configuration.voters))],
        )
        yield gauge("penstock_quorum_term", "Term, which is Kafka's epoch of the quorum.", (), [((), status.term)])
        yield gauge(
            "penstock_quorum_leader",
            "Node id of the leader as this broker knows it, -1 for none.",
            (),
            [((), -1 if quorum.leader_id is None else quorum.leader_id)],
        )
        yield gauge(
            "penstock_quorum_commit_index", "Entries known here to be agreed on.", (), [((), quorum.commit_index)]
        )
        yield gauge("penstock_quorum_applied_index", "Entries acted on here.", (), [((), quorum.applied_index)])
        yield gauge(
            "penstock_quorum_member_lag",
            "Entries that another member lacks, as the leader of the quorum sees it.",
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
        yield counter("penstock_metadata_snapshots_total", "Snapshots taken here.", (), [((), quorum.snapshots_taken)])
        yield histogram(
            "penstock_metadata_proposal_seconds",
            "From a change of the metadata to its being agreed on and applied, on the controller that proposed it.",
            (),
            [HistogramSample((), BOUNDS_S, list(times.counts), times.sum_s)],
        )
        yield counter(
            "penstock_metadata_proposals_failed_total",
            "Changes that were refused, or of whose outcome nothing was heard.",
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
            "penstock_peer_connections_lost_total", "Connections to other nodes that broke.", (), [((), links.losses)]
        )
        yield gauge("penstock_broker_epoch", "Epoch of this broker's registration.", (), [((), lifecycle.epoch)])
        yield gauge(
            "penstock_heartbeat_age_seconds",
            "Since this broker sent the last heartbeat that the controller answered.",
            (),
            [((), lifecycle.unanswered_s)] if lifecycle.heartbeats else [],  # a broker alone sends none
        )
        yield counter(
            "penstock_heartbeats_total", "Heartbeats that this broker sent.", (), [((), lifecycle.heartbeats)]
        )
        yield counter(
            "penstock_heartbeats_failed_total",
            "Heartbeats that were refused or not answered.",
            (),
            [((), lifecycle.heartbeats_failed)],
        )
        yield counter(
            "penstock_forwarded_requests_total",
            "Requests of clients that were sent on to the controller, each attempt.",
            (),
            [((), forwarding.sent)],
        )
        yield counter(
            "penstock_forwarded_requests_failed_total",
            "Attempts that found no controller there or no answer.",
            (),
            [((), forwarding.failed)],
        )
