"""AlterPartition (key 56), versions 2-3, among brokers: a leader requests an ISR change.

- Not advertised to clients, as on a Kafka broker.
- v2 names the replicas without their broker epochs: the controller uses the known ones.
- Leader recovery states are not kept: every leader here is RECOVERED (0).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import PartitionController
from penstock.core.metadata.requests import NO_BROKER_EPOCH, IsrChange, ReplicaEpoch
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)


class AlterPartitionHandler:
    api: ClassVar = Api.ALTER_PARTITION
    min_version: ClassVar = 2
    max_version: ClassVar = 3
    is_for_controller: ClassVar = True
    is_advertised: ClassVar = False

    def __init__(self, controller: PartitionController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
        answers = await self._controller.alter_partitions(
            request.broker_id, request.broker_epoch, list(_changes(request))
        )
        topics: dict[bytes, ResponseTopicData] = {}
        for answer in answers:
            topics.setdefault(answer.topic_id, ResponseTopicData(topic_id=answer.topic_id)).partitions.append(
                ResponsePartitionData(
                    partition_index=answer.index,
                    error_code=answer.code,
                    leader_id=answer.leader,
                    leader_epoch=answer.leader_epoch,
                    isr=list(answer.isr),
                    partition_epoch=answer.partition_epoch,
                )
            )
        return AlterPartitionResponse(topics=list(topics.values()))

    def refuse(self, request: AlterPartitionRequest, code: ErrorCode, message: str | None) -> AlterPartitionResponse:
        return AlterPartitionResponse(error_code=code)


def _changes(request: AlterPartitionRequest) -> Iterator[IsrChange]:
    for topic in request.topics:
        for asked in topic.partitions:
            yield IsrChange(
                topic.topic_id, asked.partition_index, asked.leader_epoch, asked.partition_epoch, _isr(asked)
            )


def _isr(asked: RequestPartitionData) -> tuple[ReplicaEpoch, ...]:
    if asked.new_isr:
        return tuple(ReplicaEpoch(broker, NO_BROKER_EPOCH) for broker in asked.new_isr)
    return tuple(ReplicaEpoch(replica.broker_id, replica.broker_epoch) for replica in asked.new_isr_with_epochs)
