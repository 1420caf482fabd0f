"""Throttles catching-up replicas: `follower.replication.throttled.rate` and the leader's counterpart.

Fetched bytes are a debt, paid off at the rate. While there is a debt, throttled replicas fetch nothing. So the rate
holds on average over a second or less, whatever the size of an answer. Must not know: partitions, any clock (time is an
argument).
"""

from __future__ import annotations

from penstock.config.topic import TopicConfig

UNLIMITED = 0x7FFFFFFFFFFFFFFF
EVERY_REPLICA = "*"


class ReplicationQuota:
    __slots__ = ("_debt_bytes", "_paid_at_s", "rate")

    def __init__(self, rate: int = UNLIMITED) -> None:
        self.rate = rate  # bytes per second
        self._debt_bytes = 0.0
        self._paid_at_s = 0.0

    def record(self, size_bytes: int, now_s: float) -> None:
        self._pay(now_s)
        self._debt_bytes += size_bytes

    def wait_s(self, now_s: float) -> float:
        """How long throttled replicas must not fetch; 0: no wait; infinite if the rate is 0."""
        if self.rate >= UNLIMITED:
            return 0.0
        self._pay(now_s)
        if self.rate <= 0:
            return float("inf")
        return self._debt_bytes / self.rate

    def _pay(self, now_s: float) -> None:
        if self.rate >= UNLIMITED:
            self._debt_bytes = 0.0
        else:
            self._debt_bytes = max(0.0, self._debt_bytes - (now_s - self._paid_at_s) * self.rate)
        self._paid_at_s = now_s


def is_throttled(config: TopicConfig, index: int, node_id: int) -> bool:
    """Whether the topic lists this replica, as `partition:broker`, or all replicas."""
    return _is_listed(config.follower_replication_throttled_replicas, index, node_id)


def is_throttled_on_leader(config: TopicConfig, index: int, node_id: int) -> bool:
    """The same for a leader `node_id` and the replicas that catch up from it."""
    return _is_listed(config.leader_replication_throttled_replicas, index, node_id)


def _is_listed(listed: tuple[str, ...], index: int, node_id: int) -> bool:
    return bool(listed) and (EVERY_REPLICA in listed or f"{index}:{node_id}" in listed)
