"""A transaction that waits for a decision from outside (two-phase commit, KIP-939)."""

from __future__ import annotations

import time
from typing import NamedTuple

from penstock.model.errors import ErrorCode
from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.records.builder import Record, build_batch
from penstock.wire.apis import Api
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdResponse
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire_client.requests.producer_ids import read_two_phase, two_phase_request
from support.clients.raw import RawClient

VERSION_TWO = {Api.INIT_PRODUCER_ID: 6, Api.PRODUCE: 12, Api.END_TXN: 5}
"""A client that leaves partitions to the broker, and whose epoch rises at each end."""
PATIENCE_S = 20.0


class Prepared(NamedTuple):
    """All that an outside coordinator needs for its decision."""

    port: int
    transactional_id: str
    producer_id: int
    epoch: int

    def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        client = RawClient(self.port)
        answer = client.call(Api.END_TXN, request, EndTxnResponse, VERSION_TWO[Api.END_TXN])
        assert answer.error_code == 0, answer


def prepare(port: int, transactional_id: str, topic: str, partition: int = 0) -> Prepared:
    """On the only broker of a cluster."""
    client = RawClient(port)
    producer_id, epoch = _begin(client, transactional_id)
    batch = build_batch(
        [Record(b"k", b"prepared", (), round(time.time() * 1000))],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL_BIT,
    )
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=[data])
    answer = client.call(Api.PRODUCE, request, ProduceResponse, VERSION_TWO[Api.PRODUCE])
    produced = answer.responses[0].partition_responses[0]
    assert produced.error_code == 0, produced
    return Prepared(port, transactional_id, producer_id, epoch)


def _begin(client: RawClient, transactional_id: str) -> tuple[int, int]:
    passing = {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
    request = two_phase_request(transactional_id)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        client.call(Api.FIND_COORDINATOR, find, FindCoordinatorResponse, 4)  # creates __transaction_state
        answer = client.call(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse, VERSION_TWO[Api.INIT_PRODUCER_ID])
        if answer.error_code not in passing or time.monotonic() > deadline:
            return read_two_phase(transactional_id, answer)
        time.sleep(0.02)
