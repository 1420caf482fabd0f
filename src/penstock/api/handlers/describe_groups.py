"""DescribeGroups (key 15), versions 0-6.

A group that does not exist is "Dead" without an error until version 5, GROUP_ID_NOT_FOUND from 6 on. Without ACLs every
client may use all group operations.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.handlers.metadata import NOT_ASKED
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import DescribeGroupReply
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

# read, delete, describe, describe configs, alter configs
ALL_GROUP_OPERATIONS = sum(1 << bit for bit in (3, 6, 8, 10, 11))
FIRST_WITH_NOT_FOUND = 6


class DescribeGroupsHandler:
    api: ClassVar = Api.DESCRIBE_GROUPS
    min_version: ClassVar = 0
    max_version: ClassVar = 6

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def handle(self, ctx: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        groups = await ctx.pace.gather(self._describe(group_id, ctx.version) for group_id in request.groups)
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    async def _describe(self, group_id: str, version: int) -> DescribedGroup:
        try:
            reply = await self._groups.call(
                group_id,
                DescribeGroupReply,
                lambda shard, token, now_ms: shard.describe_group(group_id, token, now_ms),
            )
        except ApiError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, authorized_operations=NOT_ASKED)
        code, message = reply.error, None
        if code is ErrorCode.GROUP_ID_NOT_FOUND:
            if version < FIRST_WITH_NOT_FOUND:
                code = ErrorCode.NONE
            else:
                message = f"Group {group_id} not found."
        return DescribedGroup(
            error_code=code,
            error_message=message,
            group_id=group_id,
            group_state=reply.state,
            protocol_type=reply.protocol_type,
            protocol_data=reply.protocol_name,
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata,
                    member_assignment=member.assignment,
                )
                for member in reply.members
            ],
            authorized_operations=NOT_ASKED,
        )

    def refuse(self, request: DescribeGroupsRequest, code: ErrorCode, message: str | None) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(
            groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.groups]
        )
