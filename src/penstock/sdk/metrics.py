"""Metrics of clients: our own counters, and librdkafka's statistics.

librdkafka emits a JSON document every `metrics_interval_ms`. It is kept as text and parsed only on request, so that
unused metrics cost nothing. Rates and averages cover the last complete interval. Before the second document they are
zero.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model.topic_partition import TopicPartition

LATENCIES_KEPT = 2048


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of the last deliveries, in milliseconds."""

    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    records_sent: int
    """Records acknowledged since the start."""
    bytes_sent: int
    """Bytes of their keys and values."""
    records_failed: int
    records_queued: int
    """Records not acknowledged yet."""
    send_rate: float
    """Records acknowledged per second."""
    byte_rate: float
    error_rate: float
    """Records failed per second."""
    latency: Latency
    batch_size_bytes: float
    """Mean size of a batch on the wire."""
    batch_records: float
    compression_ratio: float
    """Bytes of keys and values per byte of batch. Framing counts, so that it is below 1 without compression."""
    broker_rtt_ms: float


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    records_consumed: int
    """Records handed to the application since the start."""
    bytes_consumed: int
    fetch_rate: float
    """Records received per second."""
    byte_rate: float
    fetch_requests_rate: float
    fetch_latency_ms: float
    """Mean round trip to the brokers, including the wait of long polls for data."""
    lag: Mapping[TopicPartition, int]
    """Records not handed out yet, for each assigned partition whose end is known."""
    commits: int
    commits_failed: int
    commit_rate: float
    rebalances: int
    """Assignments and revocations."""

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())


@dataclass(frozen=True, slots=True)
class Counts:
    """Our own counters at the moment a statistics document arrived."""

    records: int
    size_bytes: int
    failed: int
    commits: int = 0


class Statistics:
    """The last two documents and the counters beside them."""

    def __init__(self) -> None:
        self._documents: deque[tuple[str, Counts]] = deque(maxlen=2)

    def received(self, document: str, counts: Counts) -> None:
        self._documents.append((document, counts))

    def latest(self) -> dict[str, Any]:
        return _parsed(self._documents[-1][0]) if self._documents else {}

    def interval(self) -> Interval:
        if len(self._documents) < 2:
            return Interval(0.0, {}, {}, Counts(0, 0, 0), Counts(0, 0, 0))
        (old_text, old), (new_text, new) = self._documents
        before, after = _parsed(old_text), _parsed(new_text)
        return Interval((after["ts"] - before["ts"]) / 1e6, before, after, old, new)


@dataclass(frozen=True, slots=True)
class Interval:
    seconds: float
    before: dict[str, Any]
    after: dict[str, Any]
    old: Counts
    new: Counts

    def rate(self, difference: int) -> float:
        return difference / self.seconds if self.seconds > 0 else 0.0

    def grown(self, name: str) -> int:
        """The increase of a total in the document."""
        return int(self.after.get(name, 0)) - int(self.before.get(name, 0))


def producer_metrics(statistics: Statistics, counts: Counts, queued: int, latencies_s: deque[float]) -> ProducerMetrics:
    interval = statistics.interval()
    batches = list(_windows(interval.after, "topics", "batchsize"))
    batch_bytes = sum(window["sum"] for window in batches)
    batch_count = sum(window["cnt"] for window in batches)
    batch_records = sum(window["sum"] for window in _windows(interval.after, "topics", "batchcnt"))
    return ProducerMetrics(
        records_sent=counts.records,
        bytes_sent=counts.size_bytes,
        records_failed=counts.failed,
        records_queued=queued,
        send_rate=interval.rate(interval.new.records - interval.old.records),
        byte_rate=interval.rate(interval.new.size_bytes - interval.old.size_bytes),
        error_rate=interval.rate(interval.new.failed - interval.old.failed),
        latency=_latency(sorted(latencies_s)),
        batch_size_bytes=batch_bytes / batch_count if batch_count else 0.0,
        batch_records=batch_records / batch_count if batch_count else 0.0,
        compression_ratio=interval.grown("txmsg_bytes") / batch_bytes if batch_bytes else 0.0,
        broker_rtt_ms=_mean_ms(interval.after, "rtt"),
    )


def consumer_metrics(
    statistics: Statistics, counts: Counts, positions: Mapping[TopicPartition, int], rebalances: int
) -> ConsumerMetrics:
    interval = statistics.interval()
    return ConsumerMetrics(
        records_consumed=counts.records,
        bytes_consumed=counts.size_bytes,
        fetch_rate=interval.rate(interval.grown("rxmsgs")),
        byte_rate=interval.rate(interval.grown("rxmsg_bytes")),
        fetch_requests_rate=interval.rate(_fetches(interval.after) - _fetches(interval.before)),
        fetch_latency_ms=_mean_ms(interval.after, "rtt"),
        lag=_lag(statistics.latest(), positions),
        commits=counts.commits,
        commits_failed=counts.failed,
        commit_rate=interval.rate(interval.new.commits - interval.old.commits),
        rebalances=rebalances,
    )


def _parsed(document: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(document)
    return parsed


def _windows(document: dict[str, Any], section: str, name: str) -> Iterator[dict[str, int]]:
    for entry in document.get(section, {}).values():
        window = entry.get(name, {})
        if window.get("cnt", 0) > 0:
            yield window


def _mean_ms(document: dict[str, Any], name: str) -> float:
    windows = list(_windows(document, "brokers", name))
    count = sum(window["cnt"] for window in windows)
    return sum(window["sum"] for window in windows) / count / 1000 if count else 0.0


def _fetches(document: dict[str, Any]) -> int:
    return sum(int(broker.get("req", {}).get("Fetch", 0)) for broker in document.get("brokers", {}).values())


def _lag(document: dict[str, Any], positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The lag behind the end that librdkafka saw last, never negative."""
    found: dict[TopicPartition, int] = {}
    for topic, entry in document.get("topics", {}).items():
        for number, partition in entry.get("partitions", {}).items():
            key = TopicPartition(topic, int(number))
            end = int(partition.get("hi_offset", -1))
            if key in positions and end >= 0:
                found[key] = max(0, end - positions[key])
    return found


def _latency(ordered_s: list[float]) -> Latency:
    if not ordered_s:
        return Latency()
    count = len(ordered_s)
    return Latency(
        mean_ms=sum(ordered_s) / count * 1000,
        p50_ms=ordered_s[count // 2] * 1000,
        p99_ms=ordered_s[min(count - 1, count * 99 // 100)] * 1000,
        max_ms=ordered_s[-1] * 1000,
    )
