"""OffsetDelete (key 47), version 0: not for topics that members of the group still subscribe to."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import DeleteOffsetsReply, DeleteOffsetsRequest
from penstock.core.metadata.image import MetadataImage
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


class OffsetDeleteHandler:
    api: ClassVar = Api.OFFSET_DELETE
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    bounds: ClassVar = WIDE

    def __init__(self, groups: GroupCoordinator, image: MetadataImage) -> None:
        self._groups = groups
        self._image = image

    async def handle(self, ctx: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        partitions: list[tuple[str, int]] = []
        accepted: list[OffsetDeleteResponsePartition] = []
        topics: list[OffsetDeleteResponseTopic] = []
        async for given in ctx.pace.each(request.topics):
            topic = self._image.topics.get(given.name)
            answers: list[OffsetDeleteResponsePartition] = []
            async for asked in ctx.pace.each(given.partitions):
                answer = OffsetDeleteResponsePartition(partition_index=asked.partition_index)
                answers.append(answer)
                if topic is None or not 0 <= asked.partition_index < len(topic.partitions):
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    accepted.append(answer)
                    partitions.append((topic.name, asked.partition_index))
            topics.append(OffsetDeleteResponseTopic(name=given.name, partitions=answers))
        asked_of_group = DeleteOffsetsRequest(request.group_id, tuple(partitions))
        reply = await self._groups.call(
            request.group_id,
            DeleteOffsetsReply,
            lambda shard, token, now_ms: shard.delete_offsets(asked_of_group, token, now_ms),
        )
        if reply.error is not ErrorCode.NONE:
            raise ApiError(reply.error)
        for answer, code in zip(accepted, reply.errors, strict=True):
            answer.error_code = code
        return OffsetDeleteResponse(topics=topics)

    def refuse(self, request: OffsetDeleteRequest, code: ErrorCode, message: str | None) -> OffsetDeleteResponse:
        return OffsetDeleteResponse(error_code=code)
