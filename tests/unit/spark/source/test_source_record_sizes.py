"""The size of records, for maxBytesPerTrigger: sampled beside the planning, from all leaders at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka import Producer
from fake_cluster import FakeTime

from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record, build_batch
from penstock.sdk import BlockingAdmin
from penstock.spark.source import record_sizes
from penstock.spark.source.record_sizes import SAMPLE_BYTES, UNKNOWN_BYTES, RecordSizes, bytes_per_offset
from penstock.testing import Broker
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import BrokerUnreachable

SMALL = build_batch([Record(None, b"x")] * 10)
LARGE = build_batch([Record(None, b"x" * 5000)] * 10)
SIZE_OF_SMALL, SIZE_OF_LARGE = len(SMALL) / 10, len(LARGE) / 10
TPS = [TopicPartition("t", number) for number in range(3)]
OTHER = TopicPartition("other", 0)


def test_bytes_per_offset() -> None:
    batch = build_batch([Record(None, b"x" * 100)] * 10)
    assert bytes_per_offset(batch, 0) == len(batch) / 10
    assert bytes_per_offset(batch + batch[:-1], 0) == len(batch) / 10, "a torn batch does not count"
    # From the middle of a batch, and over a hole.
    assert bytes_per_offset(batch, 5) == len(batch) / 5
    assert bytes_per_offset(b"", 0) is None
    assert bytes_per_offset(batch[:61], 0) is None


class Samples:
    """The looks, and what they find."""

    def __init__(self) -> None:
        self.found: dict[TopicPartition, bytes] = {}
        self.asked: list[list[TopicPartition]] = []
        self.failure: Exception | None = None
        self.time = FakeTime()
        self.later: list[Callable[[], None]] = []

    def __call__(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, bytes]:
        self.asked.append(list(positions))
        if self.failure is not None:
            raise self.failure
        return {tp: self.found[tp] for tp in positions if tp in self.found}

    def sizes(self) -> RecordSizes:
        return RecordSizes(self, self.time.clock, lambda work: work())


@pytest.fixture
def samples() -> Samples:
    return Samples()


def test_one_look_for_all_and_again_when_it_is_old(samples: Samples) -> None:
    samples.found = {TPS[0]: SMALL, TPS[1]: LARGE}
    sizes = samples.sizes()
    for _ in range(2):
        assert sizes.estimate({TPS[0]: 0, TPS[1]: 0}) == {TPS[0]: SIZE_OF_SMALL, TPS[1]: SIZE_OF_LARGE}
    assert samples.asked == [[TPS[0], TPS[1]]]
    samples.time.sleep(6)
    samples.found = {}
    assert sizes.estimate({TPS[0]: 0}) == {TPS[0]: SIZE_OF_SMALL}, "no news: the old size"
    assert len(samples.asked) == 2


def test_partition_without_a_sample_is_like_its_topic(samples: Samples) -> None:
    samples.found = {TPS[0]: LARGE, OTHER: SMALL}
    sizes = samples.sizes()
    wanted = dict.fromkeys([*TPS, OTHER, TopicPartition("third", 0)], 0)
    found = sizes.estimate(wanted)
    assert [found[tp] for tp in TPS] == [SIZE_OF_LARGE] * 3
    assert found[TopicPartition("third", 0)] == pytest.approx((SIZE_OF_LARGE + SIZE_OF_SMALL) / 2)
    samples.time.sleep(6)
    sizes.estimate(wanted)
    assert samples.asked[1] == [TPS[1], TPS[2], TopicPartition("third", 0), TPS[0], OTHER], "these come first"


def test_failed_look_is_not_repeated_at_once(samples: Samples) -> None:
    samples.failure = BrokerUnreachable("cannot connect")
    sizes = samples.sizes()
    for _ in range(3):
        assert sizes.estimate({OTHER: 5}) == {OTHER: UNKNOWN_BYTES}
    assert len(samples.asked) == 1
    samples.failure, samples.found = None, {OTHER: SMALL}
    samples.time.sleep(6)
    assert sizes.estimate({OTHER: 0}) == {OTHER: SIZE_OF_SMALL}


def test_broker_that_is_silent_does_not_hold_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sizes, "WAIT_S", 0.05)
    is_answered, looks = threading.Event(), []

    def look(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, bytes]:
        looks.append(positions)
        is_answered.wait(10)
        return dict.fromkeys(positions, SMALL)

    sizes = RecordSizes(look)
    begin = time.monotonic()
    for _ in range(3):
        assert sizes.estimate({TPS[0]: 0}) == {TPS[0]: UNKNOWN_BYTES}
    assert time.monotonic() - begin < 5
    assert len(looks) == 1, "one look at a time"
    is_answered.set()
    monkeypatch.setattr(record_sizes, "WAIT_S", 10)
    assert sizes.estimate({TPS[0]: 0}) == {TPS[0]: SIZE_OF_SMALL}


def test_size_of_an_hour_ago_is_worth_a_wait(samples: Samples) -> None:
    samples.found = {OTHER: SMALL}
    sizes = RecordSizes(samples, samples.time.clock)
    assert sizes.estimate({OTHER: 0}) == {OTHER: SIZE_OF_SMALL}
    samples.found = {OTHER: LARGE}
    samples.time.sleep(3600)
    assert sizes.estimate({OTHER: 0}) == {OTHER: SIZE_OF_LARGE}


def test_against_a_broker() -> None:
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("sampled", 3)
        admin.create_topic("other", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 100})
        for number in range(100):
            producer.produce("sampled", b"x" * 100, partition=number % 2)
            producer.produce("other", b"x" * 1000, partition=0)
        assert producer.flush(30) == 0
        cluster = BlockingCluster([("127.0.0.1", broker.port)], timeout_s=5.0)
        gone = [TopicPartition("sampled", 9), TopicPartition("missing", 0)]
        positions = dict.fromkeys([*(TopicPartition("sampled", number) for number in range(3)), OTHER, *gone], 0)
        samples = cluster.first_batches(positions, SAMPLE_BYTES)
        # The batch of 100 KB is too large for a sample, except as the first of a fetch.
        assert list(samples) == [TopicPartition("sampled", 0), TopicPartition("sampled", 1)]
        assert list(cluster.first_batches({OTHER: 0}, SAMPLE_BYTES)) == [OTHER]
        found = RecordSizes(lambda asked: cluster.first_batches(asked, SAMPLE_BYTES)).estimate(positions)
        assert 100 < found[TopicPartition("sampled", 0)] < 120
        assert found[TopicPartition("sampled", 2)] == pytest.approx(found[TopicPartition("sampled", 0)], rel=0.1)
        cluster.close()
