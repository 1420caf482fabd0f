"""DeleteGroups (key 42), versions 0-2: deletes each group alone, with all its committed offsets."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import DeleteGroupReply
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


class DeleteGroupsHandler:
    api: ClassVar = Api.DELETE_GROUPS
    min_version: ClassVar = 0
    max_version: ClassVar = 2

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def handle(self, ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        names = list(dict.fromkeys(request.groups_names))
        codes = await ctx.pace.gather(self._delete(group_id) for group_id in names)
        return DeleteGroupsResponse(
            results=[
                DeletableGroupResult(group_id=group_id, error_code=code)
                for group_id, code in zip(names, codes, strict=True)
            ]
        )

    async def _delete(self, group_id: str) -> ErrorCode:
        try:
            reply = await self._groups.call(
                group_id,
                DeleteGroupReply,
                lambda shard, token, now_ms: shard.delete_group(group_id, token, now_ms),
            )
        except ApiError as error:
            return error.code
        return reply.error

    def refuse(self, request: DeleteGroupsRequest, code: ErrorCode, message: str | None) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=group_id, error_code=code) for group_id in request.groups_names]
        )
