"""ConsumerGroupDescribe (key 69), versions 0-1: the current state of groups of the KIP-848 protocol.

UNSUPPORTED_VERSION if the protocol is off, as in ConsumerGroupHeartbeat.

Without ACLs every client may use all group operations. Partitions of deleted topics are left out. An assignment
includes the partitions that the member has yet to give up.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.handlers.describe_groups import ALL_GROUP_OPERATIONS
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group import assignors
from penstock.core.group.consumer_exchange import DescribeConsumerGroupReply
from penstock.core.metadata.image import MetadataImage
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


class ConsumerGroupDescribeHandler:
    api: ClassVar = Api.CONSUMER_GROUP_DESCRIBE
    min_version: ClassVar = 0
    max_version: ClassVar = 1

    def __init__(self, groups: GroupCoordinator, image: MetadataImage) -> None:
        self._groups = groups
        self._image = image

    async def handle(self, ctx: RequestContext, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        if not self._groups.speaks_consumer_protocol:
            return self.refuse(request, ErrorCode.UNSUPPORTED_VERSION, None)
        groups = await ctx.pace.gather(self._describe(group_id) for group_id in request.group_ids)
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return ConsumerGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str) -> DescribedGroup:
        if not group_id:
            return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        try:
            reply = await self._groups.call(
                group_id,
                DescribeConsumerGroupReply,
                lambda shard, token, now_ms: shard.describe_consumer_group(group_id, token, now_ms),
            )
        except ApiError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        return DescribedGroup(
            error_code=reply.error,
            error_message=reply.message,
            group_id=group_id,
            group_state=reply.state,
            group_epoch=reply.epoch,
            assignment_epoch=reply.assignment_epoch,
            assignor_name=reply.assignor,
            members=[
                Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=member.member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=list(member.topic_names),
                    subscribed_topic_regex=member.topic_regex or "",
                    assignment=self._assignment(member.assigned),
                    target_assignment=self._assignment(member.target),
                    member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
                )
                for member in reply.members
            ],
        )

    def _assignment(self, assignment: assignors.Assignment) -> Assignment:
        topics = self._image.topics_by_id
        return Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=sorted(partitions))
                for topic_id, partitions in assignment.items()
                if topic_id in topics
            ]
        )

    def refuse(
        self, request: ConsumerGroupDescribeRequest, code: ErrorCode, message: str | None
    ) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(
            groups=[
                DescribedGroup(group_id=group_id, error_code=code, error_message=message)
                for group_id in request.group_ids
            ]
        )
