"""Every API this broker serves, in one list. A new API is a new file and a line here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.api.cluster_view import ClusterView
from penstock.api.dispatch import Dispatcher
from penstock.api.fetch_sessions import FetchSessions
from penstock.api.handler import Handler
from penstock.api.handlers.alter_configs import AlterConfigsHandler
from penstock.api.handlers.api_versions import ApiVersionsHandler
from penstock.api.handlers.create_partitions import CreatePartitionsHandler
from penstock.api.handlers.create_topics import CreateTopicsHandler
from penstock.api.handlers.delete_records import DeleteRecordsHandler
from penstock.api.handlers.delete_topics import DeleteTopicsHandler
from penstock.api.handlers.describe_cluster import DescribeClusterHandler
from penstock.api.handlers.describe_configs import DescribeConfigsHandler
from penstock.api.handlers.describe_log_dirs import DescribeLogDirsHandler
from penstock.api.handlers.describe_producers import DescribeProducersHandler
from penstock.api.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler
from penstock.api.handlers.fetch import FetchHandler
from penstock.api.handlers.incremental_alter_configs import IncrementalAlterConfigsHandler
from penstock.api.handlers.init_producer_id import InitProducerIdHandler
from penstock.api.handlers.list_config_resources import ListConfigResourcesHandler
from penstock.api.handlers.list_offsets import ListOffsetsHandler
from penstock.api.handlers.metadata import MetadataHandler
from penstock.api.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from penstock.api.handlers.produce import ProduceHandler
from penstock.api.topic_creation import TopicCreation
