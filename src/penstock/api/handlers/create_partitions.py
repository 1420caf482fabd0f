"""CreatePartitions (key 37), versions 0-3.

- Each topic succeeds or fails alone; a name that occurs twice in a request is refused.
- The partitions exist when the response leaves. timeout_ms limits how long to look for a controller.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.controller_protocols import TopicController
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.wire.apis import Api
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


class CreatePartitionsHandler:
    api: ClassVar = Api.CREATE_PARTITIONS
    min_version: ClassVar = 0
    max_version: ClassVar = 3
    is_for_controller: ClassVar = True
    bounds: ClassVar = WIDE

    def __init__(self, controller: TopicController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        mentions = await ctx.pace.counted(topic.name for topic in request.topics)
        results: dict[str, CreatePartitionsTopicResult] = {}
        async for topic in ctx.pace.each(request.topics):
            result = results[topic.name] = CreatePartitionsTopicResult(name=topic.name)
            try:
                if mentions[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                await self._controller.create_partitions(
                    topic.name, topic.count, _assignments(topic), validate_only=request.validate_only
                )
            except (ApiError, StorageError) as error:
                if error.code is ErrorCode.NOT_CONTROLLER:
                    raise  # forwarded to the controller
                result.error_code, result.error_message = error.code, str(error)
        return CreatePartitionsResponse(results=list(results.values()))

    def refuse(
        self, request: CreatePartitionsRequest, code: ErrorCode, message: str | None
    ) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
                for topic in request.topics
            ]
        )


def _assignments(topic: CreatePartitionsTopic) -> list[list[int]] | None:
    if topic.assignments is None:
        return None
    return [assignment.broker_ids for assignment in topic.assignments]
