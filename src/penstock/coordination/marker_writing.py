"""Writes markers into the partitions that this broker leads, for its own and other brokers' coordinators.

Must not know: which coordinator decided.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.coordination.groups import OFFSETS_TOPIC, GroupCoordinator
from penstock.core.shard.exchange import Marker
from penstock.core.txn.exchange import MarkersDue
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.ports.clock import Clock
from penstock.replica.hosting import HostedPartitions

PLACES_PER_TURN: Final = 64


class MarkerWriter:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        partitions: HostedPartitions,
        groups: GroupCoordinator,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self._partitions = partitions
        self._groups = groups
        self._clock = clock

    async def write(self, due: MarkersDue, coordinator_epoch: int, places: frozenset[Place]) -> dict[Place, ErrorCode]:
        marker = Marker(due.producer_id, due.epoch, due.is_commit, coordinator_epoch, due.version)
        return await self.write_all(marker, places)

    async def write_all(
        self, marker: Marker, places: frozenset[Place], patience_s: float | None = None
    ) -> dict[Place, ErrorCode]:
        """Append the marker to all partitions, then wait. Returns when each marker is committed or has failed.

        A marker that is not committed after `patience_s` gets REQUEST_TIMED_OUT: it stays in the log, and is sent
        again.
        """
        waits: dict[Place, asyncio.Future[ErrorCode]] = {}
        for place in sorted(places):
            waits[place] = self._begin(marker, place)
            if not len(waits) % PLACES_PER_TURN:
                await asyncio.sleep(0)
        if pending := [wait for wait in waits.values() if not wait.done()]:
            await asyncio.wait(pending, timeout=patience_s)
        return {place: wait.result() if wait.done() else ErrorCode.REQUEST_TIMED_OUT for place, wait in waits.items()}

    def _begin(self, marker: Marker, place: Place) -> asyncio.Future[ErrorCode]:
        topic, index = place
        if topic == OFFSETS_TOPIC:
            return self._loop.create_task(self._end_offsets(marker, index))
        written: asyncio.Future[ErrorCode] = self._loop.create_future()

        def settle(code: ErrorCode) -> None:
            if not written.done():
                written.set_result(code)

        try:
            partition = self._partitions.get(topic, index)
            partition.check_leading()
            partition.check_min_isr()
            partition.append_marker(marker, self._clock.now_ms())
            # Also if the marker is already there: it may not be committed yet.
            end = partition.log.log_end_offset
            if partition.high_watermark >= end:
                settle(ErrorCode.NONE)
            else:
                partition.when_committed(end, settle)
        except (ApiError, StorageError) as error:
            settle(ErrorCode(error.code))
        return written

    async def _end_offsets(self, marker: Marker, index: int) -> ErrorCode:
        try:
            await self._groups.end_transaction(index, marker)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE
