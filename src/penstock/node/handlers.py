"""Every API this broker serves, in one list. A new API is a new file and a line here."""

from __future__ import annotations

import asyncio

from penstock.api.cluster_view import ClusterView
from penstock.api.config_resources import ConfigResources
from penstock.api.dispatch import Dispatcher
from penstock.api.fetch_sessions import FetchSessions
from penstock.api.follower_connections import FollowerConnections
from penstock.api.handler import Handler
from penstock.api.handlers.add_raft_voter import AddRaftVoterHandler
from penstock.api.handlers.alter_configs import AlterConfigsHandler
from penstock.api.handlers.alter_partition import AlterPartitionHandler
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
from penstock.api.handlers.describe_user_scram_credentials import DescribeUserScramCredentialsHandler
from penstock.api.handlers.elect_leaders import ElectLeadersHandler
from penstock.api.handlers.fetch import FetchHandler
from penstock.api.handlers.find_coordinator import FindCoordinatorHandler
from penstock.api.handlers.heartbeat import HeartbeatHandler
from penstock.api.handlers.incremental_alter_configs import IncrementalAlterConfigsHandler
from penstock.api.handlers.init_producer_id import InitProducerIdHandler
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
from penstock.api.handlers.unregister_broker import UnregisterBrokerHandler
from penstock.api.handlers.update_features import UpdateFeaturesHandler
from penstock.api.request_times import RequestTimes
from penstock.api.topic_creation import TopicCreation
from penstock.api.traffic import Traffic
from penstock.coordination.groups import GroupCoordinator
from penstock.node.membership import Membership
from penstock.ports.clock import Clock, Entropy
from penstock.ports.workers import RecordWorkers, Workers
from penstock.replica.hosting import HostedPartitions

FOR_CLIENTS: tuple[type[Handler], ...] = (
    AddRaftVoterHandler,
    AlterConfigsHandler,
    AlterPartitionReassignmentsHandler,
    AlterUserScramCredentialsHandler,
    ApiVersionsHandler,
    ConsumerGroupDescribeHandler,
    ConsumerGroupHeartbeatHandler,
    CreateAclsHandler,
    CreatePartitionsHandler,
    CreateTopicsHandler,
    DeleteAclsHandler,
    DeleteGroupsHandler,
    DeleteRecordsHandler,
    DeleteTopicsHandler,
    DescribeAclsHandler,
    DescribeClientQuotasHandler,
    DescribeClusterHandler,
    DescribeConfigsHandler,
    DescribeGroupsHandler,
    DescribeLogDirsHandler,
    DescribeProducersHandler,
    DescribeQuorumHandler,
    DescribeTopicPartitionsHandler,
    DescribeUserScramCredentialsHandler,
    ElectLeadersHandler,
    FetchHandler,
    FindCoordinatorHandler,
    HeartbeatHandler,
    IncrementalAlterConfigsHandler,
    InitProducerIdHandler,
    JoinGroupHandler,
    LeaveGroupHandler,
    ListConfigResourcesHandler,
    ListGroupsHandler,
    ListOffsetsHandler,
    ListPartitionReassignmentsHandler,
    ListTransactionsHandler,
    MetadataHandler,
    OffsetCommitHandler,
    OffsetDeleteHandler,
    OffsetFetchHandler,
    OffsetForLeaderEpochHandler,
    ProduceHandler,
    RemoveRaftVoterHandler,
    SyncGroupHandler,
    UnregisterBrokerHandler,
    UpdateFeaturesHandler,
)
"""What is served to clients, for a node that has yet to build it."""

FOR_BROKERS: tuple[type[Handler], ...] = (AlterPartitionHandler,)
"""Of what brokers ask each other, the requests that grow with the cluster."""


class Apis:
    """The handlers and what they share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        membership: Membership,
        cluster: ClusterView,
        partitions: HostedPartitions,
        groups: GroupCoordinator,
        workers: Workers,
        records: RecordWorkers,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        running, controller, image = membership.running, membership.controller, membership.image
        config = running.current
        sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            lambda: int.from_bytes(entropy.random_bytes(4), "big") & 0x7FFFFFFF,
        )
        creation = TopicCreation(membership.access, running)
        resources = ConfigResources(config.node_id, controller.topics, running)
        self.api_versions = ApiVersionsHandler(image, lambda: membership.quorum.applied_index)
        self.traffic = Traffic()
        self.times = RequestTimes(clock)
        self.produce = ProduceHandler(
            partitions, clock, records, self.traffic, self.times, endpoint_of=cluster.endpoint_of
        )
        followers = FollowerConnections()
        self.fetch = FetchHandler(
            partitions,
            sessions,
            workers,
            loop,
            self.traffic,
            max_bytes=config.fetch_max_bytes,
            endpoint_of=cluster.endpoint_of,
            followers=followers,
        )
        self.handlers: list[Handler] = [
            self.api_versions,
            self.produce,
            self.fetch,
            ListOffsetsHandler(partitions, workers, records),
            MetadataHandler(cluster, creation),
            DeleteRecordsHandler(partitions),
            InitProducerIdHandler(membership.access),
            OffsetForLeaderEpochHandler(partitions),
            DescribeProducersHandler(partitions),
            FindCoordinatorHandler(cluster, groups),
            JoinGroupHandler(groups, entropy),
            SyncGroupHandler(groups),
            HeartbeatHandler(groups),
            LeaveGroupHandler(groups),
            OffsetCommitHandler(groups, image),
            OffsetFetchHandler(groups, image),
            OffsetDeleteHandler(groups, image),
            ListGroupsHandler(groups),
            DescribeGroupsHandler(groups),
            DeleteGroupsHandler(groups),
            ConsumerGroupHeartbeatHandler(groups, entropy),
            ConsumerGroupDescribeHandler(groups, image),
            CreateTopicsHandler(controller.topics, creation, running),
            DeleteTopicsHandler(controller.topics, running),
            CreatePartitionsHandler(controller.topics),
            DescribeTopicPartitionsHandler(cluster, max_partitions=config.max_request_partition_size_limit),
            DescribeConfigsHandler(resources, groups.story),
            IncrementalAlterConfigsHandler(resources, membership.forwarding),
            AlterConfigsHandler(resources, membership.forwarding),
            ListConfigResourcesHandler(cluster),
            DescribeClusterHandler(cluster),
            DescribeLogDirsHandler(partitions),
            DescribeUserScramCredentialsHandler(cluster),
            AlterUserScramCredentialsHandler(controller.topics),
            ElectLeadersHandler(controller.partitions),
            AlterPartitionReassignmentsHandler(controller.partitions),
            ListPartitionReassignmentsHandler(controller.partitions),
            DescribeQuorumHandler(membership.quorum, cluster, clock),
            UpdateFeaturesHandler(controller.registry),
            DescribeAclsHandler(),
            CreateAclsHandler(),
            DeleteAclsHandler(),
            DescribeClientQuotasHandler(),
            ListTransactionsHandler(),
            UnregisterBrokerHandler(controller.registry),
            AddRaftVoterHandler(controller.voters, cluster),
            RemoveRaftVoterHandler(controller.voters, cluster),
            *membership.handlers,
        ]
        self.api_versions.advertise(self.handlers)
        private = [
            *membership.private_handlers,
            AcknowledgementHandler(partitions, clock, followers),
            DisownHandler(partitions),
            WakeHandler(),
        ]
        self.dispatcher = Dispatcher(self.handlers, self.times, membership.forwarding, private)
