"""A follower's reports to the leader about its own log: the stable offset, and damage.

One frame covers all partitions of a leader whose flushes ended in this turn. Must not know: fetches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.broker_link.leader_link import LeaderLink
from penstock.replica.following import FollowedPartition, FollowerSession
from penstock.replica.partition import Partition
from penstock.wire.acknowledgement import DISOWN_KEY, Acknowledged, acknowledgement_frame


class Claims:
    """The reports to one leader."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        session: FollowerSession,
        link: LeaderLink,
        node_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._session = session
        self._link = link
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._claimed: dict[FollowedPartition, None] = {}
        self._is_acknowledging_due = False
        self.acknowledgements = 0  # for observability

    def claimed(self, partition: Partition) -> None:
        """More of the partition is stable: the leader is notified before this turn is over."""
        followed = self._session.followed.get((partition.topic_id, partition.index))
        if followed is None or not followed.is_matched:
            return
        self._claimed[followed] = None
        if not self._is_acknowledging_due:
            self._is_acknowledging_due = True
            self._loop.call_soon(self._acknowledge)

    def forget(self, followed: FollowedPartition) -> None:
        self._claimed.pop(followed, None)

    def disown(self, followed: FollowedPartition, offset: int) -> None:
        """Only the log below `offset` is intact here: the leader must not count this replica for more."""
        entries = [_entry(followed, offset)]
        self._link.send_frame(acknowledgement_frame(self._node_id, self._broker_epoch(), entries, key=DISOWN_KEY))

    def _acknowledge(self) -> None:
        self._is_acknowledging_due = False
        claimed, self._claimed = self._claimed, {}
        if not self._link.is_up:
            return  # everything is reported again after the reconnect
        entries = [
            _entry(followed, followed.partition.claimed_offset())
            for followed in claimed
            if followed.is_matched
            and followed.asked_epoch == followed.partition.leader_epoch
            and not followed.partition.is_leader
            and not followed.partition.is_deleted
        ]
        if entries:
            self.acknowledgements += 1
            self._link.send_frame(acknowledgement_frame(self._node_id, self._broker_epoch(), entries))


def _entry(followed: FollowedPartition, offset: int) -> Acknowledged:
    partition = followed.partition
    return Acknowledged(
        partition.topic_id, partition.index, partition.leader_epoch, offset, partition.log.log_start_offset
    )
