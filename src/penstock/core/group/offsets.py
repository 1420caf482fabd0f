"""Committed offsets of the groups of one shard, changed only by `replay_*`.

Retention follows Kafka. A commit with its own retention time expires after that time. Otherwise
an offset is kept for `offsets.retention.minutes` after

- its group became empty, if the group has a protocol;
- its commit, for a topic that a stable consumer group no longer subscribes to;
- its commit, for a topic that no member of a KIP-848 group subscribes to;
- its commit, if the group never had members (a consumer that assigns partitions itself).
"""

from __future__ import annotations

from penstock.core.group.classic import ClassicGroup
from penstock.core.group.consumer_group import ConsumerGroup
from penstock.core.group.exchange import Committed
from penstock.core.group.records import OffsetCommit, OffsetTombstone
from penstock.core.group.states import State


class Offsets:
    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, dict[int, Committed]]] = {}

    def replay_commit(self, record: OffsetCommit) -> None:
        topics = self._by_group.setdefault(record.group, {})
        topics.setdefault(record.topic, {})[record.partition] = Committed(*record[3:])

    def replay_tombstone(self, record: OffsetTombstone) -> None:
        topics = self._by_group.get(record.group)
        if topics is None or record.topic not in topics:
            return
        partitions = topics[record.topic]
        partitions.pop(record.partition, None)
        if not partitions:
            del topics[record.topic]
            if not topics:
                del self._by_group[record.group]

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self._by_group.get(group_id, {}).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> dict[str, dict[int, Committed]]:
        return self._by_group.get(group_id, {})

    # -- removal, decided -------------------------------------------------------------------

    def tombstones(self, group_id: str) -> list[OffsetTombstone]:
        """Tombstones for all offsets of the group."""
        return [
            OffsetTombstone(group_id, topic, partition)
            for topic, partitions in self.of_group(group_id).items()
            for partition in partitions
        ]

    def expired(
        self, group: ClassicGroup | ConsumerGroup, wall_ms: int, retention_ms: int
    ) -> tuple[list[OffsetTombstone], bool]:
        """Return tombstones for the expired offsets, and whether they are all of the group's offsets."""
        by_topic = self.of_group(group.group_id)
        if not by_topic:
            return [], True
        if group.protocol_type is not None and not _may_expire(group):
            return [], False
        tombstones: list[OffsetTombstone] = []
        total = 0
        for topic, partitions in by_topic.items():
            total += len(partitions)
            if group.protocol_type is not None and group.is_subscribed(topic):
                continue
            for partition, committed in partitions.items():
                if _is_expired(group, committed, wall_ms, retention_ms):
                    tombstones.append(OffsetTombstone(group.group_id, topic, partition))
        return tombstones, len(tombstones) == total


def _may_expire(group: ClassicGroup | ConsumerGroup) -> bool:
    if group.is_empty or isinstance(group, ConsumerGroup):
        return True
    return group.state is State.STABLE and group.subscribed_topics is not None


def _is_expired(group: ClassicGroup | ConsumerGroup, committed: Committed, wall_ms: int, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms >= 0:
        return wall_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms
    if isinstance(group, ClassicGroup) and group.protocol_type is not None and group.is_empty:
        since_ms = since_ms if group.state_timestamp_ms is None else group.state_timestamp_ms
    return wall_ms - since_ms >= retention_ms
