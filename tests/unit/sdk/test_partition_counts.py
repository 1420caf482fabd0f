"""One question of how many partitions a topic has, however many wait for the answer."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.sdk import BlockingProducer, Producer, Unreachable, partition_counts
from penstock.sdk.partition_counts import PartitionCounts
from penstock.sdk.settings import ClusterConnection

NOBODY = "127.0.0.1:1"
TIMEOUT_S = 30.0


class Metadata:
    """librdkafka's, as far as it is asked here: it answers when it is let."""

    def __init__(self) -> None:
        self.was_asked, self.may_answer = threading.Event(), threading.Event()
        self.questions: list[str] = []
        self.partitions = 3
        self.error: KafkaError | None = None

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.questions.append(topic)
        self.was_asked.set()
        assert self.may_answer.wait(TIMEOUT_S)
        if self.error is not None:
            raise KafkaException(self.error)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=range(self.partitions))})


def counts_of(metadata: Metadata) -> PartitionCounts:
    return PartitionCounts(metadata, ClusterConnection(NOBODY, "test", {}), TIMEOUT_S)


def test_all_who_ask_share_one_answer() -> None:
    metadata = Metadata()
    counts = counts_of(metadata)
    assert counts.of("t") is None
    asked = [counts.ask("t") for _ in range(20)]
    metadata.may_answer.set()
    assert [each.result(TIMEOUT_S) for each in asked] == [3] * 20
    assert metadata.questions == ["t"]
    assert counts.of("t") == 3


def test_an_old_count_is_used_while_the_next_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = Metadata()
    metadata.may_answer.set()
    counts = counts_of(metadata)
    assert counts.ask("t").result(TIMEOUT_S) == 3
    monkeypatch.setattr(partition_counts, "MAX_AGE_S", -1.0)
    metadata.may_answer.clear()
    metadata.partitions = 5
    assert counts.of("t") == 3
    refresh = counts.ask("t")
    metadata.may_answer.set()
    assert refresh.result(TIMEOUT_S) == 5
    assert counts.of("t") == 5


async def test_all_records_that_wait_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each used to ask for itself, in one of a few threads: the last failed many timeouts after the first."""
    metadata = Metadata()
    metadata.error = KafkaError(KafkaError._TRANSPORT)
    async with Producer(NOBODY, partitioner="round-robin") as producer:
        monkeypatch.setattr(producer._engine, "_partition_counts", counts_of(metadata))
        waiting = [asyncio.ensure_future(producer.send("t", b"v")) for _ in range(100)]
        assert await asyncio.to_thread(metadata.was_asked.wait, TIMEOUT_S)
        waiting.pop().cancel()
        metadata.may_answer.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Unreachable] * 99
    assert metadata.questions == ["t"]


def test_threads_share_the_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = Metadata()
    metadata.error = KafkaError(KafkaError._TRANSPORT)
    failures: list[type[BaseException]] = []

    def send() -> None:
        with pytest.raises(Unreachable) as caught:
            producer.send("t", b"v")
        failures.append(caught.type)

    with BlockingProducer(NOBODY, partitioner="round-robin") as producer:
        monkeypatch.setattr(producer._engine, "_partition_counts", counts_of(metadata))
        threads = [threading.Thread(target=send) for _ in range(10)]
        for thread in threads:
            thread.start()
        assert metadata.was_asked.wait(TIMEOUT_S)
        metadata.may_answer.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert failures == [Unreachable] * 10
