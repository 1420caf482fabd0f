"""ListOffsets (key 2), versions 1-11.

Timestamps: -1 latest (the high watermark, or the last stable offset for read_committed),
-2 earliest, -3 the record with the largest timestamp, -4 earliest on local disk (the same,
there is no tiered storage), -5 and -6 about tiered storage (nothing there: -1). Any other:
the first record at or after it, or -1.

acks=1 is answered before the flush that lets readers see the record. So that a client finds
what it was told is there, a request that meets such records waits for their flush.

Only the leader answers, and a new one only when its high watermark has reached the place where it
took over: until then it may be behind what the last one showed (OFFSET_NOT_AVAILABLE, before
version 5 LEADER_NOT_AVAILABLE). For followers (replica id >= 0) the latest is the end of the log;
a debugging replica (-2) may ask anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

from penstock.api.bounds import WIDE
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
DEBUGGING_REPLICA = -2
FIRST_WITH_OFFSET_NOT_AVAILABLE = 5


class ListOffsetsHandler:
    api: ClassVar = Api.LIST_OFFSETS
    min_version: ClassVar = 1
    max_version: ClassVar = 11
    bounds: ClassVar = WIDE

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
                    if request.replica_id != DEBUGGING_REPLICA:
                        partition.check_leading()
                    _look_up(ctx.version, partition, asked, request, result)
                except (ApiError, StorageError) as error:
                    result.error_code = error.code
                    if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and ctx.version < FIRST_WITH_OFFSET_NOT_AVAILABLE:
                        result.error_code = ErrorCode.LEADER_NOT_AVAILABLE
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
    request: ListOffsetsRequest,
    result: ListOffsetsPartitionResponse,
) -> None:
    timestamp = asked.timestamp
    if version < _SINCE_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    log = partition.log
    if request.replica_id >= 0:
        limit, is_behind = log.log_end_offset, False
    else:
        read_committed = request.isolation_level == READ_COMMITTED
        limit = partition.last_stable_offset if read_committed else partition.high_watermark
        is_behind = partition.is_leader and partition.high_watermark < partition.epoch_start_offset
    if timestamp == LATEST:
        if is_behind:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
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
    elif found is not None and is_behind:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
