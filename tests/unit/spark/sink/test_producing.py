"""The task's producer against brokers that lose, refuse and move: every batch once, in order, or an error."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from faulty_cluster import FaultyCluster, Log

from penstock.model.errors import ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.spark.sink.lanes import PartitionWritten, ProducerIdentity
from penstock.spark.sink.options import ProducerOptions
from penstock.spark.sink.producing import DeliveryFailed, TaskProducer

OPTIONS = ProducerOptions(retry_backoff_ms=0, max_request_bytes=400, delivery_timeout_ms=60_000)
ONE = TopicPartition("t", 0)


def producer(
    cluster: FaultyCluster, options: ProducerOptions = OPTIONS, identity: ProducerIdentity | None = None
) -> TaskProducer:
    return TaskProducer(cast(Any, cluster), options, identity)


def batch(*values: int) -> bytearray:
    return bytearray(build_batch([Record(None, b"%d" % value) for value in values]))


def send_all(sender: TaskProducer, count: int, partitions: int = 1) -> None:
    """`count` records, three to a batch, to each partition in turn."""
    for first in range(0, count, 3):
        values = range(first, min(first + 3, count))
        for partition in range(partitions):
            sender.send("t", partition, batch(*values), len(values))
    sender.flush()
    sender.close()


def numbers(count: int) -> list[bytes]:
    return [b"%d" % value for value in range(count)]


def test_without_faults_requests_are_pipelined_and_carry_several_partitions() -> None:
    cluster = FaultyCluster()
    sender = producer(cluster)
    send_all(sender, 300, partitions=4)
    for partition in range(4):
        assert cluster.logs[TopicPartition("t", partition)].values == numbers(300)
    assert list(sender.written()) == [PartitionWritten("t", partition, 300, 299) for partition in range(4)]
    assert max(cluster.requests) > 1
    assert cluster.most_outstanding == OPTIONS.max_in_flight
    assert cluster.producer_ids == 1


@pytest.mark.parametrize("seed", range(200))
def test_everything_once_and_in_order_whatever_fails(seed: int) -> None:
    cluster = FaultyCluster(seed, fault_rate=(seed % 5) * 0.06)
    sender = producer(cluster)
    send_all(sender, 60, partitions=3)
    for partition in range(3):
        assert cluster.logs[TopicPartition("t", partition)].values == numbers(60)
    assert sum(entry.records for entry in sender.written()) == 180


@pytest.mark.parametrize("seed", range(20))
def test_without_idempotence_nothing_is_lost(seed: int) -> None:
    cluster = FaultyCluster(seed, fault_rate=0.1)
    send_all(producer(cluster, replace(OPTIONS, is_idempotent=False, max_in_flight=1)), 60)
    values = cluster.logs[ONE].values
    assert set(values) == set(numbers(60))
    assert len(values) >= 60
    assert cluster.producer_ids == 0


def test_a_refused_first_batch_keeps_its_place() -> None:
    """A broker that knows nothing of a producer would store the second one first."""
    refused: list[bytes] = []

    def verdict(tp: TopicPartition, data: bytes) -> ErrorCode | None:
        if len(refused) < 2:
            refused.append(data)
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return None

    cluster = FaultyCluster(verdict=verdict)
    send_all(producer(cluster), 30)
    assert cluster.logs[ONE].values == numbers(30)


def test_a_broker_that_lost_its_place_gets_a_new_epoch() -> None:
    cluster = FaultyCluster()
    sender = producer(cluster)
    for first in (0, 3, 6):
        sender.send("t", 0, batch(first, first + 1, first + 2), 3)
        sender.flush()
    log = cluster.logs[ONE]
    told = Log()
    producer_id = next(iter(log.states)).producer_id
    older = bytearray(build_batch([Record(None, b"x")], producer_id=producer_id, producer_epoch=0, base_sequence=0))
    told.append(bytes(older))
    log.states = told.states  # it remembers the first record only
    for first in (9, 12):
        sender.send("t", 0, batch(first, first + 1, first + 2), 3)
    sender.flush()
    assert log.values == numbers(15)
    assert next(iter(log.states)).epoch == 1


def test_a_repeat_that_the_broker_has_forgotten_the_place_of_counts_as_written() -> None:
    def verdict(tp: TopicPartition, data: bytes) -> ErrorCode | None:
        return ErrorCode.DUPLICATE_SEQUENCE_NUMBER if read_header(data).base_sequence == 3 else None

    cluster = FaultyCluster(verdict=verdict)
    sender = producer(cluster)
    sender.send("t", 0, batch(0, 1, 2), 3)
    sender.send("t", 0, batch(3, 4, 5), 3)
    sender.flush()
    assert list(sender.written()) == [PartitionWritten("t", 0, 6, 2)]


def test_a_batch_too_large_is_halved_until_it_fits() -> None:
    def verdict(tp: TopicPartition, data: bytes) -> ErrorCode | None:
        return ErrorCode.MESSAGE_TOO_LARGE if read_header(data).record_count > 4 else None

    cluster = FaultyCluster(verdict=verdict)
    sender = producer(cluster)
    for first in range(0, 90, 15):
        sender.send("t", 0, batch(*range(first, first + 15)), 15)
    sender.flush()
    assert cluster.logs[ONE].values == numbers(90)
    assert sender.batch_size_bytes < 200


def test_one_record_too_large_says_topic_size_and_setting() -> None:
    sender = producer(FaultyCluster(verdict=lambda *_: ErrorCode.MESSAGE_TOO_LARGE))
    sender.send("t", 0, batch(1), 1)
    with pytest.raises(
        DeliveryFailed, match=r"t-0: a record makes a batch of \d+ bytes .*topic 't'.*max\.message\.bytes"
    ):
        sender.flush()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (ErrorCode.INVALID_TIMESTAMP, "check the column timestamp"),
        (ErrorCode.INVALID_RECORD, "a compacted topic needs a key"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0: .* is refused with TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_what_cannot_get_better_is_an_error_at_once(code: ErrorCode, sentence: str) -> None:
    sender = producer(FaultyCluster(verdict=lambda *_: code))
    sender.send("t", 0, batch(1, 2), 2)
    with pytest.raises(DeliveryFailed, match=sentence):
        sender.flush()


def test_what_does_not_get_better_in_time_names_the_timeout_and_the_last_reason() -> None:
    options = replace(OPTIONS, delivery_timeout_ms=30, retry_backoff_ms=5)
    sender = producer(FaultyCluster(verdict=lambda *_: ErrorCode.NOT_ENOUGH_REPLICAS), options)
    sender.send("t", 0, batch(1, 2), 2)
    with pytest.raises(DeliveryFailed, match=r"kafka\.delivery\.timeout\.ms=30: NOT_ENOUGH_REPLICAS"):
        sender.flush()


def test_memory_is_bounded_while_a_partition_has_no_leader() -> None:
    refusals = iter(range(40))
    cluster = FaultyCluster(verdict=lambda *_: ErrorCode.NOT_ENOUGH_REPLICAS if next(refusals, None) else None)
    options = replace(OPTIONS, memory_bytes=2000, retry_backoff_ms=1)
    sender = producer(cluster, options)
    held = []
    for first in range(0, 300, 3):
        sender.send("t", 0, batch(first, first + 1, first + 2), 3)
        held.append(sender._held_bytes)
    sender.flush()
    assert max(held) <= options.memory_bytes
    assert cluster.logs[ONE].values == numbers(300)


def test_sequence_numbers_go_on_over_batches() -> None:
    seen: list[tuple[int, int, int]] = []

    def verdict(tp: TopicPartition, data: bytes) -> ErrorCode | None:
        header = read_header(data)
        seen.append((header.producer_id, header.producer_epoch, header.base_sequence))
        return None

    send_all(producer(FaultyCluster(verdict=verdict)), 30)
    assert [entry[:2] for entry in seen] == [(1001, 0)] * 10
    assert all(after[2] - before[2] == 3 for before, after in pairwise(seen))


@pytest.mark.parametrize("seed", range(30))
def test_the_next_task_goes_on_with_the_same_producer_id(seed: int) -> None:
    cluster = FaultyCluster(seed, fault_rate=0.1)
    identity = None
    for first in range(0, 60, 20):
        sender = producer(cluster, OPTIONS, identity)
        for value in range(first, first + 20):
            sender.send("t", value % 2, batch(value), 1)
        sender.flush()
        identity = sender.identity
    for partition in range(2):
        assert cluster.logs[TopicPartition("t", partition)].values == numbers(60)[partition::2]
    assert cluster.producer_ids == 1
