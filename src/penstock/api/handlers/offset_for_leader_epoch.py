"""OffsetForLeaderEpoch (key 23), versions 2-4: the end offset of an epoch, so that clients notice truncation."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.replica.hosting import HostedPartitions
from penstock.wire.apis import Api
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)


class OffsetForLeaderEpochHandler:
    api: ClassVar = Api.OFFSET_FOR_LEADER_EPOCH
    min_version: ClassVar = 2
    max_version: ClassVar = 4
    bounds: ClassVar = WIDE

    def __init__(self, partitions: HostedPartitions) -> None:
        self._partitions = partitions

    async def handle(self, ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topics: list[OffsetForLeaderTopicResult] = []
        async for topic in ctx.pace.each(request.topics):
            results: list[EpochEndOffset] = []
            async for asked in ctx.pace.each(topic.partitions):
                result = EpochEndOffset(partition=asked.partition)
                try:
                    partition = self._partitions.get(topic.topic, asked.partition)
                    partition.check_online()
                    partition.check_leader_epoch(asked.current_leader_epoch)
                    partition.check_leading()
                    result.leader_epoch, result.end_offset = partition.end_of_epoch(asked.leader_epoch)
                except (ApiError, StorageError) as error:
                    result.error_code = error.code
                results.append(result)
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
        return OffsetForLeaderEpochResponse(topics=topics)

    def refuse(
        self, request: OffsetForLeaderEpochRequest, code: ErrorCode, message: str | None
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        EpochEndOffset(partition=asked.partition, error_code=code) for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
