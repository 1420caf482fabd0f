"""A replica whose log cannot be used counts no more and leads no more, as far as the others can do without it.

Two reasons. The log went offline: after a failed flush nobody knows what is on the disk. Or the disk hangs: flushes do
not end (`replica.disk_watch`), so nothing that is taken in here will be acknowledged.

    leading          ask the controller for in-sync replicas without this one, and so for another leader among them
    following        fetch nothing, and while in sync tell the leader that nothing here is to be counted on

Unlike a damaged replica (`replica.repair`) it does not wait until enough others are in sync: it is of no use where it
is, and whoever is in sync has all that was committed. Where nobody is, it goes on as it is: it may be the only one that
has everything. So when all disks hang, leadership moves once to each replica at most, and then stays.

Must not know: why a log cannot be used. Whoever notices that one cannot says so, as often as it likes.
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


class Following(Protocol):
    """`replica.fetchers.ReplicaFetchers`, of which a withdrawal needs this."""

    node_id: int

    def withdraw(self, partition: Partition) -> None: ...

    def take_up(self, partition: Partition) -> None: ...

    def disown(self, partition: Partition, offset: int) -> None: ...


class _Asked(NamedTuple):
    leader_epoch: int
    partition_epoch: int
    at_s: float


class Withdrawals:
    def __init__(self, loop: asyncio.AbstractEventLoop, following: Following) -> None:
        self._loop = loop
        self._following = following
        self._asked: dict[Partition, _Asked] = {}

    def look_at(self, partition: Partition) -> None:
        """Its log may have become unusable or usable, or its role has changed. Cheap to repeat."""
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
        """It leads, and its disk takes nothing in. As a follower it will say so itself, until there is room."""
        if partition.is_leader and len(partition.replicas) > 1:
            self._resign(partition)

    def _resign(self, partition: Partition) -> None:
        followers = partition.followers
        if followers is None or followers.pending_isr is not None or not self._is_due(partition):
            return
        others = tuple(one for one in followers.isr if one != self._following.node_id)
        is_offline = partition.log.offline is not None
        if others:
            # Of a disk that hangs one line is said for all of its partitions (`replica.disk_watch`).
            level = logging.DEBUG if partition.host.is_disk_hung else logging.WARNING
            log.log(level, "%r cannot be led here any more: asking for another leader among %s", partition, others)
            partition.propose_isr(others)
        elif is_offline:
            log.error("%r is offline and nobody else is in sync: mend the disk, or bring others back", partition)

    def _is_due(self, partition: Partition) -> bool:
        """The metadata has changed since it was last asked for, or nobody may have heard."""
        now_s, before = self._loop.time(), self._asked.get(partition)
        asked = _Asked(partition.leader_epoch, partition.partition_epoch, now_s)
        if before is not None and before[:2] == asked[:2] and now_s < before.at_s + REPEAT_AFTER_S:
            return False
        self._asked[partition] = asked
        return True


def is_unusable(partition: Partition) -> bool:
    return partition.log.offline is not None or partition.host.is_disk_hung
