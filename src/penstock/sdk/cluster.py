"""Frozen values that an admin client returns: brokers, topics, groups, lag, settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.model.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerInfo, ...]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    id: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_offline(self) -> bool:
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    partitions: tuple[PartitionInfo, ...]

    @property
    def is_internal(self) -> bool:
        return self.name.startswith("__")

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.name, partition.id) for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    state: str
    """Kafka's name: Stable, Empty, PreparingRebalance, CompletingRebalance, Assigning, Reconciling, Dead."""
    protocol: Literal["classic", "consumer", "unknown"]


@dataclass(frozen=True, slots=True)
class MemberInfo:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group_id: str
    state: str
    protocol: Literal["classic", "consumer", "unknown"]
    assignor: str
    coordinator_id: int | None
    members: tuple[MemberInfo, ...]

    def names(self) -> dict[str, str]:
        """A short name for each member id: the instance id or client id if it is unique, else the member id."""
        wanted = {member.member_id: member.instance_id or member.client_id for member in self.members}
        taken = list(wanted.values())
        return {member_id: name if taken.count(name) == 1 else member_id for member_id, name in wanted.items()}


@dataclass(frozen=True, slots=True)
class PartitionLag:
    topic: str
    partition: int
    committed: int | None
    start_offset: int | None
    end_offset: int | None
    """None if the partition no longer exists."""
    member_id: str | None

    @property
    def lag(self) -> int | None:
        """None if nothing was committed or the partition no longer exists."""
        if self.committed is None or self.start_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - max(self.committed, self.start_offset))


@dataclass(frozen=True, slots=True)
class OffsetChange:
    topic: str
    partition: int
    old: int | None
    new: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """A position for `reset_offsets`: this number of records forward, or backward if negative."""

    records: int


@dataclass(frozen=True, slots=True)
class ConfigSetting:
    name: str
    value: str | None
    """None if the setting is not set or secret."""
    source: Literal["topic", "broker", "cluster", "file", "default", "group", "unknown"]
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[str, ...] = field(default=())
