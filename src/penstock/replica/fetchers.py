"""All replica fetchers of this broker: one for each leader, and each partition with the right one.

The metadata names the leader. `role_changed` moves a partition to the right fetcher at once, in every new leader epoch.
The connection to a leader closes when no partition follows it any longer. Must not know: the image, the controller, how
partitions come and go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.broker_link.introduction import PeerIdentity
from penstock.config.broker import BrokerConfig
from penstock.core.partition.following import Hold, Input
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.clock import Clock
from penstock.ports.workers import Workers
from penstock.replica.divergence import Recovering, RecoveryPoints
from penstock.replica.following import FollowedPartition
from penstock.replica.partition import Partition
from penstock.replica.repair import Repairs
from penstock.replica.replica_fetcher import ReplicaFetcher
from penstock.replica.throttle import ReplicationQuota
from penstock.replica.withdrawal import Withdrawals

log = logging.getLogger(__name__)


class Running(Protocol):
    """The part of `cluster.running_config.RunningConfig` used here: the current settings."""

    current: BrokerConfig


class ReplicaFetchers:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        identity: PeerIdentity,
        broker_epoch: Callable[[], int],
        address_of: Callable[[int], tuple[str, int] | None],
        partitions: RecoveryPoints,
        running: Running,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self.node_id = identity.node_id
        self.identity = identity
        self.broker_epoch = broker_epoch
        self.address_of = address_of
        self._running = running
        self._clock = clock
        self.quota = ReplicationQuota()
        self.recovering = Recovering(loop, partitions, workers)
        self.repairs = Repairs(loop, self, self.recovering, workers)
        self.withdrawals = Withdrawals(loop, self)
        self.by_leader: dict[int, ReplicaFetcher] = {}
        self._leader_of: dict[Partition, int] = {}
        self._stopping: list[ReplicaFetcher] = []
        self._earlier_bytes_fetched = 0  # by fetchers that have stopped
        self._earlier_errors = 0
        self._earlier_reconnects = 0
        self._is_stopped = False
        self._is_sweep_due = False

    @property
    def config(self) -> BrokerConfig:
        config = self._running.current
        self.quota.rate = config.follower_replication_throttled_rate
        return config

    def role_changed(self, partition: Partition) -> None:
        """The leader or leader epoch of the partition changed, or the partition is gone."""
        if self._is_stopped:
            return
        leader = partition.leader
        follows = leader >= 0 and not partition.is_leader and not partition.is_deleted and leader != self.node_id
        before = self._leader_of.get(partition)
        if before is not None and (not follows or before != leader):
            del self._leader_of[partition]
            partition.when_claimed = None
            self.by_leader[before].unfollow(partition)
            self._sweep_soon()
        if follows:
            fetcher = self.by_leader.get(leader)
            if fetcher is None:
                fetcher = ReplicaFetcher(self._loop, self, leader, self.recovering, self._clock)
                self.by_leader[leader] = fetcher
            self._leader_of[partition] = leader
            partition.when_claimed = fetcher.claims.claimed
            fetcher.follow(partition)
        self.repairs.role_changed(partition)
        self.withdrawals.look_at(partition)

    def _sweep_soon(self) -> None:
        """Runs after all changes of this turn: most partitions move to a leader that is already followed."""
        if not self._is_sweep_due:
            self._is_sweep_due = True
            self._loop.call_soon(self._sweep)

    def _sweep(self) -> None:
        self._is_sweep_due = False
        for leader in [leader for leader, fetcher in self.by_leader.items() if not fetcher.session.followed]:
            fetcher = self.by_leader.pop(leader)
            fetcher.stop()
            self._stopping.append(fetcher)
            self._earlier_bytes_fetched += fetcher.bytes_fetched
            self._earlier_errors += fetcher.errors
            self._earlier_reconnects += fetcher.link.reconnects
        self._stopping = [fetcher for fetcher in self._stopping if fetcher.has_work]

    def found_damage(self, partition: Partition, path: str) -> None:
        self.repairs.found(partition, path)

    def hold(self, partition: Partition) -> None:
        """The partition is damaged: stop fetching it until `release`."""
        followed = self._followed(partition)
        if followed is not None:
            self.by_leader[self._leader_of[partition]].session.meet(followed, Input.DAMAGED)

    def release(self, partition: Partition) -> None:
        """The partition is repaired, or must be used as it is."""
        followed = self._followed(partition)
        if followed is not None:
            self.by_leader[self._leader_of[partition]].let_go(followed, Input.MENDED)

    def withdraw(self, partition: Partition) -> None:
        """The log cannot be used: stop fetching it until `take_up`. Cheap to repeat."""
        followed = self._followed(partition)
        if followed is not None and Hold.WITHDRAWN not in followed.holds:
            self.by_leader[self._leader_of[partition]].session.meet(followed, Input.WITHDRAWN)

    def take_up(self, partition: Partition) -> None:
        """The log can be used again. Cheap to repeat."""
        followed = self._followed(partition)
        if followed is not None and Hold.WITHDRAWN in followed.holds:
            self.by_leader[self._leader_of[partition]].let_go(followed, Input.TAKEN_UP)

    def disown(self, partition: Partition, offset: int) -> None:
        followed = self._followed(partition)
        if followed is not None:
            self.by_leader[self._leader_of[partition]].claims.disown(followed, offset)

    async def leaders_batches(self, partition: Partition, offset: int) -> bytes:
        return await self._fetcher_of(partition).ask_batches(partition, offset)

    async def leaders_offset(self, partition: Partition, which: int) -> int:
        return await self._fetcher_of(partition).ask_offset(partition, which)

    def _fetcher_of(self, partition: Partition) -> ReplicaFetcher:
        leader = self._leader_of.get(partition)
        if leader is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition!r} follows no leader")
        return self.by_leader[leader]

    def _followed(self, partition: Partition) -> FollowedPartition | None:
        leader = self._leader_of.get(partition)
        if leader is None:
            return None
        return self.by_leader[leader].session.followed.get((partition.topic_id, partition.index))

    async def stop(self) -> None:
        self._is_stopped = True
        self.repairs.stop()
        fetchers = [*self.by_leader.values(), *self._stopping]
        for fetcher in fetchers:
            fetcher.stop()
        for fetcher in fetchers:
            await fetcher.settled()
        await self.recovering.settled()

    # -- for observability ----------------------------------------------------------------------------------------

    @property
    def bytes_fetched(self) -> int:
        return self._earlier_bytes_fetched + sum(fetcher.bytes_fetched for fetcher in self.by_leader.values())

    @property
    def errors(self) -> int:
        return self._earlier_errors + sum(fetcher.errors for fetcher in self.by_leader.values())

    @property
    def reconnects(self) -> int:
        return self._earlier_reconnects + sum(fetcher.link.reconnects for fetcher in self.by_leader.values())

    def lags(self) -> Iterator[tuple[Partition, int]]:
        """Each followed partition, and how many committed records of its leader are missing here."""
        for fetcher in self.by_leader.values():
            for followed in fetcher.session.followed.values():
                yield followed.partition, followed.lag
