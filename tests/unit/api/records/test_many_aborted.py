"""A reader of committed records passes a segment with more aborted transactions than the loop looks through at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.core.shard.exchange import Marker
from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.partition import Partition
from penstock.testing import Broker

ABORTED = 6_000
OPEN, ABORTING = 1_000_001, 1_000_002
PATIENCE_S = 60.0
T = TypeVar("T")


def write(partition: Partition, producer_id: int, sequence: int, value: bytes) -> None:
    now_ms = int(time.time() * 1000)
    data = build_batch(
        [Record(None, value, (), now_ms)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )
    guard = partition.log.producers.begin_verification(producer_id, sequence, 0)
    partition.append_transactional(read_header(data), data, now_ms, guard)


def end(partition: Partition, producer_id: int, *, is_commit: bool) -> None:
    assert partition.append_marker(Marker(producer_id, 0, is_commit, 0, 0), int(time.time() * 1000))


def fill(partition: Partition) -> None:
    """One transaction is open all the time, so every reader of it must know all that were aborted meanwhile."""
    write(partition, OPEN, 0, b"committed")
    for number in range(ABORTED):
        write(partition, ABORTING, number, b"aborted")
        end(partition, ABORTING, is_commit=False)
    end(partition, OPEN, is_commit=True)
    write(partition, OPEN, 1, b"the end")
    end(partition, OPEN, is_commit=True)


def on_the_loop(broker: Broker, work: Callable[[], T]) -> T:
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
            raise

    broker._running.loop.call_soon_threadsafe(run)
    return done.result(PATIENCE_S)


def seal(partition: Partition) -> None:
    """Its transaction index is written, and no longer in memory."""
    partition.log._roll_to(partition.log.log_end_offset)


def test_a_reader_of_committed_records_passes_many_aborted_ones() -> None:
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
        partition = broker._running.partitions.get("t", 0)
        on_the_loop(broker, lambda: fill(partition))
        on_the_loop(broker, lambda: seal(partition))
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.message.max.bytes": 10_000,
            }
        )
        consumer.subscribe(["t"])
        values: list[bytes | None] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < 2 and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value())
        consumer.close()
    assert values == [b"committed", b"the end"]
