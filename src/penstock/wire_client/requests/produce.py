"""Produce: requests with finished record batches, and one result for each partition."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.errors import ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ACKS_ALL = -1
LOST_PLACE = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))
"""The broker does not know the producer's next sequence number, or no longer."""
TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
"""The broker may accept smaller batches of the same records."""


def produce_request(
    batches: Iterable[tuple[TopicPartition, bytes | bytearray]],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """At most one batch per partition. All partitions must have the same leader."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for (topic, partition), records in batches:
        topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=records))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
    )


def read_produced(answer: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
    """The result of each partition. The caller checks error codes."""
    return {
        TopicPartition(topic.name, entry.index): entry
        for topic in answer.responses
        for entry in topic.partition_responses
    }
