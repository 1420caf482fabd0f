"""The number of partitions of topics, for partitioners that librdkafka does not run.

There is one request for a topic at a time. All callers that need the answer share it, also if it fails. An old count is
used while the next request is under way: partitions are added, hardly ever removed.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException

from penstock.sdk.settings import ClusterConnection

__all__ = ["PartitionCounts"]

MAX_AGE_S = 60.0
METADATA_PAUSE_S = 0.05
CREATION_GRACE_S = 2.0


class MetadataSource(Protocol):
    """librdkafka's producer."""

    def list_topics(self, topic: str, timeout: float) -> Any: ...


class PartitionCounts:
    def __init__(self, client: MetadataSource, connection: ClusterConnection, timeout_s: float) -> None:
        self._client = client
        self._connection = connection
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, float]] = {}
        self._asked: dict[str, Future[int]] = {}

    def of(self, topic: str) -> int | None:
        """The number of partitions. None means that `ask` must be called first."""
        known = self._known.get(topic)
        if known is None:
            return None
        count, known_at_s = known
        if time.monotonic() - known_at_s > MAX_AGE_S:
            self.ask(topic)
        return count

    def ask(self, topic: str) -> Future[int]:
        """Starts a request and returns at once. The future cannot be cancelled, because others may wait for it."""
        with self._lock:
            asked = self._asked.get(topic)
            if asked is None:
                asked = self._asked[topic] = Future()
                asked.set_running_or_notify_cancel()
                # A daemon thread: exiting does not wait for the answer.
                name = f"penstock-partitions-{topic}"
                threading.Thread(target=self._answer, args=(topic, asked), name=name, daemon=True).start()
        return asked

    def _answer(self, topic: str, asked: Future[int]) -> None:
        try:
            count = self._learn(topic)
        except BaseException as error:  # every error goes to the callers that wait
            self._forget(topic)
            asked.set_exception(error)
        else:
            self._known[topic] = (count, time.monotonic())
            self._forget(topic)
            asked.set_result(count)

    def _forget(self, topic: str) -> None:
        with self._lock:
            del self._asked[topic]

    def _learn(self, topic: str) -> int:
        """Asks until the topic exists: the first request makes the broker create it, if automatic creation is on."""
        doing = f"cannot read the partitions of {topic}"
        deadline_s = time.monotonic() + CREATION_GRACE_S
        while True:
            try:
                found = self._client.list_topics(topic, timeout=self._timeout_s)
            except KafkaException as error:
                raise self._connection.error(error, doing) from error
            entry = found.topics[topic]
            if entry.error is None:
                self._connection.answered()
                return len(entry.partitions)
            is_new = entry.error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
            if time.monotonic() > deadline_s or not is_new:
                raise self._connection.error(entry.error, doing)
            time.sleep(METADATA_PAUSE_S)
