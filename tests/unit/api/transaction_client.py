"""Requests of one transactional id as raw frames, in any version."""

from __future__ import annotations

import itertools
import time
from typing import Any

from wire_client import WireClient, batch, produce_request

from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.wire.apis import Api
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import PartitionProduceResponse, ProduceRequest
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

BUSY = 51  # CONCURRENT_TRANSACTIONS
LONGEST_S = 10.0
_names = itertools.count(1)


class TransactionClient:
    """Keeps the producer id and epoch of the last InitProducerId or EndTxn, and the next sequence of each partition."""

    def __init__(self, wire: WireClient, name: str | None = None) -> None:
        self.wire = wire
        self.name = name or f"txn-{next(_names)}"
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    def find(self, version: int = 4) -> Any:
        request = FindCoordinatorRequest(key=self.name, key_type=1, coordinator_keys=[self.name])
        return self.wire.call(Api.FIND_COORDINATOR, version, request)

    def try_init(
        self, version: int = 5, *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1, **fields: Any
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            **fields,
        )
        response: InitProducerIdResponse = self.wire.call(Api.INIT_PRODUCER_ID, version, request)
        return response

    def init(self, version: int = 5, **options: Any) -> TransactionClient:
        """Until the transaction before has ended."""
        self.find()
        deadline = time.monotonic() + LONGEST_S
        response = self.try_init(version, **options)
        while response.error_code == BUSY and time.monotonic() < deadline:
            response = self.try_init(version, **options)
        assert response.error_code == 0, response
        self.use(response.producer_id, response.producer_epoch)
        return self

    def use(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    # -- partitions ---------------------------------------------------------------------

    def add(self, *places: tuple[str, int], version: int = 3) -> dict[tuple[str, int], int]:
        topics = _topics(places)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        response = self.wire.call(Api.ADD_PARTITIONS_TO_TXN, version, request)
        return _codes(response.results_by_topic_v3_and_below)

    def asked_of_brokers(self, *places: tuple[str, int], verify_only: bool) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            verify_only=verify_only,
            topics=_topics(places),
        )

    def add_offsets(self, group: str, version: int = 3) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
        )
        code: int = self.wire.call(Api.ADD_OFFSETS_TO_TXN, version, request).error_code
        return code

    # -- records ------------------------------------------------------------------------

    def batch(
        self, topic: str, *values: bytes, partition: int = 0, sequence: int | None = None, **header: Any
    ) -> bytes:
        at = self.sequences.get((topic, partition), 0) if sequence is None else sequence
        self.sequences[topic, partition] = at + len(values)
        given = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "attributes": TRANSACTIONAL_BIT}
        return batch(*values, base_sequence=at, **{**given, **header})

    def produce_request(self, topic: str, *values: bytes, partition: int = 0, **options: Any) -> ProduceRequest:
        records = self.batch(topic, *values, partition=partition, **options)
        request = produce_request(topic, records, partition=partition)
        request.transactional_id = self.name
        return request

    def produce(
        self, topic: str, *values: bytes, version: int = 12, partition: int = 0, **options: Any
    ) -> PartitionProduceResponse:
        request = self.produce_request(topic, *values, partition=partition, **options)
        entry: PartitionProduceResponse
        entry = self.wire.call(Api.PRODUCE, version, request).responses[0].partition_responses[0]
        return entry

    def commit_offsets(
        self, group: str, topic: str, offsets: dict[int, int], version: int = 5, **member: Any
    ) -> dict[int, int]:
        partitions = [
            TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            for index, offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)],
            **member,
        )
        (answer,) = self.wire.call(Api.TXN_OFFSET_COMMIT, version, request).topics
        return {one.partition_index: one.error_code for one in answer.partitions}

    # -- ends ---------------------------------------------------------------------------

    def try_end(self, *, commit: bool = True, version: int = 5) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        response: EndTxnResponse = self.wire.call(Api.END_TXN, version, request)
        return response

    def end(self, *, commit: bool = True, version: int = 5) -> None:
        """And wait for the markers."""
        response = self.try_end(commit=commit, version=version)
        assert response.error_code == 0, response
        if version >= 5:
            self.use(response.producer_id, response.producer_epoch)
        deadline = time.monotonic() + LONGEST_S
        while not self.describe().transaction_state.startswith("Complete") and time.monotonic() < deadline:
            time.sleep(0.005)

    def markers(self, *places: tuple[str, int], version: int = 2, **changes: Any) -> dict[tuple[str, int], int]:
        fields = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "transaction_result": True, **changes}
        names = dict.fromkeys(topic for topic, _ in places)
        topics = [
            WritableTxnMarkerTopic(name=name, partition_indexes=[index for topic, index in places if topic == name])
            for name in names
        ]
        request = WriteTxnMarkersRequest(markers=[WritableTxnMarker(topics=topics, **fields)])
        (answer,) = self.wire.call(Api.WRITE_TXN_MARKERS, version, request).markers
        assert answer.producer_id == fields["producer_id"]
        return {
            (topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions
        }

    def describe(self) -> TransactionState:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        found: TransactionState
        (found,) = self.wire.call(Api.DESCRIBE_TRANSACTIONS, 0, request).transaction_states
        return found


def _topics(places: tuple[tuple[str, int], ...]) -> list[AddPartitionsToTxnTopic]:
    names = dict.fromkeys(topic for topic, _ in places)
    return [
        AddPartitionsToTxnTopic(name=name, partitions=[index for topic, index in places if topic == name])
        for name in names
    ]


def _codes(results: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, one.partition_index): one.partition_error_code
        for topic in results
        for one in topic.results_by_partition
    }


def codes_of_brokers(response: Any) -> list[dict[tuple[str, int], int]]:
    return [_codes(result.topic_results) for result in response.results_by_transaction]
