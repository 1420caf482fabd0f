"""The metadata image: what the cluster consists of, built only by `replay`.

The same code runs for a fresh decision, at start-up and, later, on followers of the
metadata log. Dictionaries are insertion-ordered, so two images of one log are equal to
the last byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.core.metadata.records import (
    ClusterCreated,
    ConfigChanged,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdsAllocated,
    ScramCredentialRemoved,
    ScramCredentialSet,
    TopicCreated,
    TopicDeleted,
)

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
RESOURCE_CLIENT_METRICS: Final = 16
RESOURCE_GROUP: Final = 32

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(slots=True)
class PartitionState:
    """Who carries a partition. Leadership changes bump the epoch."""

    index: int
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()


@dataclass(slots=True)
class TopicState:
    name: str
    topic_id: bytes
    partitions: list[PartitionState] = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)


class MetadataImage:
    def __init__(self) -> None:
        self.cluster_id = ""
        self.topics: dict[str, TopicState] = {}
        self.topics_by_id: dict[bytes, TopicState] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.next_producer_id = 0
        self.scram: dict[str, dict[int, ScramCredentialSet]] = {}  # user -> mechanism -> credential
        self.topics_version = 0  # grows whenever a topic is made or deleted or gets partitions

    def topic_overrides(self, name: str) -> dict[str, str]:
        return self.configs.get((RESOURCE_TOPIC, name), {})

    def replay(self, record: MetadataRecord) -> None:
        if isinstance(record, TopicCreated | PartitionsAdded | TopicDeleted):
            self.topics_version += 1
        match record:
            case TopicCreated(name, topic_id, assignments):
                topic = TopicState(name, bytes.fromhex(topic_id))
                self.topics[name] = self.topics_by_id[topic.topic_id] = topic
                _add_partitions(topic, assignments)
            case PartitionsAdded(topic_id, assignments):
                _add_partitions(self.topics_by_id[bytes.fromhex(topic_id)], assignments)
            case TopicDeleted(topic_id):
                topic = self.topics_by_id.pop(bytes.fromhex(topic_id))
                del self.topics[topic.name]
                self.configs.pop((RESOURCE_TOPIC, topic.name), None)
            case ConfigChanged(resource_type, resource_name, overrides):
                if overrides:
                    self.configs[resource_type, resource_name] = dict(overrides)
                else:
                    self.configs.pop((resource_type, resource_name), None)
            case ProducerIdsAllocated(next_producer_id):
                self.next_producer_id = next_producer_id
            case ScramCredentialSet(user, mechanism):
                self.scram.setdefault(user, {})[mechanism] = record
            case ScramCredentialRemoved(user, mechanism):
                del self.scram[user][mechanism]
                if not self.scram[user]:
                    del self.scram[user]
            case ClusterCreated(cluster_id):
                self.cluster_id = cluster_id


def _add_partitions(topic: TopicState, assignments: tuple[tuple[int, ...], ...]) -> None:
    for replicas in assignments:
        topic.partitions.append(PartitionState(len(topic.partitions), replicas, leader=replicas[0], isr=replicas))
