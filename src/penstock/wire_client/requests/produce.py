"""Produce and InitProducerId: closed record batches out, one verdict for each partition back."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.errors import ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire_client.requests.errors import check, error_code

ACKS_ALL = -1
LOST_PLACE = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))
"""The broker no longer knows, or never knew, which sequence number comes next."""
TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
"""Smaller batches of the same records may be taken."""


def produce_request(
    batches: Iterable[tuple[TopicPartition, bytes | bytearray]], acks: int, timeout_ms: int
) -> ProduceRequest:
    """At most one batch of a partition; all have the same leader."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for (topic, partition), records in batches:
        topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=records))
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
    )


def read_produced(answer: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
    """Error codes are the caller's to look at."""
    return {
        TopicPartition(topic.name, entry.index): entry
        for topic in answer.responses
        for entry in topic.partition_responses
    }


def producer_id_request(timeout_ms: int) -> InitProducerIdRequest:
    """For a producer without transactions."""
    return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout_ms)


def read_producer_id(answer: InitProducerIdResponse) -> tuple[int, int]:
    """A producer id and its epoch. Raises ApiError."""
    check(answer.error_code, f"no producer id: {error_code(answer.error_code).name}")
    return answer.producer_id, answer.producer_epoch
