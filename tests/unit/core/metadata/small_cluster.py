"""A cluster of a few brokers and one topic, with the controller's decisions replayed as they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.metadata import brokers, decisions, partitions, reassignment
from penstock.core.metadata.image import MetadataImage, PartitionState
from penstock.core.metadata.records import MetadataRecord
from penstock.core.metadata.requests import ElectionKind, IsrChange, Registration, ReplicaEpoch
from penstock.model.new_topic import NewTopic

TOPIC_ID = bytes(range(16))


class FixedPolicies:
    """Every topic needs one replica in sync and has clean elections."""

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable

    def min_isr(self, topic: str) -> int:
        return 1

    def unclean_ok(self, topic: str) -> bool:
        return False

    def is_durable(self, topic: str) -> bool:
        return self._durable


class SmallCluster:
    def __init__(self, count: int = 3, *, racks: Mapping[int, str] | None = None, min_isr: int = 1) -> None:
        self.image = MetadataImage()
        self.racks = racks or {}
        self.configured_min_isr = min_isr
        self.is_unclean_allowed = False
        self.is_flushed_first = True
        self.lives: dict[int, int] = {}
        for broker in range(1, count + 1):
            self.add(broker)

    def min_isr(self, topic: str) -> int:
        return self.configured_min_isr

    def unclean_ok(self, topic: str) -> bool:
        return self.is_unclean_allowed

    def is_durable(self, topic: str) -> bool:
        return self.is_flushed_first

    def apply(self, records: Sequence[MetadataRecord]) -> Sequence[MetadataRecord]:
        for record in records:
            self.image.replay(record)
        return records

    def create(self, *replicas: Sequence[int], name: str = "t", topic_id: bytes = TOPIC_ID) -> PartitionState:
        """The first partition of a topic with these replicas."""
        given = dict(enumerate(replicas))
        self.apply(decisions.create_topic(self.image, [], NewTopic(name, assignments=given), topic_id))
        return self.image.topics[name].partitions[0]

    @property
    def partition(self) -> PartitionState:
        return self.image.topics["t"].partitions[0]

    def roles(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Leader, ISR and ELR."""
        return self.partition.leader, self.partition.isr, self.partition.elr

    def add(self, broker: int) -> None:
        self.register(broker)
        self.unfence(broker)

    def register(
        self, broker: int, *, is_clean: bool = False, directory_id: str = "", is_same_life: bool = False
    ) -> Sequence[MetadataRecord]:
        known = self.image.brokers.get(broker)
        self.lives[broker] = self.lives.get(broker, 0) + (not is_same_life)
        return self.apply(
            brokers.register(
                self.image,
                Registration(
                    broker,
                    "",
                    bytes([broker, self.lives[broker]] * 8),
                    {"PLAINTEXT": (f"host{broker}", 9092)},
                    self.racks.get(broker),
                    known.epoch if is_clean and known is not None else -1,
                    directory_id=directory_id,
                ),
                self,
                is_clean=is_clean,
            )
        )

    def fence(self, *ids: int) -> None:
        for broker in ids:
            self.apply(brokers.fence(self.image, broker, self))

    def unfence(self, *ids: int) -> None:
        for broker in ids:
            self.apply(brokers.unfence(self.image, broker, self))

    def shut_down(self, broker: int) -> Sequence[MetadataRecord]:
        return self.apply(brokers.begin_controlled_shutdown(self.image, broker, self))

    def alter(self, *isr: int, **changes: Any) -> Sequence[MetadataRecord]:
        """The leader asks for this ISR."""
        state = self.partition
        arguments: dict[str, Any] = {
            "topic_id": TOPIC_ID,
            "index": 0,
            "leader_epoch": state.leader_epoch,
            "partition_epoch": state.partition_epoch,
            "new_isr": [(broker, -1) for broker in isr],
            **changes,
        }
        broker_id = arguments.pop("broker_id", state.leader)
        broker_epoch = arguments.pop("broker_epoch", self.image.brokers[state.leader].epoch)
        replicas = tuple(ReplicaEpoch(*replica) for replica in arguments.pop("new_isr"))
        change = IsrChange(new_isr=replicas, **arguments)
        return self.apply(partitions.alter_partition(self.image, broker_id, broker_epoch, change, self))

    def elect(self, kind: ElectionKind) -> None:
        self.apply(partitions.elect(self.image, "t", 0, kind, self))

    def reassign(self, *replicas: int) -> None:
        self.apply(reassignment.begin(self.image, "t", 0, replicas, self))

    def cancel(self) -> None:
        self.apply(reassignment.cancel(self.image, "t", 0, self))
