"""Counts the bytes sent to followers, and holds them back for throttled followers that catch up.

`leader.replication.throttled.rate` is the rate; `leader.replication.throttled.replicas` of a topic lists the replicas.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.replica.partition import Partition
from penstock.replica.throttle import ReplicationQuota, is_throttled_on_leader


class LeaderThrottle:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.quota = ReplicationQuota()
        self.replicated_bytes = 0

    def is_held_back(self, partition: Partition, replica_id: int) -> bool:
        """Whether a follower gets nothing for now."""
        return _is_throttled(partition, replica_id) and self.quota.wait_s(self._now_s()) > 0

    def sent(self, partition: Partition, replica_id: int, size: int) -> None:
        self.replicated_bytes += size
        if _is_throttled(partition, replica_id):
            self.quota.record(size, self._now_s())


def _is_throttled(partition: Partition, replica_id: int) -> bool:
    """Never an in-sync follower: throttling would take it out of the ISR."""
    return replica_id not in partition.isr and is_throttled_on_leader(
        partition.config, partition.index, partition.node_id
    )
