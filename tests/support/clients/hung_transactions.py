"""A transaction that no coordinator knows: what is left when the coordinator lost it, or never heard of it."""

from __future__ import annotations

import time

from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.records.builder import Record, build_batch
from penstock.wire.apis import Api
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from support.clients.raw import RawClient

VERSION_ONE = 11
"""Of Produce: a client that adds its partitions by itself."""


def leave_open(port: int, topic: str, partition: int = 0, age_s: float = 3600) -> tuple[int, int]:
    """The producer id, and the first offset of its transaction. The broker must not verify transactions."""
    client = RawClient(port)
    producer_id = client.new_producer()
    batch = build_batch(
        [Record(b"k", b"v", (), round((time.time() - age_s) * 1000))],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL_BIT,
    )
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(transactional_id="lost", acks=-1, timeout_ms=30_000, topic_data=[data])
    answer = client.call(Api.PRODUCE, request, ProduceResponse, VERSION_ONE)
    produced = answer.responses[0].partition_responses[0]
    assert produced.error_code == 0, produced
    return producer_id, produced.base_offset
