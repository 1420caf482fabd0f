"""DescribeTopicPartitions (key 75), version 0.

- No topics means all of them. Answers are sorted by name, whatever the order of the request.
- A page holds `response_partition_limit` partitions, at least one and at most the broker's
  max.request.partition.size.limit; `next_cursor` is the first partition that did not fit.
- Unknown topics do not count towards the limit and are listed if requested by name.
- Eligible leader replicas (KIP-966) are not in sync but have all committed records.
- A fenced leader is shown as no leader: -1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.handlers.metadata import ALL_TOPIC_OPERATIONS
from penstock.core.metadata.decisions import check_topic_name
from penstock.core.metadata.image import NO_LEADER, PartitionState
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


class DescribeTopicPartitionsHandler:
    api: ClassVar = Api.DESCRIBE_TOPIC_PARTITIONS
    min_version: ClassVar = 0
    max_version: ClassVar = 0

    def __init__(self, cluster: ClusterView, *, max_partitions: int) -> None:
        self._cluster = cluster
        self._max_partitions = max_partitions

    def handle(self, ctx: RequestContext, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
        image = self._cluster.image
        live = frozenset(self._cluster.live_ids())
        names = _names(request, image.topics)
        room = max(min(self._max_partitions, request.response_partition_limit), 1)
        response = DescribeTopicPartitionsResponse()
        for name in names:
            topic = image.topics.get(name)
            if topic is None:
                response.topics.append(_missing(name))
                continue
            first = 0
            if request.cursor is not None and request.cursor.topic_name == name:
                first = request.cursor.partition_index
            if room == 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=first)
                break
            shown = topic.partitions[first : first + room]
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    name=name,
                    topic_id=topic.topic_id,
                    is_internal=topic.is_internal,
                    partitions=[_describe(partition, live) for partition in shown],
                    topic_authorized_operations=ALL_TOPIC_OPERATIONS,
                )
            )
            room -= len(shown)
            if first + len(shown) < len(topic.partitions):
                response.next_cursor = Cursor(topic_name=name, partition_index=first + len(shown))
                break
        return response

    def refuse(
        self, request: DescribeTopicPartitionsRequest, code: ErrorCode, message: str | None
    ) -> DescribeTopicPartitionsResponse:
        return DescribeTopicPartitionsResponse(
            topics=[DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=code) for topic in request.topics]
        )


def _names(request: DescribeTopicPartitionsRequest, known: Iterable[str]) -> list[str]:
    start = "" if request.cursor is None else request.cursor.topic_name
    asked = [topic.name for topic in request.topics] or known
    names = sorted({name for name in asked if name >= start})
    if request.cursor is not None:
        if request.topics and start not in names:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"DescribeTopicPartitionsRequest topic list should contain the cursor topic: {start}",
            )
        if request.cursor.partition_index < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "DescribeTopicPartitionsRequest cursor partition must be valid")
    return names


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except ApiError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(
        name=name, error_code=code, topic_authorized_operations=ALL_TOPIC_OPERATIONS
    )


def _describe(partition: PartitionState, live: Collection[int]) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=partition.index,
        leader_id=partition.leader if partition.leader in live else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=[replica for replica in partition.replicas if replica not in live],
    )
