"""The metadata image: the state of the cluster, built only by `replay`.

The same code runs for a new decision, at start and on every follower of the metadata log.
Dictionaries keep insertion order, so two images of one log are equal byte for byte, as is an
image made from `snapshot_records`. Only the versions belong to this node. They never decrease,
even when the image is cleared and filled from a snapshot.
Partition states are values that are replaced, never changed. So a `copy` shares them and is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.core.metadata.records import (
    BrokerChanged,
    BrokerEpochsUsed,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterCreated,
    ConfigChanged,
    FeatureChanged,
    MetadataRecord,
    PartitionChanged,
    PartitionRestored,
    PartitionsAdded,
    PeerAddressRemoved,
    PeerAddressSet,
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

NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Replicas and leader of a partition. A leadership change bumps the leader epoch; every change bumps the partition
    epoch."""

    index: int
    replicas: tuple[int, ...]  # during a reassignment: target replicas first, then those to remove
    leader: int  # NO_LEADER: none
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()  # eligible leader replicas (KIP-966): not in sync, but with all committed records
    last_known_elr: tuple[int, ...] = ()  # the last leader, while the partition has none
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment in progress."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    def effective_min_isr(self, configured: int) -> int:
        """The minimum ISR that applies to this partition, for leader and controller alike."""
        return effective_min_isr(configured, self.replicas, self.adding, self.removing)


@dataclass(slots=True)
class TopicState:
    name: str
    topic_id: bytes
    partitions: list[PartitionState] = field(default_factory=list)
    durable_from_epoch: int = 0
    """Brokers with an earlier epoch may have acknowledged records before flushing them, when `flush.messages` was above
    1.
    """
    version: int = field(default=0, compare=False)  # the image's partitions_version at the last change

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].target_replicas)


@dataclass(slots=True)
class BrokerState:
    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: dict[str, tuple[str, int]]  # listener name -> (host, port), in order
    rack: str | None = None
    is_fenced: bool = True
    in_controlled_shutdown: bool = False
    directory_id: str = ""
    features: dict[str, tuple[int, int]] = field(default_factory=dict)  # lowest and highest supported level

    @property
    def is_active(self) -> bool:
        """Whether it may lead, be in sync and get new partitions."""
        return not self.is_fenced and not self.in_controlled_shutdown


