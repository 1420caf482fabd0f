"""A Kafka client for Python on librdkafka: typed, asyncio first, with a blocking face.

It talks to a cluster over the wire and knows nothing of the broker's packages; any Kafka cluster will do.
"""

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.admin import Admin, BlockingAdmin
from penstock.sdk.cluster import (
    BrokerInfo,
    ClusterInfo,
    ConfigSetting,
    GroupInfo,
    GroupListing,
    MemberInfo,
    OffsetChange,
    PartitionInfo,
    PartitionLag,
    ShiftBy,
    TopicInfo,
)
from penstock.sdk.consumer import BlockingConsumer, Consumer
from penstock.sdk.errors import (
    BadSetting,
    ClientClosed,
    ClientError,
    CommitFailed,
    DeliveryFailed,
    GroupNotEmpty,
    NotAllowed,
    NotPolled,
    Refused,
    TimedOut,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    Unreachable,
)
from penstock.sdk.metrics import ConsumerMetrics, Latency, ProducerMetrics
from penstock.sdk.partitioners import hash_partition
from penstock.sdk.producer import BlockingProducer, Producer
from penstock.sdk.records import Delivery, NewRecord, Record

__all__ = [
    "Admin",
    "BadSetting",
    "BlockingAdmin",
    "BlockingConsumer",
    "BlockingProducer",
    "BrokerInfo",
    "ClientClosed",
    "ClientError",
    "ClusterInfo",
    "CommitFailed",
    "ConfigSetting",
    "Consumer",
    "ConsumerMetrics",
    "Delivery",
    "DeliveryFailed",
    "GroupInfo",
    "GroupListing",
    "GroupNotEmpty",
    "Latency",
    "MemberInfo",
    "NewRecord",
    "NotAllowed",
    "NotPolled",
    "OffsetChange",
    "PartitionInfo",
    "PartitionLag",
    "Producer",
    "ProducerMetrics",
    "Record",
    "Refused",
    "ShiftBy",
    "TimedOut",
    "TopicExists",
    "TopicInfo",
    "TopicPartition",
    "UnknownGroup",
    "UnknownTopic",
    "Unreachable",
    "hash_partition",
]
