"""Partitions, topics and groups, under the names of kafka_exporter.

A broker reports only the partitions it leads and the groups it coordinates, so sums over the
brokers of a cluster are correct. The lag of a group is reported if its coordinator has a replica
of the partition, which may be slightly behind the leader. As in kafka_exporter, offsets are those
that a client gets from ListOffsets: the high watermark and the log start.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import Committed
from penstock.core.metadata.image import NO_LEADER
from penstock.model.errors import ApiError, NotCached, StorageError
from penstock.model.sink_names import SINKS_TOPIC
from penstock.observability.exposition import Family, Sample, gauge
from penstock.observability.replication_metrics import is_under_replicated
from penstock.ports.clock import Clock
from penstock.ports.workers import Workers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.storage.segments.lookups import Lookup, timestamp_at

_PARTITION = ("topic", "partition")
_GROUP = ("consumergroup", "topic", "partition")
_GROUP_TOPIC = ("consumergroup", "topic")
PIECE = 1000  # offsets processed in one turn of the event loop
Place: TypeAlias = tuple[bytes, int, int]  # topic id, partition, offset


class PartitionMetrics:
    def __init__(self, partitions: HostedPartitions, leaderless: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """`leaderless` returns the partitions without a leader, on the active controller only."""
        self._partitions = partitions
        self._leaderless = leaderless

    async def families(self) -> AsyncIterator[Family]:
        # A copy: partitions come and go while the page is written.
        hosted = [partition for partition in self._partitions if partition.is_leader]
        labels = [(partition.topic, str(partition.index)) for partition in hosted]
        leaderless = [(topic, str(index)) for topic, index in self._leaderless()]

        def each(name: str, help_text: str, values: Iterator[float]) -> Family:
            return gauge(name, help_text, _PARTITION, zip(labels, values, strict=True))

        yield gauge(
            "kafka_topic_partitions",
            "Partitions of this topic led by this broker.",
            ("topic",),
            [((topic,), count) for topic, count in Counter(topic for topic, _ in labels).items()],
        )
        yield each(
            "kafka_topic_partition_current_offset",
            "High watermark of a partition: the offset after the last record visible to consumers.",
            (partition.high_watermark for partition in hosted),
        )
        yield each(
            "kafka_topic_partition_oldest_offset",
            "Log start offset of a partition.",
            (partition.log.log_start_offset for partition in hosted),
        )
        yield gauge(
            "kafka_topic_partition_leader",
            "Node id of the leader, -1 if there is none.",
            _PARTITION,
            [(label, partition.leader) for label, partition in zip(labels, hosted, strict=True)]
            + [(label, NO_LEADER) for label in leaderless],
        )
        yield each(
            "kafka_topic_partition_leader_is_preferred",
            "1 if the leader is the preferred replica.",
            (int(partition.leader == partition.replicas[0]) for partition in hosted),
        )
        yield each("kafka_topic_partition_replicas", "Number of replicas.", (len(p.replicas) for p in hosted))
        yield each(
            "kafka_topic_partition_in_sync_replica",
            "Number of in-sync replicas.",
            (len(partition.isr) for partition in hosted),
        )
        yield each(
            "kafka_topic_partition_under_replicated_partition",
            "1 if a replica is not in sync.",
            (int(is_under_replicated(partition)) for partition in hosted),
        )
        yield each("kafka_log_log_size", "Size of a partition's segments in bytes.", (p.log.size_bytes for p in hosted))
        yield gauge(
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "Partitions that cannot be served: without a leader (from the active controller), or led by this broker "
            "with a log that failed or could not be opened.",
            (),
            [((), len(leaderless) + sum(partition.log.offline is not None for partition in hosted))],
        )


class GroupPosition(NamedTuple):
    """A committed offset of a group on a partition, and its lag at that moment."""

    labels: tuple[str, str, str]
    offset: int
    lag: int
    partition: Partition | None
    """None: this broker has no replica, so the lag is unknown."""


class GroupMetrics:
    """Lag in seconds is the age of the first uncommitted record; 0 if there is none."""

    def __init__(self, groups: GroupCoordinator, partitions: HostedPartitions, clock: Clock, workers: Workers) -> None:
        self._groups = groups
        self._partitions = partitions
        self._clock = clock
        self._workers = workers
        # Cached: an idle group is scraped again and again, and its answer does not change.
        self._timestamps: dict[Place, int] = {}

    async def families(self) -> AsyncIterator[Family]:
        positions: list[GroupPosition] = []
        members: list[Sample] = []
        for hosted in list(self._groups.shards()):
            if hosted.is_ready:
                for group_id, group in list(hosted.shard.groups.items()):
                    members.append(((group_id,), len(group.members)))
                    before = len(positions)
                    positions += self._positions(group_id, hosted.shard.offsets.of_group(group_id))
                    if before // PIECE != len(positions) // PIECE:
                        await asyncio.sleep(0)
                await asyncio.sleep(0)
        known = [position for position in positions if position.partition is not None]
        yield gauge("kafka_consumergroup_members", "Number of members of a group.", _GROUP[:1], members)
        yield gauge(
            "kafka_consumergroup_current_offset",
            "Committed offset of a group on a partition.",
            _GROUP,
            ((position.labels, position.offset) for position in positions),
        )
        yield gauge(
            "kafka_consumergroup_current_offset_sum",
            "Committed offsets of a group, summed over the partitions of a topic.",
            _GROUP_TOPIC,
            _summed((position.labels, position.offset) for position in positions),
        )
        yield gauge(
            "kafka_consumergroup_lag",
            "Records not yet committed by a group on a partition.",
            _GROUP,
            ((position.labels, position.lag) for position in known),
        )
        yield gauge(
            "kafka_consumergroup_lag_sum",
            "Records not yet committed by a group, summed over the partitions of a topic.",
            _GROUP_TOPIC,
            _summed((position.labels, position.lag) for position in known),
        )
        yield gauge(
            "kafka_consumergroup_lag_seconds",
            "Age of the first record not yet committed by a group on a partition.",
            _GROUP,
            await self._ages(positions),
        )

    def _positions(self, group_id: str, topics: dict[str, dict[int, Committed]]) -> Iterator[GroupPosition]:
        for topic, by_index in topics.items():
            if topic == SINKS_TOPIC:
                continue  # batch numbers
            partitions = self._partitions.by_name.get(topic, [])
            for index, committed in by_index.items():
                if index < len(partitions):
                    partition = partitions[index]
                    # Records deleted by retention count as lag too, because the group has not read them.
                    lag = 0 if partition is None else max(partition.high_watermark - committed.offset, 0)
                    yield GroupPosition((group_id, topic, str(index)), committed.offset, lag, partition)

    async def _ages(self, positions: list[GroupPosition]) -> list[Sample]:
        now_ms = self._clock.now_ms()
        known, self._timestamps = self._timestamps, {}
        ages: list[Sample] = []
        for first in range(0, len(positions), PIECE):
            ages += await self._ages_of(positions[first : first + PIECE], known, now_ms)
            await asyncio.sleep(0)
        return ages

    async def _ages_of(self, positions: list[GroupPosition], known: dict[Place, int], now_ms: int) -> list[Sample]:
        ages: list[Sample] = []
        cold: list[tuple[tuple[str, str, str], Place, Lookup]] = []
        for labels, offset, lag, partition in positions:
            if partition is None:
                continue
            if not lag:
                ages.append((labels, 0.0))
                continue
            first = max(offset, partition.log.log_start_offset)
            place = (partition.topic_id, partition.index, first)
            timestamp = known[place] if place in known else _timestamp(partition, first)
            if isinstance(timestamp, Lookup):
                cold.append((labels, place, timestamp))
            elif timestamp >= 0:
                self._timestamps[place] = timestamp
                ages.append((labels, max(now_ms - timestamp, 0) / 1000))
        if cold:
            lookups = [lookup for _, _, lookup in cold]
            found = await self._workers.run(lambda: [timestamp_at(lookup) for lookup in lookups])
            for (labels, place, _), first_ms in zip(cold, found, strict=True):
                if first_ms >= 0:
                    self._timestamps[place] = first_ms
                    ages.append((labels, max(now_ms - first_ms, 0) / 1000))
        return ages


def _timestamp(partition: Partition, offset: int) -> int | Lookup:
    """-1: unknown, so the partition has no sample this time. A Lookup: for a worker."""
    if partition.is_deleted:
        return -1
    try:
        return partition.log.reader.timestamp_at(offset)
    except NotCached:
        return partition.log.reader.lookup(offset, 0)
    except (StorageError, ApiError, OSError):
        return -1


def _summed(samples: Iterator[tuple[tuple[str, str, str], int]]) -> list[Sample]:
    sums: dict[tuple[str, ...], int] = {}
    for labels, number in samples:
        sums[labels[:2]] = sums.get(labels[:2], 0) + number
    return list(sums.items())
