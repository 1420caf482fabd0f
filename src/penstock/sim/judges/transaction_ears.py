"""Observes transactions, and passes decisions, markers, commits and last stable offsets to their judge.

Knows the names in production code. Must not know: clients, faults. Invariant: listening changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.core.shard.exchange import Marker
from penstock.core.shard.records import CoordinatorRecord
from penstock.core.txn.records import TransactionStored, TransactionTombstone
from penstock.core.txn.shard import TransactionShard
from penstock.records.batch import BatchHeader
from penstock.replica.partition import Partition
from penstock.sim.checks.markers import MarkerChecker
from penstock.sim.cluster import SimCluster
from penstock.sim.judges.judging import Judging
from penstock.sim.places import replaced


class TransactionEars:
    def __init__(self, cluster: SimCluster, judging: Judging) -> None:
        self._cluster = cluster
        self._judging = judging
        self.markers = MarkerChecker()

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, make in (
                ("penstock.replica.partition:Partition.append_marker", self._overhear_marker),
                ("penstock.replica.partition:Partition.append_transactional", self._overhear_batch),
                ("penstock.core.txn.shard:TransactionShard.replay", self._overhear_replay),
            ):
                stack.enter_context(replaced(place, make))
            yield

    def _overhear_marker(self, append_marker: Any) -> Any:
        def overheard(partition: Partition, marker: Marker, now_ms: int) -> bool:
            with self._judging.judging():
                self.markers.marker_appended(f"{partition.topic}-{partition.index} on {partition.node_id}", marker)
            is_appended: bool = append_marker(partition, marker, now_ms)
            return is_appended

        return overheard

    def committed(self, leader: Partition, header: BatchHeader, batch: bytes) -> None:
        with self._judging.judging():
            self.markers.committed((leader.topic_id, leader.index), leader.topic, header, batch)

    def lose_sight(self, leader: Partition) -> None:
        self.markers.lose_sight((leader.topic_id, leader.index), leader.topic)

    def _overhear_batch(self, append: Any) -> Any:
        def overheard(partition: Partition, header: BatchHeader, *rest: Any) -> int:
            is_first = partition.log.producers.needs_verification(header)
            end = partition.log.log_end_offset
            offset: int = append(partition, header, *rest)
            if is_first and offset == end:  # otherwise it is a repeated batch
                with self._judging.judging():
                    key = partition.topic_id, partition.index
                    self.markers.opened(key, partition.topic, header, offset, partition.leader_epoch)
            return offset

        return overheard

    def _overhear_replay(self, replay: Any) -> Any:
        def overheard(shard: TransactionShard, record: CoordinatorRecord) -> None:
            if shard._is_loaded and isinstance(record, TransactionStored):
                after = record.transaction
                with self._judging.judging():
                    self.markers.replays(shard, shard.transactions.get(after.transactional_id), after)
            elif isinstance(record, TransactionTombstone):
                self.markers.forgets(shard, record.transactional_id)
            replay(shard, record)

        return overheard

    def look(self, replicas: Iterable[Partition]) -> None:
        """Check the last stable offsets of one node's replicas."""
        for partition in replicas:
            if partition.is_leader and self.markers.has_open((partition.topic_id, partition.index)):
                self.markers.is_stable(
                    partition.node_id,
                    f"{partition.topic}-{partition.index}",
                    (partition.topic_id, partition.index),
                    partition.high_watermark,
                    partition.last_stable_offset,
                )

    # -- how the cluster is -------------------------------------------------------------

    def unstable(self) -> list[str]:
        """Partitions whose last stable offset is below the high watermark."""
        return [
            f"{partition.topic}-{partition.index} has last stable offset {partition.last_stable_offset} and high "
            f"watermark {partition.high_watermark}"
            for node in self._cluster.living.values()
            for partition in getattr(node, "partitions", ())
            if partition.is_leader and partition.last_stable_offset < partition.high_watermark
        ]

    def ending(self) -> list[str]:
        """Transactions that are decided but not complete."""
        return [
            f"{one.transactional_id} has been in {one.state.title} with epoch {one.epoch} since {one.last_update_ms}"
            for node in self._cluster.living.values()
            for hosted in node.coordinators.transactions.shards()
            for one in hosted.shard.transactions.values()
            if one.is_ending
        ]
