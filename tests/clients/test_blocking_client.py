"""The blocking wire client reads on where it was while its broker is killed, frozen and started again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import HEADER_SIZE, read_header
from penstock.records.builder import iterate_records
from penstock.records.compression import decompress
from penstock.wire_client.blocking.cluster import BlockingCluster, FetchedChunk, FetchStream
from support.processes.broker import BrokerProcess

RECORDS = 20_000
TP = TopicPartition("events", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker


def fill(broker: BrokerProcess) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 100, "compression.type": "lz4"}
    )
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(TP.topic, b"%d" % number, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


def values(chunk: FetchedChunk) -> list[int]:
    found, at = [], 0
    while len(chunk.records) - at >= HEADER_SIZE:
        header = read_header(chunk.records, at)
        payload = chunk.records[at + HEADER_SIZE : at + header.size_bytes]
        found += [
            int(record.value or b"") for record in iterate_records(header, decompress(header.compression, payload))
        ]
        at += header.size_bytes
    return found


def test_killed_and_frozen_while_reading(broker: BrokerProcess) -> None:
    fill(broker)
    cluster = BlockingCluster([("127.0.0.1", broker.port)], timeout_s=30.0)
    end = cluster.list_offsets({TP: -1})[TP].offset
    topic_id = cluster.topics([TP.topic])[TP.topic].topic_id
    found: list[int] = []
    troubles = iter((broker.kill, broker.freeze, broker.kill))
    restarts: list[threading.Thread] = []
    stream = FetchStream(cluster, TP, 0, end, read_committed=True, max_bytes=20_000, topic_id=topic_id, timeout_s=60.0)
    for chunk in stream:
        found += values(chunk)
        if len(found) > RECORDS // 4 * (len(restarts) + 1):
            trouble = next(troubles, None)
            if trouble is not None:
                trouble()
                restarts.append(threading.Thread(target=recover, args=(broker, trouble)))
                restarts[-1].start()
    assert found == list(range(RECORDS))
    assert len(restarts) == 3
    for restart in restarts:
        restart.join()
    cluster.close()


def recover(broker: BrokerProcess, trouble: object) -> None:
    time.sleep(0.3)
    if trouble == broker.freeze:
        broker.thaw()
    else:
        broker.start()
