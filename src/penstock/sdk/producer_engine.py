"""What both producers stand on: one librdkafka handle, the thread that serves it, partitions, counts.

Deliveries are reported in the serving thread: `sink(result)` once a record, then `after_poll()` once for all that
came together, so that an event loop is woken once and not a thousand times.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as LibrdkafkaProducer

from penstock.sdk.errors import (
    BadSetting,
    ClientClosed,
    ClientError,
    DeliveryFailed,
    Refused,
    TimedOut,
    UnknownTopic,
    Unreachable,
)
from penstock.sdk.metrics import LATENCIES_KEPT, Counts, ProducerMetrics, Statistics, producer_metrics
from penstock.sdk.partition_counts import PartitionCounts
from penstock.sdk.partitioners import NATIVE, Partitioner, resolve
from penstock.sdk.records import Delivery, Headers, Payload, header_list
from penstock.sdk.settings import ClusterConnection

Sink: TypeAlias = Callable[[Delivery | ClientError], None]

POLL_S = 0.05
FULL_QUEUE_PAUSE_S = 0.002
LOCAL_PARTITION = -1  # librdkafka decides
NEVER_MS = 0
PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
SMALLEST_RECORD_LIMIT, LARGEST_RECORD_LIMIT = 1000, 1_000_000_000  # what librdkafka takes for message.max.bytes


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of a producer; `ProducerConfig` has their meaning and defaults."""

    acks: Literal["all", 0, 1]
    idempotent: bool | None
    batch_size_bytes: int
    linger_ms: float
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    partitioner: Partitioner
    retries: int | None
    delivery_timeout_ms: int
    timeout_counts_from: Literal["sending", "progress"]
    buffer_size_bytes: int
    metrics_interval_ms: int
    client_id: str
    settings: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    acks: Literal["all", 0, 1] = "all"
    idempotent: bool | None = None
    """Retries never write a record twice or out of order. None: on when acks is "all", which it needs."""
    batch_size_bytes: int = 16_384
    linger_ms: float = 10
    """How long a batch waits for company."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    partitioner: Partitioner = "hash"
    retries: int | None = None
    """None: until delivery_timeout_ms is over."""
    delivery_timeout_ms: int = 120_000
    timeout_counts_from: Literal["sending", "progress"] = "sending"
    """sending: each record has its own time, also that in the buffer. progress: all that wait are given up when no
    record was answered for so long, and none before, however much there is to send."""
    buffer_size_bytes: int = 64 * 1024 * 1024
    """Of records not acknowledged; when full, `send` waits."""
    metrics_interval_ms: int = 1000
    client_id: str = "penstock"
    settings: Mapping[str, object] = field(default_factory=dict)
    """Anything else by librdkafka's name, for example {"security.protocol": "SSL"}."""

    @property
    def record_limit(self) -> int:
        """The topic says how large a record may be; librdkafka's own limit is only the room there is."""
        return max(SMALLEST_RECORD_LIMIT, min(self.buffer_size_bytes // 1024 * 1024, LARGEST_RECORD_LIMIT))

    def librdkafka(self) -> dict[str, object]:
        if self.acks not in ("all", 0, 1):
            raise ValueError(f'acks is "all", 1 or 0, not {self.acks!r}')
        if self.timeout_counts_from not in ("sending", "progress"):
            raise ValueError(f'timeout_counts_from is "sending" or "progress", not {self.timeout_counts_from!r}')
        named: dict[str, object] = {
            "acks": self.acks,
            "enable.idempotence": self.acks == "all" if self.idempotent is None else self.idempotent,
            "batch.size": self.batch_size_bytes,
            "message.max.bytes": self.record_limit,
            "linger.ms": self.linger_ms,
            "compression.type": self.compression,
            "partitioner": NATIVE,
            "delivery.timeout.ms": NEVER_MS if self.timeout_counts_from == "progress" else self.delivery_timeout_ms,
            "queue.buffering.max.kbytes": max(1, self.buffer_size_bytes // 1024),
            "statistics.interval.ms": self.metrics_interval_ms,
        }
        if self.retries is not None:
            named["retries"] = self.retries
        return named


class ProducerEngine:
    def __init__(self, servers: str | None, config: ProducerConfig, after_poll: Callable[[], None]) -> None:
        self._connection = ClusterConnection(servers, config.client_id, config.settings)
        self.delivery_timeout_s = config.delivery_timeout_ms / 1000
        self._counts_from_progress = config.timeout_counts_from == "progress"
        self._progress_at_s = time.monotonic()
        self._has_given_up = False
        self._after_poll = after_poll
        self._statistics = Statistics()
        self._latencies: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self._sent = self._sent_bytes = self._failed = 0
        self._buffer_size_bytes = config.buffer_size_bytes
        try:
            own = {**config.librdkafka(), "stats_cb": self._on_statistics}
            self._partitioner = resolve(config.partitioner)
            self._client = LibrdkafkaProducer(self._connection.configuration(own))
        except (KafkaException, TypeError, ValueError) as error:
            raise self._connection.refused_setting(error, "cannot make a producer") from error
        self._partition_counts = PartitionCounts(self._client, self._connection, self.delivery_timeout_s)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="penstock-producer", daemon=True)
        self._thread.start()

    # -- sending ---------------------------------------------------------------------------------------------

    def enqueue(
        self,
        topic: str,
        value: Payload,
        key: Payload,
        partition: int,
        headers: Headers,
        timestamp_ms: int | None,
        sink: Sink,
    ) -> bool:
        """False: the queue is full, try again in a moment."""
        if self._is_closed:
            raise ClientClosed("producer")
        try:
            self._client.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=partial(self._on_delivery, sink),
                timestamp=timestamp_ms or 0,
                headers=header_list(headers),
            )
        except BufferError:
            size = _size(value, key, headers)
            if size > self._buffer_size_bytes:
                raise self._too_large(topic, size) from None  # it would wait for room forever
            return False
        except KafkaException as error:
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise self._too_large(topic, _size(value, key, headers)) from error
            raise self._delivery_error(error.args[0], topic, partition, key) from error
        except (TypeError, ValueError, AttributeError) as error:
            raise BadSetting(
                f"cannot send this to {topic!r}: {error}; keys, values and header values are bytes, text or None"
            ) from error
        return True

    def partition_for(self, topic: str, key: Payload, value: Payload) -> int | None:
        """None: wait for `learn_partitions` first."""
        if self._partitioner is None:
            return LOCAL_PARTITION
        count = self._partition_counts.of(topic)
        if count is None:
            return None
        chosen: Any = self._partitioner(topic, _bytes(key), _bytes(value), count)
        if not isinstance(chosen, int):
            raise DeliveryFailed(
                f"the partitioner chose {chosen!r} for {topic}: give a number from 0 to {count - 1}",
                "INVALID_PARTITION",
            )
        if not 0 <= chosen < count:
            raise DeliveryFailed(
                f"the partitioner chose partition {chosen} of {topic}, which has 0 to {count - 1}", "INVALID_PARTITION"
            )
        return chosen

    def learn_partitions(self, topic: str) -> Future[int]:
        """Shared by all who need the answer."""
        return self._partition_counts.ask(topic)

    def is_flushed(self) -> bool:
        return len(self._client) == 0

    def flush(self, timeout_s: float) -> None:
        """Blocks until everything sent so far was acknowledged or failed."""
        if self._counts_from_progress:
            while not self.is_flushed():  # or given up, by the serving thread
                self._client.flush(POLL_S)
            return
        left = self._client.flush(timeout_s)
        if left:
            if self._connection.is_down:
                raise Unreachable(self._connection.servers)
            raise TimedOut(f"{left} records are not acknowledged after {timeout_s:g} s", "TIMED_OUT")

    def close(self, timeout_s: float) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.flush(timeout_s)
        finally:
            if not self.is_flushed():
                self._client.purge()
                self._client.flush(1.0)  # reports what was purged
            self._thread.join()

    def metrics(self) -> ProducerMetrics:
        return producer_metrics(self._statistics, self._counts(), len(self._client), self._latencies.copy())

    # -- the serving thread ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not (self._is_closed and self.is_flushed()):
            self._client.poll(POLL_S)
            self._after_poll()
            if self._counts_from_progress:
                self._look_at_progress()
        self._after_poll()

    def _look_at_progress(self) -> None:
        now_s = time.monotonic()
        if self.is_flushed():
            self._progress_at_s = now_s
        elif now_s > self._progress_at_s + self.delivery_timeout_s:
            self._has_given_up = True
            self._progress_at_s = now_s
            self._client.purge()  # what is sent from now on has its own chance

    def _on_delivery(self, sink: Sink, error: KafkaError | None, message: Message) -> None:
        topic = message.topic() or ""
        if error is None or error.code() not in PURGED:
            self._progress_at_s = time.monotonic()
        if error is not None:
            self._failed += 1
            sink(self._delivery_error(error, topic, message.partition(), message.key()))
            return
        self._connection.is_down = False
        latency_s = message.latency() or 0.0
        self._latencies.append(latency_s)
        self._sent += 1
        self._sent_bytes += len(message)
        _, timestamp_ms = message.timestamp()
        offset = message.offset()
        sink(
            Delivery(
                topic,
                message.partition() or 0,
                None if offset is None or offset < 0 else offset,
                timestamp_ms if timestamp_ms > 0 else None,
                latency_s * 1000,
            )
        )

    def _on_statistics(self, document: str) -> None:
        self._statistics.received(document, self._counts())

    def _counts(self) -> Counts:
        return Counts(self._sent, self._sent_bytes, self._failed)

    def _too_large(self, topic: str, size: int) -> DeliveryFailed:
        return DeliveryFailed(
            f"a record for {topic} of {size} bytes is larger than this producer takes: raise buffer_size_bytes, and "
            "message.max.bytes where the settings of the client have it",
            "MSG_SIZE_TOO_LARGE",
        )

    def _delivery_error(self, error: KafkaError, topic: str, partition: int | None, key: object) -> ClientError:
        doing = f"a record for {topic} was not delivered"
        if self._has_given_up and error.code() in PURGED:
            if self._connection.is_down:
                return Unreachable(self._connection.servers)
            return DeliveryFailed(f"{doing}: no answer in time; it may or may not have happened", "TIMED_OUT")
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            return UnknownTopic(f"{doing}: the topic has no partition {partition}", error.name())
        if error.code() == KafkaError.INVALID_RECORD:
            # librdkafka keeps the broker's sentence to itself, and this is what a client can do wrong.
            which = "it has no key" if key is None else "it, or another of its batch, is not valid"
            return Refused(f"{doing}: {which}, and a compacted topic needs a key (INVALID_RECORD)", error.name())
        reason = self._connection.error(error, doing)
        if isinstance(reason, Refused | Unreachable):
            return reason
        return DeliveryFailed(str(reason), error.name())


def _size(value: Payload, key: Payload, headers: Headers) -> int:
    parts = [value, key, *(part for header in header_list(headers) or () for part in header)]
    return sum(len(_bytes(part) or b"") for part in parts)


def _bytes(payload: Payload) -> bytes | None:
    return payload.encode() if isinstance(payload, str) else payload
