"""ListOffsets (key 2), versions 1-11.

Timestamps: -1 latest (the high watermark, or the last stable offset for read_committed),
-2 earliest, -3 the record with the largest timestamp, -4 earliest on local disk (the same,
there is no tiered storage), -5 and -6 about tiered storage (nothing there: -1). Any other:
the first record at or after it, or -1.

acks=1 is answered before the flush that lets readers see the record. So that a client finds
what it was told is there, a request that meets such records waits for their flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

from penstock.api.context import RequestContext
from penstock.api.flushes import flushes_under_way
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.records.compression import decompress
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.wire.apis import Api
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED = 1


class ListOffsetsHandler:
    api: ClassVar = Api.LIST_OFFSETS
    min_version: ClassVar = 1
    max_version: ClassVar = 11

    def __init__(self, partitions: HostedPartitions) -> None:
        self._partitions = partitions

    def handle(
        self, ctx: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
        flushes = flushes_under_way(
            self._partitions,
            ((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions),
        )
        return self._answer_after(flushes, ctx, request) if flushes else self._answer(ctx, request)

    async def _answer_after(
        self, flushes: list[asyncio.Future[ErrorCode]], ctx: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        for flush in flushes:
            await flush
        return self._answer(ctx, request)

    def _answer(self, ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        read_committed = request.isolation_level == READ_COMMITTED
        topics: list[ListOffsetsTopicResponse] = []
        for topic in request.topics:
            seen: set[int] = set()
            results: list[ListOffsetsPartitionResponse] = []
            for asked in topic.partitions:
                result = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
                try:
                    if asked.partition_index in seen:
                        raise ApiError(ErrorCode.INVALID_REQUEST)
                    seen.add(asked.partition_index)
                    partition = self._partitions.get(topic.name, asked.partition_index)
                    partition.check_online()
                    partition.check_leader_epoch(asked.current_leader_epoch)
                    _look_up(ctx.version, partition, asked, read_committed, result)
                except (ApiError, StorageError) as error:
                    result.error_code = error.code
                results.append(result)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
        return ListOffsetsResponse(topics=topics)

    def refuse(self, request: ListOffsetsRequest, code: ErrorCode, message: str | None) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=code)
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


def _look_up(
    version: int,
    partition: Partition,
    asked: ListOffsetsPartition,
    read_committed: bool,
    result: ListOffsetsPartitionResponse,
) -> None:
    timestamp = asked.timestamp
    if version < _SINCE_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    log = partition.log
    limit = partition.last_stable_offset if read_committed else partition.high_watermark
    if timestamp == LATEST:
        result.offset = limit
        result.leader_epoch = partition.leader_epoch
        return
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        result.offset = log.log_start_offset
        epoch = log.epochs.epoch_of(log.log_start_offset)
        result.leader_epoch = epoch if epoch >= 0 else partition.leader_epoch
        return
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return
    if timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp(decompress)
    else:
        found = log.offset_for_timestamp(timestamp, decompress)
    if found is not None and found[1] < limit:
        result.timestamp, result.offset = found
        result.leader_epoch = log.epochs.epoch_of(result.offset)
