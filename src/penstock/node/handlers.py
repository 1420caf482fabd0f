"""Every API this broker serves, in one list. A new API is a new file and a line here."""

from __future__ import annotations

import asyncio

from penstock.api.cluster_view import ClusterView
from penstock.api.config_resources import ConfigResources
from penstock.api.dispatch import Dispatcher
from penstock.api.fetch_sessions import FetchSessions
from penstock.api.handler import Handler
from penstock.api.handlers.alter_configs import AlterConfigsHandler
from penstock.api.handlers.alter_user_scram_credentials import AlterUserScramCredentialsHandler
from penstock.api.handlers.api_versions import ApiVersionsHandler
from penstock.api.handlers.consumer_group_describe import ConsumerGroupDescribeHandler
from penstock.api.handlers.consumer_group_heartbeat import ConsumerGroupHeartbeatHandler
from penstock.api.handlers.create_partitions import CreatePartitionsHandler
from penstock.api.handlers.create_topics import CreateTopicsHandler
from penstock.api.handlers.delete_groups import DeleteGroupsHandler
from penstock.api.handlers.delete_records import DeleteRecordsHandler
from penstock.api.handlers.delete_topics import DeleteTopicsHandler
from penstock.api.handlers.describe_cluster import DescribeClusterHandler
from penstock.api.handlers.describe_configs import DescribeConfigsHandler
from penstock.api.handlers.describe_groups import DescribeGroupsHandler
from penstock.api.handlers.describe_log_dirs import DescribeLogDirsHandler
from penstock.api.handlers.describe_producers import DescribeProducersHandler
from penstock.api.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler
from penstock.api.handlers.describe_user_scram_credentials import DescribeUserScramCredentialsHandler
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
from penstock.api.handlers.metadata import MetadataHandler
from penstock.api.handlers.offset_commit import OffsetCommitHandler
from penstock.api.handlers.offset_delete import OffsetDeleteHandler
from penstock.api.handlers.offset_fetch import OffsetFetchHandler
from penstock.api.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from penstock.api.handlers.produce import ProduceHandler
from penstock.api.handlers.sync_group import SyncGroupHandler
from penstock.api.request_times import RequestTimes
from penstock.api.topic_creation import TopicCreation
from penstock.api.traffic import Traffic
from penstock.cluster.controller import Controller
from penstock.cluster.running_config import RunningConfig
from penstock.coordination.groups import GroupCoordinator
from penstock.ports.clock import Clock, Entropy
from penstock.ports.workers import Workers
from penstock.replica.hosting import HostedPartitions


class Apis:
    """The handlers and what they share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: RunningConfig,
        cluster: ClusterView,
        controller: Controller,
        partitions: HostedPartitions,
        groups: GroupCoordinator,
        workers: Workers,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        config = running.current
        sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            lambda: int.from_bytes(entropy.random_bytes(4), "big") & 0x7FFFFFFF,
        )
        creation = TopicCreation(controller, running)
        resources = ConfigResources(config.node_id, controller, running)
        self.api_versions = ApiVersionsHandler()
        self.traffic = Traffic()
        self.times = RequestTimes(clock)
        self.produce = ProduceHandler(partitions, clock, workers, self.traffic, self.times)
        self.fetch = FetchHandler(partitions, sessions, workers, loop, self.traffic, max_bytes=config.fetch_max_bytes)
        self.handlers: list[Handler] = [
            self.api_versions,
            self.produce,
            self.fetch,
            ListOffsetsHandler(partitions),
            MetadataHandler(cluster, creation),
            DeleteRecordsHandler(partitions),
            InitProducerIdHandler(controller),
            OffsetForLeaderEpochHandler(partitions),
            DescribeProducersHandler(partitions),
            FindCoordinatorHandler(cluster, groups),
            JoinGroupHandler(groups, entropy),
            SyncGroupHandler(groups),
            HeartbeatHandler(groups),
            LeaveGroupHandler(groups),
            OffsetCommitHandler(groups, controller.image),
            OffsetFetchHandler(groups, controller.image),
            OffsetDeleteHandler(groups, controller.image),
            ListGroupsHandler(groups),
            DescribeGroupsHandler(groups),
            DeleteGroupsHandler(groups),
            ConsumerGroupHeartbeatHandler(groups, entropy),
            ConsumerGroupDescribeHandler(groups, controller.image),
            CreateTopicsHandler(controller, creation, running),
            DeleteTopicsHandler(controller, running),
            CreatePartitionsHandler(controller),
            DescribeTopicPartitionsHandler(cluster, max_partitions=config.max_request_partition_size_limit),
            DescribeConfigsHandler(resources, groups.story),
            IncrementalAlterConfigsHandler(resources),
            AlterConfigsHandler(resources),
            ListConfigResourcesHandler(cluster),
            DescribeClusterHandler(cluster),
            DescribeLogDirsHandler(partitions),
            DescribeUserScramCredentialsHandler(cluster),
            AlterUserScramCredentialsHandler(controller),
        ]
        self.api_versions.advertise(
            {int(handler.api): (handler.min_version, handler.max_version) for handler in self.handlers}
        )
        self.dispatcher = Dispatcher(self.handlers, self.times)
