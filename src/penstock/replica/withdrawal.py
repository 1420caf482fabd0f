"""A replica whose log went offline counts no more and leads no more, as far as the others can do without it.

After a failed flush nobody knows what is on the disk, and nothing is taken or served before a restart. So

    leading          ask the controller for in-sync replicas without this one, and so for another leader among them
    following        fetch nothing, and while in sync tell the leader that nothing here is to be counted on

Unlike a damaged replica (`replica.repair`) it does not wait until enough others are in sync: it is of no use where it
is, and whoever is in sync has all that was committed. Where nobody is, it goes on as it is: it may be the only one that
has everything, once it is restarted.

Must not know: why a log went offline. Whoever notices that one is offline says so, as often as it likes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from penstock.replica.partition import Partition
from penstock.replica.repair import Following, could_not_be_opened

log = logging.getLogger(__name__)

REPEAT_AFTER_S = 5.0
NOTHING = -1  # not even the empty log


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
        """Its log may be offline, or its role has changed. Cheap to repeat."""
        if partition.is_deleted:
            self._asked.pop(partition, None)
        elif partition.log.offline is None or len(partition.replicas) < 2 or could_not_be_opened(partition):
            return
        elif partition.is_leader:
            self._resign(partition)
        elif partition.leader >= 0:
            self._following.hold(partition)
            if self._following.node_id in partition.isr and self._is_due(partition):
                self._following.disown(partition, NOTHING)

    def _resign(self, partition: Partition) -> None:
        followers = partition.followers
        if followers is None or followers.pending_isr is not None or not self._is_due(partition):
            return
        others = tuple(one for one in followers.isr if one != self._following.node_id)
        if others:
            log.warning("%r is offline here, where it is led: asking for another leader among %s", partition, others)
            partition.propose_isr(others)
        else:
            log.error("%r is offline and nobody else is in sync: restart this broker, or bring others back", partition)

    def _is_due(self, partition: Partition) -> bool:
        """The metadata has changed since it was last asked for, or nobody may have heard."""
        now_s, before = self._loop.time(), self._asked.get(partition)
        asked = _Asked(partition.leader_epoch, partition.partition_epoch, now_s)
        if before is not None and before[:2] == asked[:2] and now_s < before.at_s + REPEAT_AFTER_S:
            return False
        self._asked[partition] = asked
        return True
