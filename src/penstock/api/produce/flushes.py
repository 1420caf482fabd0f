"""Waits for flushes that are under way.

acks=1 is answered before the flush that makes the record visible to readers. So requests about the end of a log
(ListOffsets, DeleteRecords) wait for the flush of such records, and a client finds the records that were acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.core.partition.roles import Role
from penstock.model.errors import ErrorCode
from penstock.replica.hosting import HostedPartitions


def flushes_under_way(hosted: HostedPartitions, asked: Iterable[tuple[str, int]]) -> list[asyncio.Future[ErrorCode]]:
    """One future for each partition with records that are not visible yet."""
    flushes: list[asyncio.Future[ErrorCode]] = []
    for topic, index in asked:
        partitions = hosted.by_name.get(topic, [])
        if not 0 <= index < len(partitions):
            continue
        partition = partitions[index]
        if partition is None or partition.role is not Role.SOLE_LEADER:
            # with other replicas the high watermark waits for them, which may take long: like Kafka, do not wait
            continue
        end = partition.log.log_end_offset
        if partition.high_watermark < end and partition.log.offline is None:
            flush: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            # Always called, even if the flush fails or the topic is deleted.
            partition.when_committed(end, flush.set_result)
            flushes.append(flush)
    return flushes
