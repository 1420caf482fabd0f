"""OffsetCommit (key 8), versions 2-10: confirmed when the offsets are on disk.

- Unknown topics and partitions are refused one by one (3, or 100 for an unknown id in version 10); the rest is
  committed.
- A retention time from the client (versions 2-4) is kept.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import CommitReply, CommitRequest, OffsetToCommit
from penstock.core.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

FIRST_WITH_TOPIC_IDS = 10
FIRST_WITH_GROUP_NOT_FOUND = 9


class OffsetCommitHandler:
    api: ClassVar = Api.OFFSET_COMMIT
    min_version: ClassVar = 2
    max_version: ClassVar = 10
    bounds: ClassVar = WIDE

    def __init__(self, groups: GroupCoordinator, image: MetadataImage) -> None:
        self._groups = groups
        self._image = image

    async def handle(self, ctx: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
        offsets: list[OffsetToCommit] = []
        accepted: list[OffsetCommitResponsePartition] = []
        topics: list[OffsetCommitResponseTopic] = []
        by_id = ctx.version >= FIRST_WITH_TOPIC_IDS
        async for given in ctx.pace.each(request.topics):
            topic = self._image.topics_by_id.get(given.topic_id) if by_id else self._image.topics.get(given.name)
            missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answers: list[OffsetCommitResponsePartition] = []
            async for asked in ctx.pace.each(given.partitions):
                answer = OffsetCommitResponsePartition(partition_index=asked.partition_index)
                answers.append(answer)
                if topic is None or not 0 <= asked.partition_index < len(topic.partitions):
                    answer.error_code = missing
                    continue
                accepted.append(answer)
                offsets.append(
                    OffsetToCommit(
                        topic.name,
                        asked.partition_index,
                        asked.committed_offset,
                        asked.committed_leader_epoch,
                        asked.committed_metadata or "",
                    )
                )
            topics.append(OffsetCommitResponseTopic(topic_id=given.topic_id, name=given.name, partitions=answers))
        if offsets or not request.topics:
            errors = await self._commit(ctx, request, tuple(offsets))
            for answer, code in zip(accepted, errors, strict=True):
                answer.error_code = code
        return OffsetCommitResponse(topics=topics)

    async def _commit(
        self, ctx: RequestContext, request: OffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
    ) -> tuple[ErrorCode, ...]:
        asked = CommitRequest(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            offsets,
            request.retention_time_ms,
            knows_group_not_found=ctx.version >= FIRST_WITH_GROUP_NOT_FOUND,
        )
        reply = await self._groups.call(
            asked.group_id, CommitReply, lambda shard, token, now_ms: shard.commit_offsets(asked, token, now_ms)
        )
        return reply.errors if reply.error is ErrorCode.NONE else (reply.error,) * len(offsets)

    def refuse(self, request: OffsetCommitRequest, code: ErrorCode, message: str | None) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    topic_id=topic.topic_id,
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
