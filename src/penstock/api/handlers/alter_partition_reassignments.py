"""AlterPartitionReassignments (key 45), versions 0-1: begins reassignments, or cancels them (null replicas).

- The response says that a reassignment began, not that it is complete: ListPartitionReassignments shows its progress.
- v1 may forbid a change of the replication factor. Each partition succeeds or fails alone.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.controller_protocols import PartitionController
from penstock.core.metadata.requests import Reassignment
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


class AlterPartitionReassignmentsHandler:
    api: ClassVar = Api.ALTER_PARTITION_REASSIGNMENTS
    min_version: ClassVar = 0
    max_version: ClassVar = 1
    bounds: ClassVar = WIDE
    is_for_controller: ClassVar = True

    def __init__(self, controller: PartitionController) -> None:
        self._controller = controller

    async def handle(
        self, ctx: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        wanted = [
            Reassignment(
                topic.name,
                partition.partition_index,
                None if partition.replicas is None else tuple(partition.replicas),
            )
            async for topic in ctx.pace.each(request.topics)
            async for partition in ctx.pace.each(topic.partitions)
        ]
        answers = await self._controller.alter_reassignments(wanted, request.allow_replication_factor_change)
        topics: dict[str, ReassignableTopicResponse] = {}
        async for answer in ctx.pace.each(answers):
            result = ReassignablePartitionResponse(partition_index=answer.index, error_message=None)
            if answer.error is not None:
                result.error_code, result.error_message = answer.error.code, answer.error.message
            topics.setdefault(answer.topic, ReassignableTopicResponse(name=answer.topic)).partitions.append(result)
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=list(topics.values()),
        )

    def refuse(
        self, request: AlterPartitionReassignmentsRequest, code: ErrorCode, message: str | None
    ) -> AlterPartitionReassignmentsResponse:
        return AlterPartitionReassignmentsResponse(
            error_code=code,
            error_message=message,
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[
                        ReassignablePartitionResponse(
                            partition_index=partition.partition_index, error_code=code, error_message=message
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )
