"""Administration of a cluster: brokers, the metadata quorum, elections, reassignments.

Requests go to any broker, which passes them on to the controller; each broker is asked for its own sizes on disk. Must
not know: how results are shown. Invariant, as in `BlockingCluster`: every request is harmless when it is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.model.addresses import Address
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages import describe_topic_partitions as described
from penstock.wire.messages.add_raft_voter import AddRaftVoterResponse
from penstock.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.messages.describe_cluster import DescribeClusterResponse
from penstock.wire.messages.describe_log_dirs import DescribeLogDirsResponse
from penstock.wire.messages.describe_quorum import DescribeQuorumResponse
from penstock.wire.messages.elect_leaders import ElectLeadersResponse
from penstock.wire.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterResponse
from penstock.wire.messages.unregister_broker import UnregisterBrokerResponse
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.brokers import (
    ClusterNodes,
    check_unregistered,
    cluster_request,
    read_cluster,
    unregister_request,
)
from penstock.wire_client.requests.errors import NoSuchTopic, WireClientError, check
from penstock.wire_client.requests.features import FeatureLevels, features_request, read_features
from penstock.wire_client.requests.partitions import (
    PartitionReplicas,
    page_request,
    read_partitions,
    read_sizes,
    sizes_request,
)
from penstock.wire_client.requests.quorum import (
    QuorumInfo,
    add_voter_request,
    check_voters,
    quorum_request,
    read_quorum_info,
    remove_voter_request,
)
from penstock.wire_client.requests.replicas import (
    PartitionOutcome,
    ReplicaMove,
    Targets,
    elect_request,
    moves_request,
    read_elected,
    read_moves,
    read_reassigned,
    reassign_request,
)
from penstock.wire_client.requests.sentences import no_such_topic

TIMEOUT_MS = 30_000


class ClusterAdmin:
    def __init__(self, cluster: BlockingCluster) -> None:
        self._cluster = cluster

    # -- reading ------------------------------------------------------------------------

    def nodes(self) -> ClusterNodes:
        return self._cluster.ask(Api.DESCRIBE_CLUSTER, cluster_request(), DescribeClusterResponse, read_cluster)

    def quorum(self) -> QuorumInfo:
        return self._cluster.ask(Api.DESCRIBE_QUORUM, quorum_request(), DescribeQuorumResponse, read_quorum_info)

    def partitions(self, topics: Iterable[str] | None = None) -> list[PartitionReplicas]:
        """The partitions of all or the given topics, sorted. Raises ApiError for a topic that does not exist."""
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
                found.extend(read_partitions(topic))
            cursor = page.next_cursor
            if cursor is None:
                break
            first = cursor.topic_name
            names = [name for name in names if name >= first]
        return sorted(found)

    def _page(self, names: Sequence[str], cursor: described.Cursor | None) -> described.DescribeTopicPartitionsResponse:
        kind = described.DescribeTopicPartitionsResponse
        return self._cluster.ask(Api.DESCRIBE_TOPIC_PARTITIONS, page_request(names, cursor), kind, lambda page: page)

    def moves(self) -> list[ReplicaMove]:
        kind = ListPartitionReassignmentsResponse
        return self._cluster.ask(Api.LIST_PARTITION_REASSIGNMENTS, moves_request(TIMEOUT_MS), kind, read_moves)

    def sizes(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], dict[int, int]]:
        """The size on disk in bytes of each partition on each broker that is up."""
        request = sizes_request(partitions)
        found: dict[tuple[str, int], dict[int, int]] = {}
        for broker in self._cluster.brokers() if request.topics else ():
            try:
                connection = self._cluster.connection(broker.node_id, "control")
                answer = connection.call(Api.DESCRIBE_LOG_DIRS, request, DescribeLogDirsResponse)
            except WireClientError:
                continue  # the broker has just gone; the metadata will show it
            for partition, size in read_sizes(answer).items():
                found.setdefault(partition, {})[broker.node_id] = size
        return found

    def features(self) -> list[FeatureLevels]:
        return self._cluster.ask(Api.API_VERSIONS, features_request(), ApiVersionsResponse, read_features)

    # -- changing -----------------------------------------------------------------------

    def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None, *, is_unclean: bool
    ) -> list[PartitionOutcome]:
        """None means all partitions; those that need no election are then left out of the result.

        If an answer is lost and the request is repeated, here or on its way to the controller, the second answer is
        that no election is needed. Partitions that were elected meanwhile still count as elected.
        """
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions or ():
            topics.setdefault(topic, []).append(partition)
        asked = None if partitions is None else topics
        needed = self._in_need(asked, is_unclean)
        verdicts = {(one.topic, one.partition): one for one in self._elect(asked, is_unclean)}
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

    def _elect(self, topics: Mapping[str, list[int]] | None, is_unclean: bool) -> list[PartitionOutcome]:
        request = elect_request(topics, TIMEOUT_MS, is_unclean=is_unclean)
        return self._cluster.ask(Api.ELECT_LEADERS, request, ElectLeadersResponse, read_elected)

    def reassign(self, targets: Targets) -> list[PartitionOutcome]:
        """Starts reassignments; None as replicas cancels a reassignment in progress."""
        request, kind = reassign_request(targets, TIMEOUT_MS), AlterPartitionReassignmentsResponse
        return self._cluster.ask(Api.ALTER_PARTITION_REASSIGNMENTS, request, kind, read_reassigned)

    def unregister(self, broker_id: int) -> None:
        request = unregister_request(broker_id)
        self._cluster.ask(Api.UNREGISTER_BROKER, request, UnregisterBrokerResponse, check_unregistered)

    def add_voter(self, voter_id: int, address: Address) -> None:
        request = add_voter_request(voter_id, address, TIMEOUT_MS)
        self._cluster.ask(Api.ADD_RAFT_VOTER, request, AddRaftVoterResponse, check_voters)

    def remove_voter(self, voter_id: int) -> None:
        self._cluster.ask(Api.REMOVE_RAFT_VOTER, remove_voter_request(voter_id), RemoveRaftVoterResponse, check_voters)
