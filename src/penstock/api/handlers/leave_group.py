"""LeaveGroup (key 13), versions 0-5: one member until version 2; from 3 on several, also by instance id."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.exchange import LeaveReply, LeaveRequest, LeavingMember
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

FIRST_WITH_MANY_MEMBERS = 3


class LeaveGroupHandler:
    api: ClassVar = Api.LEAVE_GROUP
    min_version: ClassVar = 0
    max_version: ClassVar = 5

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    async def handle(self, ctx: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        is_batch = ctx.version >= FIRST_WITH_MANY_MEMBERS
        leaving = (
            tuple(
                LeavingMember(member.member_id, member.group_instance_id, member.reason or "")
                for member in request.members
            )
            if is_batch
            else (LeavingMember(request.member_id, None),)
        )
        asked = LeaveRequest(request.group_id, leaving)
        reply = await self._groups.call(
            asked.group_id, LeaveReply, lambda shard, token, now_ms: shard.leave(asked, token, now_ms)
        )
        if not is_batch:
            return LeaveGroupResponse(error_code=reply.error or reply.errors[0])
        return LeaveGroupResponse(
            error_code=reply.error,
            members=[
                MemberResponse(member_id=member.member_id, group_instance_id=member.instance_id, error_code=code)
                for member, code in zip(leaving, reply.errors, strict=False)
            ],
        )

    def refuse(self, request: LeaveGroupRequest, code: ErrorCode, message: str | None) -> LeaveGroupResponse:
        return LeaveGroupResponse(error_code=code)
