"""ListGroups (key 16), versions 0-5: filters by state from version 4, by type from 5."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import ListGroupsReply
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


class ListGroupsHandler:
    api: ClassVar = Api.LIST_GROUPS
    min_version: ClassVar = 0
    max_version: ClassVar = 5

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def handle(self, ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        replies = await self._groups.call_all(
            ListGroupsReply,
            lambda shard, token, now_ms: shard.list_groups(request.states_filter, request.types_filter, token, now_ms),
        )
        return ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=group.group_type,
                )
                for reply in replies
                for group in reply.groups
            ]
        )

    def refuse(self, request: ListGroupsRequest, code: ErrorCode, message: str | None) -> ListGroupsResponse:
        return ListGroupsResponse(error_code=code)