class MetadataImage:
    def __init__(self) -> None:
        self.topics_version = 0  # grows whenever a topic is created or deleted or gets partitions
        self.partitions_version = 0  # also grows whenever a partition changes
        self.brokers_version = 0  # grows whenever a broker or a peer address changes
        self.clear()

    def clear(self) -> None:
        """Empty the image, before a snapshot fills it."""
        self.cluster_id = ""
        self.topics: dict[str, TopicState] = {}
        self.topics_by_id: dict[bytes, TopicState] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.next_producer_id = 0
        self.scram: dict[str, dict[int, ScramCredentialSet]] = {}  # user -> mechanism -> credential
        self.brokers: dict[int, BrokerState] = {}
        self.next_broker_epoch = 0
        self.features: dict[str, int] = {}  # levels that were set; `features.finalized` adds the defaults
        self.peers: dict[int, tuple[str, int]] = {}  # voter -> address for Raft
        self.topics_version += 1
        self.partitions_version += 1
        self.brokers_version += 1

    def __eq__(self, other: object) -> bool:
        """Equal content; this node's own versions do not count."""
        if not isinstance(other, MetadataImage):
            return NotImplemented
        return list(self.snapshot_records()) == list(other.snapshot_records())

    __hash__ = object.__hash__

    # -- queries ------------------------------------------------------------------------

    def topic_overrides(self, name: str) -> dict[str, str]:
        return self.configs.get((RESOURCE_TOPIC, name), {})

    def live_brokers(self) -> list[int]:
        """Unfenced brokers, sorted, including those shutting down."""
        return sorted(broker.broker_id for broker in self.brokers.values() if not broker.is_fenced)

    def placeable_brokers(self) -> list[int]:
        """Brokers that may get partitions now, sorted: unfenced and not shutting down."""
        return sorted(broker.broker_id for broker in self.brokers.values() if broker.is_active)

    def is_active(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def is_live(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced

    def all_partitions(self) -> Iterator[tuple[TopicState, PartitionState]]:
        for topic in self.topics.values():
            for partition in topic.partitions:
                yield topic, partition

    # -- replay -------------------------------------------------------------------------

    def replay(self, record: MetadataRecord) -> None:
        match record:
            case PartitionChanged(topic_id, index):
                self.partitions_version += 1
                topic = self.topics_by_id[bytes.fromhex(topic_id)]
                topic.version = self.partitions_version
                topic.partitions[index] = _change(topic.partitions[index], record)
            case TopicCreated() | PartitionsAdded() | TopicDeleted() | PartitionRestored():
                self.topics_version += 1
                self.partitions_version += 1
                self._replay_topic(record)
            case (
                BrokerRegistered()
                | BrokerChanged()
                | BrokerUnregistered()
                | BrokerEpochsUsed()
                | PeerAddressSet()
                | PeerAddressRemoved()
            ):
                self.brokers_version += 1
                self._replay_broker(record)
            case ConfigChanged(resource_type, resource_name, overrides, now_durable):
                for name in now_durable:
                    self.topics[name].durable_from_epoch = self.next_broker_epoch
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
            case FeatureChanged(name, level):
                self.features[name] = level

    def _replay_topic(self, record: TopicCreated | PartitionsAdded | TopicDeleted | PartitionRestored) -> None:
        match record:
            case TopicCreated(name, topic_id, assignments, isrs):
                topic = TopicState(name, bytes.fromhex(topic_id), version=self.partitions_version)
                topic.durable_from_epoch = record.durable_from_epoch
                self.topics[name] = self.topics_by_id[topic.topic_id] = topic
                _add_partitions(topic, assignments, isrs)
            case PartitionsAdded(topic_id, assignments, isrs):
                topic = self.topics_by_id[bytes.fromhex(topic_id)]
                topic.version = self.partitions_version
                _add_partitions(topic, assignments, isrs)
            case TopicDeleted(topic_id):
                topic = self.topics_by_id.pop(bytes.fromhex(topic_id))
                del self.topics[topic.name]
                self.configs.pop((RESOURCE_TOPIC, topic.name), None)
            case PartitionRestored(topic_id, index):
                topic = self.topics_by_id[bytes.fromhex(topic_id)]
                topic.version = self.partitions_version
                topic.partitions[index] = PartitionState(
                    index,
                    topic.partitions[index].replicas,
                    record.leader,
                    record.leader_epoch,
                    record.isr,
                    record.partition_epoch,
                    record.elr,
                    record.last_known_elr,
                    record.adding,
                    record.removing,
                )

    def _replay_broker(
        self,
        record: BrokerRegistered
        | BrokerChanged
        | BrokerUnregistered
        | BrokerEpochsUsed
        | PeerAddressSet
        | PeerAddressRemoved,
    ) -> None:
        match record:
            case BrokerRegistered(broker_id, epoch, incarnation_id, endpoints, rack):
                self.brokers[broker_id] = BrokerState(
                    broker_id,
                    epoch,
                    bytes.fromhex(incarnation_id),
                    dict(endpoints),
                    rack,
                    record.is_fenced,
                    record.in_controlled_shutdown,
                    record.directory_id,
                    dict(record.features),
                )
                self.next_broker_epoch = max(self.next_broker_epoch, epoch + 1)
            case BrokerChanged(broker_id, is_fenced, in_controlled_shutdown):
                broker = self.brokers[broker_id]
                if is_fenced is not None:
                    broker.is_fenced = is_fenced
                if in_controlled_shutdown is not None:
                    broker.in_controlled_shutdown = in_controlled_shutdown
            case BrokerUnregistered(broker_id):
                del self.brokers[broker_id]
            case BrokerEpochsUsed(next_broker_epoch):
                self.next_broker_epoch = next_broker_epoch
            case PeerAddressSet(node_id, host, port):
                self.peers[node_id] = (host, port)
            case PeerAddressRemoved(node_id):
                self.peers.pop(node_id, None)

    # -- copies and snapshots -----------------------------------------------------------

    def copy(self) -> MetadataImage:
        """Return a copy for a reader, while this image keeps changing."""
        image = MetadataImage()
        image.cluster_id = self.cluster_id
        for topic in self.topics.values():
            own = TopicState(topic.name, topic.topic_id, topic.partitions[:], topic.durable_from_epoch, topic.version)
            image.topics[topic.name] = image.topics_by_id[topic.topic_id] = own
        image.configs = self.configs.copy()  # overrides of a resource are replaced, never changed
        image.next_producer_id = self.next_producer_id
        image.scram = {user: mechanisms.copy() for user, mechanisms in self.scram.items()}
        image.brokers = {broker_id: replace(broker) for broker_id, broker in self.brokers.items()}
        image.next_broker_epoch = self.next_broker_epoch
        image.features = self.features.copy()
        image.peers = self.peers.copy()
        image.topics_version = self.topics_version
        image.partitions_version = self.partitions_version
        image.brokers_version = self.brokers_version
        return image

    def snapshot_records(self) -> list[MetadataRecord]:
        """Records that make an equal image when replayed into an empty one."""
        return list(self.each_snapshot_record())

    def each_snapshot_record(self) -> Iterator[MetadataRecord]:
        """The records one by one; the image must not change meanwhile."""
        if self.cluster_id:
            yield ClusterCreated(self.cluster_id)
        for name, level in self.features.items():
            yield FeatureChanged(name, level)
        for node, (host, port) in self.peers.items():
            yield PeerAddressSet(node, host, port)
        yield from map(_registered, self.brokers.values())
        if self.next_broker_epoch:
            yield BrokerEpochsUsed(self.next_broker_epoch)
        for topic in self.topics.values():
            yield from _topic_records(topic)
        for (kind, name), found in self.configs.items():
            yield ConfigChanged(kind, name, dict(found))
        for mechanisms in self.scram.values():
            yield from mechanisms.values()
        if self.next_producer_id:
            yield ProducerIdsAllocated(self.next_producer_id)


def effective_min_isr(
    configured: int, replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
) -> int:
    """At most the number of replicas, before and after the reassignment in progress."""
    if not adding and not removing:
        return max(1, min(configured, len(replicas)))
    before = sum(replica not in adding for replica in replicas)
    after = sum(replica not in removing for replica in replicas)
    return max(1, min(configured, before, after))


def _add_partitions(
    topic: TopicState, assignments: tuple[tuple[int, ...], ...], isrs: tuple[tuple[int, ...], ...]
) -> None:
    for replicas, isr in zip(assignments, isrs or assignments, strict=True):
        topic.partitions.append(PartitionState(len(topic.partitions), replicas, leader=isr[0], isr=isr))


def _change(partition: PartitionState, change: PartitionChanged) -> PartitionState:
    is_elected = change.leader is not None
    return PartitionState(
        partition.index,
        partition.replicas if change.replicas is None else change.replicas,
        partition.leader if change.leader is None else change.leader,
        partition.leader_epoch + is_elected,
        partition.isr if change.isr is None else change.isr,
        partition.partition_epoch + 1,
        partition.elr if change.elr is None else change.elr,
        partition.last_known_elr if change.last_known_elr is None else change.last_known_elr,
        partition.adding if change.adding is None else change.adding,
        partition.removing if change.removing is None else change.removing,
    )


def _registered(broker: BrokerState) -> BrokerRegistered:
    return BrokerRegistered(
        broker.broker_id,
        broker.epoch,
        broker.incarnation_id.hex(),
        dict(broker.endpoints),
        broker.rack,
        broker.is_fenced,
        broker.in_controlled_shutdown,
        broker.directory_id,
        dict(broker.features),
    )


def _topic_records(topic: TopicState) -> Iterator[MetadataRecord]:
    """The topic as if created now, then the current state of its partitions."""
    topic_id = topic.topic_id.hex()
    replicas = tuple(partition.replicas for partition in topic.partitions)
    isrs = tuple(partition.isr or partition.replicas for partition in topic.partitions)
    yield TopicCreated(topic.name, topic_id, replicas, () if isrs == replicas else isrs, topic.durable_from_epoch)
    for at, partition in enumerate(topic.partitions):
        if partition != PartitionState(at, replicas[at], isrs[at][0], isr=isrs[at]):
            yield PartitionRestored(
                topic_id,
                partition.index,
                partition.leader,
                partition.leader_epoch,
                partition.isr,
                partition.partition_epoch,
                partition.elr,
                partition.last_known_elr,
                partition.adding,
                partition.removing,
            )
