"""CreateTopics (key 19), versions 2-7.

- Each topic succeeds or fails alone; a name that occurs twice in a request is refused.
- Partitions and replication factor of -1 mean the broker's defaults. With a manual assignment both must be -1.
- From v5 on the response contains partitions, replication factor and every setting of the topic; from v7 on its id.
  validate_only checks everything and creates nothing.
- The topic is visible on this broker when the response leaves. timeout_ms limits how long to look for a controller.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.admin.topic_creation import TopicCreation
from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.controller_protocols import TopicController
from penstock.cluster.running_config import RunningConfig
from penstock.config.describe import describe_topic
from penstock.config.topic import validate_topic_overrides
from penstock.core.metadata.decisions import check_new_topic
from penstock.model.errors import ApiError, ConfigError, ErrorCode, StorageError
from penstock.model.new_topic import BROKER_DEFAULT, NewTopic, without_nulls
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


class CreateTopicsHandler:
    api: ClassVar = Api.CREATE_TOPICS
    min_version: ClassVar = 2
    max_version: ClassVar = 7
    bounds: ClassVar = WIDE
    is_for_controller: ClassVar = True

    def __init__(self, controller: TopicController, creation: TopicCreation, running: RunningConfig) -> None:
        self._controller = controller
        self._creation = creation
        self._running = running

    async def handle(self, ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        mentions = await ctx.pace.counted(topic.name for topic in request.topics)
        results: dict[str, CreatableTopicResult] = {}
        async for topic in ctx.pace.each(request.topics):
            try:
                if mentions[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                results[topic.name] = await self._create(topic, validate_only=request.validate_only)
            except (ApiError, StorageError) as error:
                if error.code is ErrorCode.NOT_CONTROLLER:
                    raise  # forwarded to the controller
                results[topic.name] = _refused(topic, error.code, str(error))
        return CreateTopicsResponse(topics=list(results.values()))

    async def _create(self, topic: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
        # The controller checks the name again later; this check decides which error is reported.
        check_new_topic(self._controller.image, topic.name)
        configs = _configs(topic)
        assignments = _assignments(topic)
        partitions, replication_factor = topic.num_partitions, topic.replication_factor
        if assignments:
            partitions, replication_factor = (
                len(assignments),
                len(assignments[0]) if 0 in assignments else BROKER_DEFAULT,
            )
        if partitions == BROKER_DEFAULT:
            partitions = self._creation.default_partitions
        if replication_factor == BROKER_DEFAULT:
            replication_factor = self._creation.default_replication_factor
        topic_id = await self._controller.create_topic(
            NewTopic(topic.name, partitions, replication_factor, assignments, configs), validate_only=validate_only
        )
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_message=None,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[
                CreatableTopicConfigs(
                    name=entry.name,
                    value=entry.value,
                    read_only=entry.read_only,
                    config_source=entry.source,
                    is_sensitive=entry.sensitive,
                )
                for entry in sorted(describe_topic(configs, self._running.current.settings))
            ],
        )

    def refuse(self, request: CreateTopicsRequest, code: ErrorCode, message: str | None) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[_refused(topic, code, message) for topic in request.topics])


def _refused(topic: CreatableTopic, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic.name, error_code=code, error_message=message)


def _configs(topic: CreatableTopic) -> dict[str, str]:
    configs = without_nulls([(config.name, config.value) for config in topic.configs])
    try:
        validate_topic_overrides(configs)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return configs


def _assignments(topic: CreatableTopic) -> dict[int, list[int]]:
    if not topic.assignments:
        return {}
    if topic.replication_factor != BROKER_DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != BROKER_DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    assignments: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}",
            )
        assignments[assignment.partition_index] = assignment.broker_ids
    return assignments
