"""What operators ask of a cluster and have done to it: brokers, the metadata quorum, elections, moving replicas.

Requests go to any broker, which passes them on to the controller; sizes on disk are asked of each broker. Must not
know: who wants it, how it is shown. Invariants: as of `BlockingCluster`, nothing that is sent twice does harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import describe_quorum as quorum
from penstock.wire.messages import describe_topic_partitions as described
from penstock.wire.messages import elect_leaders as electing
from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import NoSuchTopic, WireClientError, check, error_code
from penstock.wire_client.requests.metadata import Address
from penstock.wire_client.requests.sentences import no_such_topic

METADATA_TOPIC = "__cluster_metadata"
TIMEOUT_MS = 30_000
PARTITIONS_A_PAGE = 2_000
PREFERRED, UNCLEAN = 0, 1
# Every listener speaks everything, so its name says nothing.
VOTER_LISTENER = "CONTROLLER"


class NodeInfo(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class ClusterNodes(NamedTuple):
    cluster_id: str
    controller_id: int | None
    brokers: tuple[NodeInfo, ...]
    """Fenced ones too, by id."""


class QuorumReplica(NamedTuple):
    node_id: int
    is_voter: bool
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None
    address: Address | None


class QuorumInfo(NamedTuple):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    replicas: tuple[QuorumReplica, ...]
    """Voters first, then by id."""

    def lag(self, replica: QuorumReplica) -> int:
        end = max(one.log_end_offset for one in self.replicas)
        return end - replica.log_end_offset


class PartitionReplicas(NamedTuple):
    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    """Eligible leader replicas: not in sync, but they have all that was committed (KIP-966)."""


class ReplicaMove(NamedTuple):
    """A reassignment under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """Those to be and those that leave."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionOutcome(NamedTuple):
    """What became of one partition of a request."""

    topic: str
    partition: int
    code: ErrorCode
    message: str


class FeatureLevels(NamedTuple):
    name: str
    min_level: int | None
    max_level: int | None
    finalized: int | None


Targets = Mapping[tuple[str, int], Sequence[int] | None]


class ClusterAdmin:
    def __init__(self, cluster: BlockingCluster) -> None:
        self._cluster = cluster

    # -- looking ------------------------------------------------------------------------

    def nodes(self) -> ClusterNodes:
        def read(answer: DescribeClusterResponse) -> ClusterNodes:
            check(answer.error_code, answer.error_message)
            brokers = sorted(
                NodeInfo(one.broker_id, one.host, one.port, one.rack, one.is_fenced) for one in answer.brokers
            )
            controller = answer.controller_id if answer.controller_id >= 0 else None
            return ClusterNodes(answer.cluster_id, controller, tuple(brokers))

        request = DescribeClusterRequest(include_fenced_brokers=True)
        return self._cluster.ask(Api.DESCRIBE_CLUSTER, request, DescribeClusterResponse, read)

    def quorum(self) -> QuorumInfo:
        def read(answer: quorum.DescribeQuorumResponse) -> QuorumInfo:
            check(answer.error_code, answer.error_message)
            found = answer.topics[0].partitions[0]
            check(found.error_code, found.error_message)
            addresses = {
                node.node_id: (node.listeners[0].host, node.listeners[0].port)
                for node in answer.nodes
                if node.listeners
            }
            replicas = [
                QuorumReplica(
                    one.replica_id,
                    is_voter,
                    one.log_end_offset,
                    _time(one.last_fetch_timestamp),
                    _time(one.last_caught_up_timestamp),
                    addresses.get(one.replica_id),
                )
                for is_voter, group in ((True, found.current_voters), (False, found.observers))
                for one in sorted(group, key=lambda one: one.replica_id)
            ]
            return QuorumInfo(found.leader_id, found.leader_epoch, found.high_watermark, tuple(replicas))

        partitions = [quorum.RequestPartitionData(partition_index=0)]
        request = quorum.DescribeQuorumRequest(
            topics=[quorum.RequestTopicData(topic_name=METADATA_TOPIC, partitions=partitions)]
        )
        return self._cluster.ask(Api.DESCRIBE_QUORUM, request, quorum.DescribeQuorumResponse, read)

    def partitions(self, topics: Iterable[str] | None = None) -> list[PartitionReplicas]:
        """Of all topics, or of those named, by topic and number. Raises ApiError for a topic that does not exist."""
        names = sorted(self._cluster.topics() if topics is None else set(topics))
        found: list[PartitionReplicas] = []
        cursor: described.Cursor | None = None
        while names:
            page = self._page(names, cursor)
            for topic in page.topics:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    if topics is None:
                        continue  # deleted meanwhile
                    raise NoSuchTopic(no_such_topic(topic.name or ""))
                check(topic.error_code)
                found.extend(_partition(topic.name or "", one) for one in topic.partitions)
            cursor = page.next_cursor
            if cursor is None:
                break
            first = cursor.topic_name
            names = [name for name in names if name >= first]
        return sorted(found)

    def _page(self, names: Sequence[str], cursor: described.Cursor | None) -> described.DescribeTopicPartitionsResponse:
        request = described.DescribeTopicPartitionsRequest(
            topics=[described.TopicRequest(name=name) for name in names],
            response_partition_limit=PARTITIONS_A_PAGE,
            cursor=cursor,
        )
        answer = described.DescribeTopicPartitionsResponse
        return self._cluster.ask(Api.DESCRIBE_TOPIC_PARTITIONS, request, answer, lambda page: page)

    def moves(self) -> list[ReplicaMove]:
        def read(answer: ListPartitionReassignmentsResponse) -> list[ReplicaMove]:
            check(answer.error_code, answer.error_message)
            return sorted(
                ReplicaMove(
                    topic.name,
                    one.partition_index,
                    tuple(one.replicas),
                    tuple(one.adding_replicas),
                    tuple(one.removing_replicas),
                )
                for topic in answer.topics
                for one in topic.partitions
            )

        request = ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=None)
        kind = ListPartitionReassignmentsResponse
        return self._cluster.ask(Api.LIST_PARTITION_REASSIGNMENTS, request, kind, read)

    def sizes(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], dict[int, int]]:
        """Bytes on the disk of each broker that is up and holds them."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        request = DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=topic, partitions=asked) for topic, asked in topics.items()]
        )
        found: dict[tuple[str, int], dict[int, int]] = {}
        for broker in self._cluster.brokers() if topics else ():
            try:
                connection = self._cluster.connection(broker.node_id, "control")
                answer = connection.call(Api.DESCRIBE_LOG_DIRS, request, DescribeLogDirsResponse)
            except WireClientError:
                continue  # it has just gone; the metadata will say so
            for directory in answer.results:
                for entry in directory.topics:
                    for one in entry.partitions:
                        by_broker = found.setdefault((entry.name, one.partition_index), {})
                        by_broker[broker.node_id] = by_broker.get(broker.node_id, 0) + one.partition_size
        return found

    def features(self) -> list[FeatureLevels]:
        def read(answer: ApiVersionsResponse) -> list[FeatureLevels]:
            check(answer.error_code)
            lowest = {one.name: one.min_version for one in answer.supported_features}
            highest = {one.name: one.max_version for one in answer.supported_features}
            finalized = {one.name: one.max_version_level for one in answer.finalized_features}
            return [
                FeatureLevels(name, lowest.get(name), highest.get(name), finalized.get(name))
                for name in sorted({**highest, **finalized})
            ]

        request = ApiVersionsRequest(client_software_name="penstock", client_software_version="1")
        return self._cluster.ask(Api.API_VERSIONS, request, ApiVersionsResponse, read)

    # -- changing -----------------------------------------------------------------------

    def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None, *, is_unclean: bool
    ) -> list[PartitionOutcome]:
        """None: all partitions, of which those that need no election are left out of the answer.

        Where an answer got lost and the question was asked again, here or on its way to the controller, the second
        answer is that no election is needed. What was elected meanwhile is told as such all the same.
        """
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions or ():
            topics.setdefault(topic, []).append(partition)
        needed = self._in_need(None if partitions is None else topics, is_unclean)
        verdicts = {(one.topic, one.partition): one for one in self._elect(partitions is None, topics, is_unclean)}
        unexplained = [
            where
            for where in needed
            if where not in verdicts or verdicts[where].code is ErrorCode.ELECTION_NOT_NEEDED
            if partitions is None or where[1] in topics[where[0]]
        ]
        if unexplained:
            still = self._in_need([topic for topic, _ in unexplained], is_unclean)
            verdicts |= {
                where: PartitionOutcome(*where, ErrorCode.NONE, "") for where in unexplained if where not in still
            }
        return sorted(verdicts.values())

    def _in_need(self, topics: Iterable[str] | None, is_unclean: bool) -> dict[tuple[str, int], None]:
        return {
            (one.topic, one.partition): None
            for one in self.partitions(topics)
            if (one.leader is None if is_unclean else one.leader != one.replicas[0])
        }

    def _elect(self, is_all: bool, topics: Mapping[str, list[int]], is_unclean: bool) -> list[PartitionOutcome]:
        def read(answer: electing.ElectLeadersResponse) -> list[PartitionOutcome]:
            check(answer.error_code)
            return sorted(
                _verdict(topic.topic, one.partition_id, one.error_code, one.error_message)
                for topic in answer.replica_election_results
                for one in topic.partition_result
            )

        request = electing.ElectLeadersRequest(
            election_type=UNCLEAN if is_unclean else PREFERRED,
            topic_partitions=None
            if is_all
            else [electing.TopicPartitions(topic=topic, partitions=asked) for topic, asked in topics.items()],
            timeout_ms=TIMEOUT_MS,
        )
        return self._cluster.ask(Api.ELECT_LEADERS, request, electing.ElectLeadersResponse, read)

    def reassign(self, targets: Targets) -> list[PartitionOutcome]:
        """Other replicas for partitions; None takes a reassignment under way back."""
        topics: dict[str, list[alter.ReassignablePartition]] = {}
        for (topic, partition), replicas in targets.items():
            asked = None if replicas is None else list(replicas)
            topics.setdefault(topic, []).append(alter.ReassignablePartition(partition_index=partition, replicas=asked))

        def read(answer: alter.AlterPartitionReassignmentsResponse) -> list[PartitionOutcome]:
            check(answer.error_code, answer.error_message)
            return sorted(
                _verdict(topic.name, one.partition_index, one.error_code, one.error_message)
                for topic in answer.responses
                for one in topic.partitions
            )

        request = alter.AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS,
            topics=[alter.ReassignableTopic(name=topic, partitions=asked) for topic, asked in topics.items()],
        )
        kind = alter.AlterPartitionReassignmentsResponse
        return self._cluster.ask(Api.ALTER_PARTITION_REASSIGNMENTS, request, kind, read)

    def unregister(self, broker_id: int) -> None:
        request = UnregisterBrokerRequest(broker_id=broker_id)
        self._cluster.ask(Api.UNREGISTER_BROKER, request, UnregisterBrokerResponse, _checked)

    def add_voter(self, voter_id: int, address: Address) -> None:
        host, port = address
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=TIMEOUT_MS,
            voter_id=voter_id,
            listeners=[Listener(name=VOTER_LISTENER, host=host, port=port)],
        )
        self._cluster.ask(Api.ADD_RAFT_VOTER, request, AddRaftVoterResponse, _checked)

    def remove_voter(self, voter_id: int) -> None:
        request = RemoveRaftVoterRequest(cluster_id=None, voter_id=voter_id)
        self._cluster.ask(Api.REMOVE_RAFT_VOTER, request, RemoveRaftVoterResponse, _checked)


