"""DescribeProducers (key 61), version 0: the recent idempotent producers of a partition."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.model.errors import ApiError, ErrorCode
from penstock.replica.hosting import HostedPartitions
from penstock.wire.apis import Api
from penstock.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


class DescribeProducersHandler:
    api: ClassVar = Api.DESCRIBE_PRODUCERS
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    bounds: ClassVar = WIDE

    def __init__(self, partitions: HostedPartitions) -> None:
        self._partitions = partitions

    async def handle(self, ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[
                        self._describe(topic.name, index)
                        async for index in ctx.pace.each(dict.fromkeys(topic.partition_indexes))
                    ],
                )
                async for topic in ctx.pace.each(request.topics)
            ]
        )

    def _describe(self, topic: str, index: int) -> PartitionResponse:
        try:
            partition = self._partitions.get(topic, index)
        except ApiError as error:
            return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
        return PartitionResponse(
            partition_index=index,
            active_producers=[
                ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.transaction_first_offset,
                )
                for producer in partition.log.producers
            ],
        )

    def refuse(
        self, request: DescribeProducersRequest, code: ErrorCode, message: str | None
    ) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[
                        PartitionResponse(partition_index=index, error_code=code, error_message=message)
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )
