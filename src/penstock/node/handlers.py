"""Every API this broker serves to clients, in one table. A new API is a new file and a line here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from penstock.api.admin.config_resources import ConfigResources
from penstock.api.admin.topic_creation import TopicCreation
from penstock.api.cluster_view import ClusterView
from penstock.api.dispatch import Dispatcher
from penstock.api.fetch.fetch_sessions import FetchSessions
from penstock.api.fetch.follower_connections import FollowerConnections
from penstock.api.handler import Handler
from penstock.api.handlers.add_offsets_to_txn import AddOffsetsToTxnHandler
from penstock.api.handlers.add_partitions_to_txn import AddPartitionsToTxnHandler
from penstock.api.handlers.add_raft_voter import AddRaftVoterHandler
from penstock.api.handlers.alter_configs import AlterConfigsHandler
from penstock.api.handlers.alter_partition_reassignments import AlterPartitionReassignmentsHandler
from penstock.api.handlers.alter_user_scram_credentials import AlterUserScramCredentialsHandler
from penstock.api.handlers.api_versions import ApiVersionsHandler
from penstock.api.handlers.consumer_group_describe import ConsumerGroupDescribeHandler
from penstock.api.handlers.consumer_group_heartbeat import ConsumerGroupHeartbeatHandler
from penstock.api.handlers.create_acls import CreateAclsHandler
from penstock.api.handlers.create_partitions import CreatePartitionsHandler
from penstock.api.handlers.create_topics import CreateTopicsHandler
from penstock.api.handlers.delete_acls import DeleteAclsHandler
from penstock.api.handlers.delete_groups import DeleteGroupsHandler
from penstock.api.handlers.delete_records import DeleteRecordsHandler
from penstock.api.handlers.delete_topics import DeleteTopicsHandler
from penstock.api.handlers.describe_acls import DescribeAclsHandler
from penstock.api.handlers.describe_client_quotas import DescribeClientQuotasHandler
from penstock.api.handlers.describe_cluster import DescribeClusterHandler
from penstock.api.handlers.describe_configs import DescribeConfigsHandler
from penstock.api.handlers.describe_groups import DescribeGroupsHandler
from penstock.api.handlers.describe_log_dirs import DescribeLogDirsHandler
from penstock.api.handlers.describe_producers import DescribeProducersHandler
from penstock.api.handlers.describe_quorum import DescribeQuorumHandler
from penstock.api.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler
from penstock.api.handlers.describe_transactions import DescribeTransactionsHandler
from penstock.api.handlers.describe_user_scram_credentials import DescribeUserScramCredentialsHandler
from penstock.api.handlers.elect_leaders import ElectLeadersHandler
from penstock.api.handlers.end_txn import EndTxnHandler
from penstock.api.handlers.fetch import FetchHandler
from penstock.api.handlers.find_coordinator import FindCoordinatorHandler
from penstock.api.handlers.heartbeat import HeartbeatHandler
from penstock.api.handlers.incremental_alter_configs import IncrementalAlterConfigsHandler
from penstock.api.handlers.init_producer_id import InitProducerIdHandler, WithoutTwoPhaseCommitHandler
from penstock.api.handlers.join_group import JoinGroupHandler
from penstock.api.handlers.leave_group import LeaveGroupHandler
from penstock.api.handlers.list_config_resources import ListConfigResourcesHandler
from penstock.api.handlers.list_groups import ListGroupsHandler
from penstock.api.handlers.list_offsets import ListOffsetsHandler
from penstock.api.handlers.list_partition_reassignments import ListPartitionReassignmentsHandler
from penstock.api.handlers.list_transactions import ListTransactionsHandler
from penstock.api.handlers.metadata import MetadataHandler
from penstock.api.handlers.offset_commit import OffsetCommitHandler
from penstock.api.handlers.offset_delete import OffsetDeleteHandler
from penstock.api.handlers.offset_fetch import OffsetFetchHandler
from penstock.api.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from penstock.api.handlers.produce import ProduceHandler
from penstock.api.handlers.remove_raft_voter import RemoveRaftVoterHandler
from penstock.api.handlers.replica_acknowledgement import AcknowledgementHandler, DisownHandler, WakeHandler
from penstock.api.handlers.sync_group import SyncGroupHandler
from penstock.api.handlers.txn_offset_commit import TxnOffsetCommitHandler
from penstock.api.handlers.unregister_broker import UnregisterBrokerHandler
from penstock.api.handlers.update_features import UpdateFeaturesHandler
from penstock.api.handlers.write_txn_markers import WriteTxnMarkersHandler
from penstock.api.request_times import RequestTimes
from penstock.api.traffic import Traffic
from penstock.config.broker import BrokerConfig
from penstock.node.coordinators import Coordinators
from penstock.node.membership import Membership
from penstock.ports.clock import Clock, Entropy
from penstock.ports.workers import RecordWorkers, Workers
from penstock.replica.hosting import HostedPartitions

H = TypeVar("H", bound=Handler)


class Parts:
    """The parts that handlers are made of: those of the node, and those that several handlers share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        membership: Membership,
        cluster: ClusterView,
        partitions: HostedPartitions,
        coordinators: Coordinators,
        workers: Workers,
        records: RecordWorkers,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.loop = loop
        self.membership = membership
        self.cluster = cluster
        self.partitions = partitions
        self.groups, self.transactions = coordinators.groups, coordinators.transactions
        self.verifier, self.markers = coordinators.verifier, coordinators.markers
        self.workers = workers
        self.records = records
        self.clock = clock
        self.entropy = entropy
        self.running, self.controller, self.image = membership.running, membership.controller, membership.image
        self.config = self.running.current
        self.creation = TopicCreation(membership.access, self.running)
        self.resources = ConfigResources(self.config.node_id, self.controller.topics, self.running)
        self.followers = FollowerConnections()
        self.traffic = Traffic()
        self.times = RequestTimes(clock)

    def applied_index(self) -> int:
        return self.membership.quorum.applied_index


