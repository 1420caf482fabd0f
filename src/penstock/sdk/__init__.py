"""A typed Kafka client for Python on librdkafka, with asyncio and blocking classes.

It works with any Kafka cluster and imports none of the broker's packages.
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
    ProducerFailed,
    ProducerFenced,
    Refused,
    TimedOut,
    TopicExists,
    TransactionAborted,
    UnknownGroup,
    UnknownTopic,
    Unreachable,
)
from penstock.sdk.metrics import ConsumerMetrics, Latency, ProducerMetrics
from penstock.sdk.partitioners import hash_partition
from penstock.sdk.producer import BlockingProducer, Producer
from penstock.sdk.records import Delivery, NewRecord, Record
from penstock.sdk.transactions import BlockingTransaction, Transaction

__all__ = [
    "Admin",
    "BadSetting",
    "BlockingAdmin",
    "BlockingConsumer",
    "BlockingProducer",
    "BlockingTransaction",
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
    "ProducerFailed",
    "ProducerFenced",
    "ProducerMetrics",
    "Record",
    "Refused",
    "ShiftBy",
    "TimedOut",
    "TopicExists",
    "TopicInfo",
    "TopicPartition",
    "Transaction",
    "TransactionAborted",
    "UnknownGroup",
    "UnknownTopic",
    "Unreachable",
    "hash_partition",
]