def _checked(answer: UnregisterBrokerResponse | AddRaftVoterResponse | RemoveRaftVoterResponse) -> None:
    check(answer.error_code, answer.error_message)


def _time(timestamp_ms: int) -> int | None:
    return timestamp_ms if timestamp_ms >= 0 else None


def _partition(topic: str, one: described.DescribeTopicPartitionsResponsePartition) -> PartitionReplicas:
    return PartitionReplicas(
        topic,
        one.partition_index,
        one.leader_id if one.leader_id >= 0 else None,
        tuple(one.replica_nodes),
        tuple(one.isr_nodes),
        tuple(one.eligible_leader_replicas or ()),
    )


def _verdict(topic: str, partition: int, number: int, message: str | None) -> PartitionOutcome:
    code = error_code(number)
    return PartitionOutcome(topic, partition, code, message or ("" if code is ErrorCode.NONE else code.name))


def raise_refusals(verdicts: Iterable[PartitionOutcome], doing: str) -> None:
    """Raises ApiError with the first refusal, and how many more there are."""
    refused = [one for one in verdicts if one.code is not ErrorCode.NONE]
    if refused:
        first, more = refused[0], len(refused) - 1
        others = f" (and {more} more)" if more else ""
        said = first.message.rstrip(".")
        raise ApiError(first.code, f"{doing} {first.topic}-{first.partition}: {said} ({first.code.name}){others}")
