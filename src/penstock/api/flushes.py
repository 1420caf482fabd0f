"""Waiting for a flush that is under way.

acks=1 is answered before the flush that lets readers see the record. So that a client finds
what it was told is there, requests that ask about the end of a log (ListOffsets,
DeleteRecords) wait for the flush of what they meet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.model.errors import ErrorCode
from penstock.replica.hosting import HostedPartitions


def flushes_under_way(hosted: HostedPartitions, asked: Iterable[tuple[str, int]]) -> list[asyncio.Future[ErrorCode]]:
    """One future for each partition that holds records its readers do not see yet."""
    flushes: list[asyncio.Future[ErrorCode]] = []
    for topic, index in asked:
        partitions = hosted.by_name.get(topic, [])
        if not 0 <= index < len(partitions):
            continue
        partition = partitions[index]
        if partition is None or not partition.is_leader or partition.followers is not None:
            continue  # there it is replicas that are waited for, which may take long: as in Kafka, nobody does
        end = partition.log.log_end_offset
        if partition.high_watermark < end and partition.log.offline is None:
            flush: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            # Called in any case: also when the flush fails or the topic is deleted.
            partition.when_committed(end, flush.set_result)
            flushes.append(flush)
    return flushes
