"""Requests of a producer in a transaction: add partitions and groups, commit offsets, end.

The cluster's transaction version says which requests a producer sends (KIP-890). From version 2 on, brokers add
partitions and groups by themselves, and each end of a transaction raises the producer's epoch. `newest` has the last
version of each request that keeps to that. Must not know: how a coordinator is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire_client.requests.errors import check, error_code
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.sentences import commit_refused, partition_refused

ADDED_BY_BROKERS: Final = 2
"""From this transaction version on, brokers add partitions, and epochs rise."""
_NEWEST_BEFORE: Final[Mapping[Api, int]] = {Api.PRODUCE: 11, Api.TXN_OFFSET_COMMIT: 4, Api.END_TXN: 4}
_NEWEST: Final[Mapping[Api, int]] = {Api.PRODUCE: 12, Api.TXN_OFFSET_COMMIT: 5, Api.END_TXN: 5}
_NEWEST_OF_ALL: Final[Mapping[Api, int]] = {Api.ADD_PARTITIONS_TO_TXN: 3}
"""Version 4 of AddPartitionsToTxn is for brokers."""


class OpenTransaction(NamedTuple):
    """Everything that is needed to write in a transaction or to end it, also from another process."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
    """The cluster's transaction version when it began. An end that is repeated must be of the same version."""
    is_two_phase: bool
    """It has no timeout: it is decided outside of the cluster."""

    @property
    def adds_partitions(self) -> bool:
        """The producer adds partitions and groups itself."""
        return self.version < ADDED_BY_BROKERS

    def newest(self, key: Api) -> int | None:
        """The last version of a request that this transaction may use. None: any."""
        return (_NEWEST_BEFORE if self.adds_partitions else _NEWEST).get(key, _NEWEST_OF_ALL.get(key))


def add_partitions_request(of: OpenTransaction, partitions: Iterable[TopicPartition]) -> AddPartitionsToTxnRequest:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=of.transactional_id,
        v3_and_below_producer_id=of.producer_id,
        v3_and_below_producer_epoch=of.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=some) for name, some in topics.items()],
    )


def check_partitions_added(answer: AddPartitionsToTxnResponse) -> None:
    """Raises ApiError."""
    for topic in answer.results_by_topic_v3_and_below:
        for one in topic.results_by_partition:
            code = error_code(one.partition_error_code)
            check(one.partition_error_code, partition_refused(code, topic.name, one.partition_index))


def add_group_request(of: OpenTransaction, group: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=of.transactional_id, producer_id=of.producer_id, producer_epoch=of.epoch, group_id=group
    )


def check_group_added(of: OpenTransaction, answer: AddOffsetsToTxnResponse) -> None:
    """Raises ApiError."""
    check(answer.error_code, f"transactional id '{of.transactional_id}': {error_code(answer.error_code).name}")


def commit_offsets_request(
    of: OpenTransaction, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> TxnOffsetCommitRequest:
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for (topic, partition), committed in offsets.items():
        one = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=committed.offset, committed_metadata=committed.metadata
        )
        topics.setdefault(topic, []).append(one)
    return TxnOffsetCommitRequest(
        transactional_id=of.transactional_id,
        group_id=group,
        producer_id=of.producer_id,
        producer_epoch=of.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=some) for name, some in topics.items()],
    )


def check_offsets_added(group: str, answer: TxnOffsetCommitResponse) -> None:
    """Raises ApiError."""
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                raise commit_refused(error_code(one.error_code), group, topic.name, one.partition_index)


def end_request(of: OpenTransaction, *, is_commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=of.transactional_id,
        producer_id=of.producer_id,
        producer_epoch=of.epoch,
        committed=is_commit,
    )
