"""Requests about transactions of any producer: transactional ids, open transactions of partitions, and their end.

Must not know: how a coordinator or a leader is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages import describe_producers, describe_transactions, list_transactions
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire_client.requests.errors import check, error_code
from penstock.wire_client.requests.producer_ids import NEVER_MS
from penstock.wire_client.requests.sentences import no_such_transactional_id, partition_refused


class TransactionListing(NamedTuple):
    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


class TransactionFilter(NamedTuple):
    """Empty or negative: all."""

    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()
    longer_than_ms: int = -1
    pattern: str = ""
    """A regular expression that transactional ids match."""


class TransactionDescription(NamedTuple):
    transactional_id: str
    coordinator_id: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    """None: no transaction is open or ending."""
    partitions: tuple[TopicPartition, ...]

    @property
    def is_decided_outside(self) -> bool:
        """Two-phase commit: it has no timeout."""
        return self.timeout_ms == NEVER_MS


class PartitionProducer(NamedTuple):
    """The state of a producer in one partition, from its leader."""

    partition: TopicPartition
    producer_id: int
    epoch: int
    last_sequence: int
    last_write_ms: int
    coordinator_epoch: int
    start_offset: int | None
    """First offset of its open transaction in this partition."""


# -- the coordinator --------------------------------------------------------------------


def list_request(which: TransactionFilter) -> list_transactions.ListTransactionsRequest:
    return list_transactions.ListTransactionsRequest(
        state_filters=list(which.states),
        producer_id_filters=list(which.producer_ids),
        duration_filter=which.longer_than_ms,
        transactional_id_pattern=which.pattern or None,
    )


def read_listed(
    answer: list_transactions.ListTransactionsResponse, coordinator_id: int
) -> tuple[list[TransactionListing], list[str]]:
    """The transactional ids of this broker, and the states of the filter that are unknown. Raises ApiError."""
    if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, "the pattern is not a valid RE2 regular expression")
    check(answer.error_code)
    found = [
        TransactionListing(one.transactional_id, coordinator_id, one.producer_id, one.transaction_state)
        for one in answer.transaction_states
    ]
    return found, list(answer.unknown_state_filters)


def describe_request(transactional_id: str) -> describe_transactions.DescribeTransactionsRequest:
    return describe_transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id])


def read_described(
    answer: describe_transactions.DescribeTransactionsResponse, coordinator_id: int
) -> TransactionDescription:
    """Raises ApiError."""
    (one,) = answer.transaction_states
    code = error_code(one.error_code)
    if code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise ApiError(code, no_such_transactional_id(one.transactional_id))
    check(one.error_code, f"transactional id '{one.transactional_id}': {code.name}")
    return TransactionDescription(
        one.transactional_id,
        coordinator_id,
        one.producer_id,
        one.producer_epoch,
        one.transaction_state,
        one.transaction_timeout_ms,
        one.transaction_start_time_ms if one.transaction_start_time_ms >= 0 else None,
        tuple(TopicPartition(topic.topic, index) for topic in one.topics for index in topic.partitions),
    )


# -- the leader of a partition ------------------------------------------------------------


def producers_request(partitions: Iterable[TopicPartition]) -> describe_producers.DescribeProducersRequest:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return describe_producers.DescribeProducersRequest(
        topics=[
            describe_producers.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics.items()
        ]
    )


def read_producers(
    answer: describe_producers.DescribeProducersResponse,
) -> tuple[list[PartitionProducer], dict[TopicPartition, ErrorCode]]:
    """The producers, and the refused partitions with their error codes."""
    found: list[PartitionProducer] = []
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in answer.topics:
        for entry in topic.partitions:
            where = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                refused[where] = error_code(entry.error_code)
            found += (
                PartitionProducer(
                    where,
                    one.producer_id,
                    one.producer_epoch,
                    one.last_sequence,
                    one.last_timestamp,
                    one.coordinator_epoch,
                    one.current_txn_start_offset if one.current_txn_start_offset >= 0 else None,
                )
                for one in entry.active_producers
            )
    return found, refused


def abort_request(
    where: TopicPartition, producer_id: int, epoch: int, coordinator_epoch: int
) -> WriteTxnMarkersRequest:
    """An abort marker with the epoch of the open transaction, as in transaction versions 0 and 1."""
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=False,
                topics=[WritableTxnMarkerTopic(name=where.topic, partition_indexes=[where.partition])],
                coordinator_epoch=max(coordinator_epoch, 0),  # -1: the partition has no marker of this producer
            )
        ]
    )


def check_aborted(answer: WriteTxnMarkersResponse) -> None:
    """Raises ApiError."""
    for marker in answer.markers:
        for topic in marker.topics:
            for entry in topic.partitions:
                sentence = partition_refused(error_code(entry.error_code), topic.name, entry.partition_index)
                check(entry.error_code, sentence)
