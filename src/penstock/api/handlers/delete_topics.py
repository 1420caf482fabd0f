"""DeleteTopics (key 20), versions 1-6.

- v6 names topics by name or by id, never both; duplicates are refused.
- With delete.topic.enable=false everything is refused: TOPIC_DELETION_DISABLED, before v3 INVALID_REQUEST.
- Results come in the order of the request; Kafka shuffles them. The topic is gone before the response, its files are
  removed later; timeout_ms limits how long to look for a controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.controller_protocols import TopicController
from penstock.cluster.running_config import RunningConfig
from penstock.core.metadata.image import TopicState
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.wire.apis import Api
from penstock.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.wire.primitives import NULL_UUID


class DeleteTopicsHandler:
    api: ClassVar = Api.DELETE_TOPICS
    min_version: ClassVar = 1
    max_version: ClassVar = 6
    is_for_controller: ClassVar = True
    bounds: ClassVar = WIDE

    def __init__(self, controller: TopicController, running: RunningConfig) -> None:
        self._controller = controller
        self._running = running

    async def handle(self, ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        if not self._running.current.delete_topic_enable:
            code = ErrorCode.TOPIC_DELETION_DISABLED if ctx.version >= 3 else ErrorCode.INVALID_REQUEST
            raise ApiError(code, "Topic deletion is disabled.")
        # A name or id that occurs several times is answered once.
        mentions = await ctx.pace.counted((asked.name, asked.topic_id) for asked in _asked(request))
        topics = self._controller.image.topics
        named = {topics[name].topic_id for name, topic_id in mentions if topic_id == NULL_UUID and name in topics}
        by_id = {topic_id for name, topic_id in mentions if name is None}
        responses: list[DeletableTopicResult] = []
        async for (name, topic_id), count in ctx.pace.each(mentions.items()):
            if name is None and count == 1 and topic_id in named:
                continue  # refused below, under its name
            result = DeletableTopicResult(name=name, topic_id=topic_id)
            try:
                _check_reference(name, topic_id, count)
                topic = self._find(name, topic_id)
                result.name, result.topic_id = topic.name, topic.topic_id
                if name is not None and topic.topic_id in by_id:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
                    )
                await self._controller.delete_topic(topic.topic_id)
            except (ApiError, StorageError) as error:
                if error.code is ErrorCode.NOT_CONTROLLER:
                    raise  # forwarded to the controller
                result.error_code, result.error_message = error.code, str(error)
            responses.append(result)
        return DeleteTopicsResponse(responses=responses)

    def _find(self, name: str | None, topic_id: bytes) -> TopicState:
        image = self._controller.image
        topic = image.topics_by_id.get(topic_id) if name is None else image.topics.get(name)
        if topic is not None:
            return topic
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")

    def refuse(self, request: DeleteTopicsRequest, code: ErrorCode, message: str | None) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message)
                for topic in _asked(request)
            ]
        )


def _asked(request: DeleteTopicsRequest) -> Iterator[DeleteTopicState]:
    """v6 has `topics`, earlier versions `topic_names`."""
    yield from request.topics
    for name in request.topic_names:
        yield DeleteTopicState(name=name)


def _check_reference(name: str | None, topic_id: bytes, count: int) -> None:
    if name is None and topic_id == NULL_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is not None and topic_id != NULL_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if count > 1:
        noun = "id" if name is None else "name"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {noun}.")