@dataclass(frozen=True, slots=True)
class Served:
    """A line of the table: the class of an API, and how to make its handler once the parts exist."""

    kind: type[Handler]
    make: Callable[[Parts], Handler]


def _line(kind: type[H], make: Callable[[type[H], Parts], H]) -> Served:
    return Served(kind, partial(make, kind))


def _produce(kind: type[ProduceHandler], on: Parts) -> ProduceHandler:
    return kind(
        on.partitions, on.clock, on.records, on.traffic, on.times, on.verifier, endpoint_of=on.cluster.endpoint_of
    )


def _fetch(kind: type[FetchHandler], on: Parts) -> FetchHandler:
    entropy = on.entropy
    sessions = FetchSessions(
        on.config.max_incremental_fetch_session_cache_slots,
        lambda: int.from_bytes(entropy.random_bytes(4), "big") & 0x7FFFFFFF,
    )
    return kind(
        on.partitions,
        sessions,
        on.workers,
        on.loop,
        on.traffic,
        max_bytes=on.config.fetch_max_bytes,
        endpoint_of=on.cluster.endpoint_of,
        followers=on.followers,
    )


_ALWAYS: tuple[Served, ...] = (
    _line(ApiVersionsHandler, lambda kind, on: kind(on.image, on.applied_index, for_clients(on.config))),
    _line(ProduceHandler, _produce),
    _line(FetchHandler, _fetch),
    _line(ListOffsetsHandler, lambda kind, on: kind(on.partitions, on.workers, on.records)),
    _line(MetadataHandler, lambda kind, on: kind(on.cluster, on.creation)),
    _line(DeleteRecordsHandler, lambda kind, on: kind(on.partitions)),
    _line(OffsetForLeaderEpochHandler, lambda kind, on: kind(on.partitions)),
    _line(DescribeProducersHandler, lambda kind, on: kind(on.partitions)),
    _line(FindCoordinatorHandler, lambda kind, on: kind(on.cluster, on.groups, on.transactions)),
    _line(JoinGroupHandler, lambda kind, on: kind(on.groups, on.entropy)),
    _line(SyncGroupHandler, lambda kind, on: kind(on.groups)),
    _line(HeartbeatHandler, lambda kind, on: kind(on.groups)),
    _line(LeaveGroupHandler, lambda kind, on: kind(on.groups)),
    _line(OffsetCommitHandler, lambda kind, on: kind(on.groups, on.image)),
    _line(OffsetFetchHandler, lambda kind, on: kind(on.groups, on.image)),
    _line(OffsetDeleteHandler, lambda kind, on: kind(on.groups, on.image)),
    _line(ListGroupsHandler, lambda kind, on: kind(on.groups)),
    _line(DescribeGroupsHandler, lambda kind, on: kind(on.groups)),
    _line(DeleteGroupsHandler, lambda kind, on: kind(on.groups)),
    _line(ConsumerGroupHeartbeatHandler, lambda kind, on: kind(on.groups, on.entropy)),
    _line(ConsumerGroupDescribeHandler, lambda kind, on: kind(on.groups, on.image)),
    _line(CreateTopicsHandler, lambda kind, on: kind(on.controller.topics, on.creation, on.running)),
    _line(DeleteTopicsHandler, lambda kind, on: kind(on.controller.topics, on.running)),
    _line(CreatePartitionsHandler, lambda kind, on: kind(on.controller.topics)),
    _line(
        DescribeTopicPartitionsHandler,
        lambda kind, on: kind(on.cluster, max_partitions=on.config.max_request_partition_size_limit),
    ),
    _line(DescribeConfigsHandler, lambda kind, on: kind(on.resources, on.groups.story)),
    _line(IncrementalAlterConfigsHandler, lambda kind, on: kind(on.resources, on.membership.forwarding)),
    _line(AlterConfigsHandler, lambda kind, on: kind(on.resources, on.membership.forwarding)),
    _line(ListConfigResourcesHandler, lambda kind, on: kind(on.cluster)),
    _line(DescribeClusterHandler, lambda kind, on: kind(on.cluster)),
    _line(DescribeLogDirsHandler, lambda kind, on: kind(on.partitions)),
    _line(DescribeUserScramCredentialsHandler, lambda kind, on: kind(on.cluster)),
    _line(AlterUserScramCredentialsHandler, lambda kind, on: kind(on.controller.topics)),
    _line(ElectLeadersHandler, lambda kind, on: kind(on.controller.partitions)),
    _line(AlterPartitionReassignmentsHandler, lambda kind, on: kind(on.controller.partitions)),
    _line(ListPartitionReassignmentsHandler, lambda kind, on: kind(on.controller.partitions)),
    _line(DescribeQuorumHandler, lambda kind, on: kind(on.membership.quorum, on.cluster, on.clock)),
    _line(UpdateFeaturesHandler, lambda kind, on: kind(on.controller.registry)),
    _line(DescribeAclsHandler, lambda kind, on: kind()),
    _line(CreateAclsHandler, lambda kind, on: kind()),
    _line(DeleteAclsHandler, lambda kind, on: kind()),
    _line(DescribeClientQuotasHandler, lambda kind, on: kind()),
    _line(AddPartitionsToTxnHandler, lambda kind, on: kind(on.transactions, on.image)),
    _line(AddOffsetsToTxnHandler, lambda kind, on: kind(on.transactions, on.groups)),
    _line(EndTxnHandler, lambda kind, on: kind(on.transactions)),
    _line(WriteTxnMarkersHandler, lambda kind, on: kind(on.markers)),
    _line(TxnOffsetCommitHandler, lambda kind, on: kind(on.groups, on.verifier, on.image)),
    _line(DescribeTransactionsHandler, lambda kind, on: kind(on.transactions)),
    _line(ListTransactionsHandler, lambda kind, on: kind(on.transactions, on.records)),
    _line(UnregisterBrokerHandler, lambda kind, on: kind(on.controller.registry)),
    _line(AddRaftVoterHandler, lambda kind, on: kind(on.controller.voters, on.cluster)),
    _line(RemoveRaftVoterHandler, lambda kind, on: kind(on.controller.voters, on.cluster)),
)


