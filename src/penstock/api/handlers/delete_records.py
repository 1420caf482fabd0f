"""DeleteRecords (key 21), versions 0-2.

Moves the log start offset; -1 means the high watermark. Before the response leaves, the new start is on disk (Kafka
persists it at its next checkpoint) and all live replicas have deleted the records; REQUEST_TIMED_OUT if they have not
yet. The request waits for the flush of records acknowledged with acks=1, so that they can be deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.produce.flushes import flushes_under_way
from penstock.core.partition.roles import Role
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.wire.apis import Api
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


class DeleteRecordsHandler:
    api: ClassVar = Api.DELETE_RECORDS
    min_version: ClassVar = 0
    max_version: ClassVar = 2
    bounds: ClassVar = WIDE

    def __init__(self, partitions: HostedPartitions) -> None:
        self._partitions = partitions

    async def handle(self, ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        for flush in flushes_under_way(
            self._partitions,
            ((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions),
        ):
            await flush
        topics: list[DeleteRecordsTopicResult] = []
        moved: list[tuple[DeleteRecordsPartitionResult, Partition]] = []
        trimmed: list[Partition] = []
        async for topic in ctx.pace.each(request.topics):
            results: list[DeleteRecordsPartitionResult] = []
            async for asked in ctx.pace.each(topic.partitions):
                result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
                try:
                    partition = self._partitions.get(topic.name, asked.partition_index)
                    if "delete" not in partition.config.cleanup_policy:
                        raise ApiError(ErrorCode.POLICY_VIOLATION)
                    result.low_watermark = partition.delete_records(asked.offset)
                    trimmed.append(partition)
                    if partition.role is Role.LEADER:
                        moved.append((result, partition))
                except (ApiError, StorageError) as error:
                    result.error_code = error.code
                results.append(result)
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        await self._partitions.housekeeping.persist_offsets()
        await self._partitions.housekeeping.delete_below_start(trimmed)
        if moved:
            await _everywhere(moved, request.timeout_ms / 1000)
        return DeleteRecordsResponse(topics=topics)

    def refuse(self, request: DeleteRecordsRequest, code: ErrorCode, message: str | None) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        DeleteRecordsPartitionResult(
                            partition_index=asked.partition_index, low_watermark=-1, error_code=code
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


async def _everywhere(moved: Sequence[tuple[DeleteRecordsPartitionResult, Partition]], timeout_s: float) -> None:
    """Wait until the followers have deleted the records."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    waiting: list[tuple[DeleteRecordsPartitionResult, Partition, asyncio.Future[ErrorCode]]] = []
    for result, partition in moved:
        deleted: asyncio.Future[ErrorCode] = loop.create_future()
        partition.when_deleted(result.low_watermark, partial(_tell, deleted))
        waiting.append((result, partition, deleted))
    for result, partition, deleted in waiting:
        try:
            async with asyncio.timeout_at(deadline):
                code = await deleted
        except TimeoutError:
            code = ErrorCode.REQUEST_TIMED_OUT
        result.error_code = code
        result.low_watermark = partition.low_watermark if code is ErrorCode.NONE else -1


def _tell(deleted: asyncio.Future[ErrorCode], code: ErrorCode) -> None:
    if not deleted.done():
        deleted.set_result(code)
