"""OffsetFetch (key 9), versions 1-10: one group until version 7, many from 8 on; topics null means all.

- With `require_stable` (from version 7) a partition with an offset from an open transaction is UNSTABLE_OFFSET_COMMIT.
  Without it the response has the offset from before that transaction.
- Topics are in the order of the request, unknown ids after them. A group with an error has no topics; version 1 has no
  other place for the error than the partitions.
- Version 10 names topics by id; offsets of a deleted topic are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import Committed, FetchOffsetsReply, FetchOffsetsRequest, Unstable
from penstock.core.metadata.image import MetadataImage
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from penstock.wire.primitives import NULL_UUID

FIRST_WITH_ERROR_OF_THE_GROUP = 2
FIRST_WITH_MANY_GROUPS = 8
FIRST_WITH_TOPIC_IDS = 10
NO_OFFSET = -1
Found: TypeAlias = Committed | Unstable | None


class OffsetFetchHandler:
    api: ClassVar = Api.OFFSET_FETCH
    min_version: ClassVar = 1
    max_version: ClassVar = 10
    bounds: ClassVar = WIDE

    def __init__(self, groups: GroupCoordinator, image: MetadataImage) -> None:
        self._groups = groups
        self._image = image

    async def handle(self, ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        if ctx.version < FIRST_WITH_MANY_GROUPS:
            return await self._one_group(request, ctx.version)
        by_id = ctx.version >= FIRST_WITH_TOPIC_IDS
        groups = await ctx.pace.gather(
            self._fetch_group(group, request.require_stable, by_id) for group in request.groups
        )
        return OffsetFetchResponse(groups=groups)

    async def _one_group(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        wanted: dict[str, tuple[int, ...]] | None = None
        if request.topics is not None:
            wanted = {}
            for topic in request.topics:
                wanted[topic.name] = (*wanted.get(topic.name, ()), *topic.partition_indexes)
        try:
            reply = await self._fetch(
                FetchOffsetsRequest(request.group_id, wanted, require_stable=request.require_stable)
            )
            code = reply.error
        except ApiError as error:
            code = error.code
        if code is not ErrorCode.NONE:
            if version < FIRST_WITH_ERROR_OF_THE_GROUP:
                return self.refuse(request, code, None)
            return OffsetFetchResponse(error_code=code)
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(name=name, partitions=_partitions_v7(partitions))
                for name, partitions in reply.topics.items()
            ]
        )

    async def _fetch(self, asked: FetchOffsetsRequest) -> FetchOffsetsReply:
        return await self._groups.call(
            asked.group_id,
            FetchOffsetsReply,
            lambda shard, token, now_ms: shard.fetch_offsets(asked, token, now_ms),
        )

    async def _fetch_group(
        self, group: OffsetFetchRequestGroup, require_stable: bool, by_id: bool
    ) -> OffsetFetchResponseGroup:
        unknown: list[OffsetFetchResponseTopics] = []
        wanted: dict[str, tuple[int, ...]] | None = None
        if group.topics is not None:
            indexes: dict[str, list[int]] = {}
            for topic in group.topics:
                name: str | None = topic.name
                if by_id:
                    state = self._image.topics_by_id.get(topic.topic_id)
                    name = None if state is None else state.name
                if name is None:
                    unknown.append(_unknown_id(topic.topic_id, topic.partition_indexes))
                else:
                    indexes.setdefault(name, []).extend(topic.partition_indexes)
            wanted = {name: tuple(asked) for name, asked in indexes.items()}
        asked = FetchOffsetsRequest(group.group_id, wanted, group.member_id, group.member_epoch, require_stable)
        try:
            reply = await self._fetch(asked)
        except ApiError as error:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
        if reply.error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=reply.error)
        answered: list[OffsetFetchResponseTopics] = []
        for name, partitions in reply.topics.items():
            state = self._image.topics.get(name)
            if by_id and state is None:
                continue
            topic_id = NULL_UUID if state is None else state.topic_id
            answered.append(OffsetFetchResponseTopics(topic_id=topic_id, name=name, partitions=_partitions(partitions)))
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=[*answered, *unknown])

    def refuse(self, request: OffsetFetchRequest, code: ErrorCode, message: str | None) -> OffsetFetchResponse:
        return OffsetFetchResponse(
            error_code=code,
            topics=[
                # Version 1 has no other place for the error.
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(partition_index=index, committed_offset=NO_OFFSET, error_code=code)
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics or ()
            ],
            groups=[OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups],
        )


def _partitions_v7(partitions: dict[int, Found]) -> list[OffsetFetchResponsePartition]:
    return [OffsetFetchResponsePartition(**_fields(index, found)) for index, found in partitions.items()]


def _partitions(partitions: dict[int, Found]) -> list[OffsetFetchResponsePartitions]:
    return [OffsetFetchResponsePartitions(**_fields(index, found)) for index, found in partitions.items()]


def _fields(index: int, found: Found) -> dict[str, Any]:
    if found is None:
        return {"partition_index": index, "committed_offset": NO_OFFSET}
    if isinstance(found, Unstable):
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return {"partition_index": index, "committed_offset": NO_OFFSET, "error_code": code}
    return {
        "partition_index": index,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
    }


def _unknown_id(topic_id: bytes, indexes: Iterable[int]) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=NO_OFFSET, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
            for index in indexes
        ],
    )
