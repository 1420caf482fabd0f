"""Takes a replica with an unusable log out of the ISR and out of leadership, as far as the others can do without it.

There are two reasons. The log went offline: after a failed flush the content of the disk is unknown. Or the disk hangs:
flushes do not end (`replica.disk_watch`), so new appends here will not be acknowledged.

    leading          ask the controller for an ISR without this replica, and so for another leader in it
    following        fetch nothing, and while in sync tell the leader not to count on this replica

Unlike a damaged replica (`replica.repair`) it does not wait until enough others are in sync: it is useless as it is,
and every in-sync replica has all committed records. If no other replica is in sync, it stays: it may be the only
complete one. So when all disks hang, leadership moves to each replica at most once and then stays.

Must not know: why a log cannot be used. Callers report an unusable log, as often as they like.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple, Protocol

from penstock.replica.partition import Partition
from penstock.replica.repair import could_not_be_opened

log = logging.getLogger(__name__)

REPEAT_AFTER_S = 5.0
NOTHING = -1  # not even the empty log


class WithdrawalFetchers(Protocol):
    """The part of `replica.fetchers.ReplicaFetchers` that a withdrawal uses."""

    node_id: int

    def withdraw(self, partition: Partition) -> None: ...

    def take_up(self, partition: Partition) -> None: ...

    def disown(self, partition: Partition, offset: int) -> None: ...


class _Asked(NamedTuple):
    leader_epoch: int
    partition_epoch: int
    at_s: float


class Withdrawals:
    def __init__(self, loop: asyncio.AbstractEventLoop, following: WithdrawalFetchers) -> None:
        self._loop = loop
        self._following = following
        self._asked: dict[Partition, _Asked] = {}

    def look_at(self, partition: Partition) -> None:
        """Call when the log may have become unusable or usable, or when the role has changed. Cheap to repeat."""
        if partition.is_deleted:
            self._asked.pop(partition, None)
        elif not is_unusable(partition):
            self._asked.pop(partition, None)
            self._following.take_up(partition)
        elif len(partition.replicas) < 2 or could_not_be_opened(partition):
            return
        elif partition.is_leader:
            self._resign(partition)
        elif partition.leader >= 0:
            self._following.withdraw(partition)
            if self._following.node_id in partition.isr and self._is_due(partition):
                self._following.disown(partition, NOTHING)

    def cannot_append(self, partition: Partition) -> None:
        """The leader's disk cannot store more. As a follower this replica reports that itself, until there is room."""
        if partition.is_leader and len(partition.replicas) > 1:
            self._resign(partition)

    def _resign(self, partition: Partition) -> None:
        followers = partition.followers
        if followers is None or followers.pending_isr is not None or not self._is_due(partition):
            return
        others = tuple(one for one in partition.isr if one != self._following.node_id)
        is_offline = partition.log.offline is not None
        if others:
            # If a disk hangs, `replica.disk_watch` logs one line for all of its partitions.
            level = logging.DEBUG if partition.host.is_disk_hung else logging.WARNING
            log.log(level, "this broker can no longer lead %r: requesting another leader among %s", partition, others)
            partition.propose_isr(others)
        elif is_offline:
            log.error(
                "%r is offline and no other replica is in sync: repair the disk, or bring other replicas back",
                partition,
            )

    def _is_due(self, partition: Partition) -> bool:
        """The metadata has changed since the last request, or the request may be lost."""
        now_s, before = self._loop.time(), self._asked.get(partition)
        asked = _Asked(partition.leader_epoch, partition.partition_epoch, now_s)
        if before is not None and before[:2] == asked[:2] and now_s < before.at_s + REPEAT_AFTER_S:
            return False
        self._asked[partition] = asked
        return True


def is_unusable(partition: Partition) -> bool:
    return partition.log.offline is not None or partition.host.is_disk_hung