def _served(config: BrokerConfig) -> tuple[Served, ...]:
    has_two_phases = config.transaction_two_phase_commit_enable
    begins = InitProducerIdHandler if has_two_phases else WithoutTwoPhaseCommitHandler
    return (*_ALWAYS, _line(begins, lambda kind, on: kind(on.membership.access, on.transactions)))


def for_clients(config: BrokerConfig) -> tuple[type[Handler], ...]:
    """The APIs for clients, for a node that has not built its handlers yet."""
    return tuple(served.kind for served in _served(config))


class Apis:
    """The handlers. `Membership.handlers` registers the APIs between brokers, because it serves them earlier."""

    def __init__(self, parts: Parts) -> None:
        membership, partitions, followers = parts.membership, parts.partitions, parts.followers
        self.traffic, self.times = parts.traffic, parts.times
        made: list[Handler] = [served.make(parts) for served in _served(parts.config)]
        self.produce = _only(ProduceHandler, made)
        self.fetch = _only(FetchHandler, made)
        self.handlers: list[Handler] = [*made, *membership.handlers]
        private = [
            *membership.private_handlers,
            AcknowledgementHandler(partitions, parts.clock, followers),
            DisownHandler(partitions),
            WakeHandler(),
        ]
        self.dispatcher = Dispatcher(self.handlers, self.times, membership.forwarding, private)


def _only(kind: type[H], handlers: Sequence[Handler]) -> H:
    (found,) = (handler for handler in handlers if isinstance(handler, kind))
    return found
