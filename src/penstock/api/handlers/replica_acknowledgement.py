"""Unsolicited messages of followers (private keys 0x7003 to 0x7005, unadvertised, with an empty answer).

- Acknowledgement: a follower has made its fetched records stable (`wire.acknowledgement`). It may move the high
  watermark, and so complete requests with acks=all. It is ignored for a partition that this broker does not lead, or
  not in that epoch: the follower will learn of the new leader and start over.
- Disowning: a follower has found its log damaged, or cannot write to it. It must not be elected, so the controller is
  asked at once for an ISR without it.
- Wake: a barrier, so it waits for the fetch parked before it, and that fetch makes way (`when_blocked`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

from penstock.api.fetch.follower_connections import FollowerConnections
from penstock.model.errors import ApiError, ErrorCode
from penstock.net.connection import Connection
from penstock.ports.clock import Clock
from penstock.replica.hosting import HostedPartitions
from penstock.replica.isr import go_on_without
from penstock.replica.partition import Partition
from penstock.wire.acknowledgement import ACKNOWLEDGE_KEY, DISOWN_KEY, WAKE_KEY, Acknowledged, read_acknowledgement


class AcknowledgementHandler:
    """A `PrivateHandler`, pipelined: it must not wait for the fetch that is parked on the same connection."""

    key: ClassVar[int] = ACKNOWLEDGE_KEY

    def __init__(self, partitions: HostedPartitions, clock: Clock, followers: FollowerConnections) -> None:
        self._partitions = partitions
        self._clock = clock
        self._followers = followers
        self.ignored = 0

    def receive(self, connection: Connection, slot: int, correlation_id: int, payload: memoryview) -> None:
        replica_id, broker_epoch, entries = read_acknowledgement(payload)
        connection.reply(slot, [])
        if self._followers.is_outdated(replica_id, connection):
            self.ignored += 1
            connection.abort()  # as for a fetch
            return
        now_ms = int(self._clock.monotonic() * 1000)
        for entry in entries:
            try:
                partition = _led_in(self._partitions, entry)
                partition.check_follower(replica_id, entry.leader_epoch)
                # A follower cannot have fetched more than there is: the offset is from another leader's log.
                if entry.offset <= partition.log.log_end_offset:
                    partition.follower_claimed(
                        replica_id, entry.offset, entry.log_start_offset, now_ms, broker_epoch=broker_epoch
                    )
                else:
                    self.ignored += 1
            except ApiError:
                self.ignored += 1


class DisownHandler:
    """A `PrivateHandler`."""

    key: ClassVar[int] = DISOWN_KEY

    def __init__(self, partitions: HostedPartitions) -> None:
        self._partitions = partitions

    def receive(self, connection: Connection, slot: int, correlation_id: int, payload: memoryview) -> None:
        replica_id, _, entries = read_acknowledgement(payload)
        connection.reply(slot, [])
        for entry in entries:
            with suppress(ApiError):
                go_on_without(_led_in(self._partitions, entry), replica_id, entry.offset)


def _led_in(partitions: HostedPartitions, entry: Acknowledged) -> Partition:
    """The partition, if the entry is of its leader epoch. Unlike clients, a follower always sends the epoch."""
    partition = partitions.get_by_id(entry.topic_id, entry.partition)
    if entry.leader_epoch < 0:
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
    partition.check_leader_epoch(entry.leader_epoch)
    return partition


class WakeHandler:
    """A `PrivateHandler`."""

    key: ClassVar[int] = WAKE_KEY

    def receive(self, connection: Connection, slot: int, correlation_id: int, payload: memoryview) -> None:
        connection.reply(slot, [])
