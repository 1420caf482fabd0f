"""The common part of both producers: a librdkafka handle, the thread that serves it, partition counts, metrics.

The serving thread reports deliveries: `sink(result)` for each record, then `after_poll()` once for all that arrived
together, so that an event loop is woken once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
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
    TransactionAborted,
    UnknownTopic,
    Unreachable,
)
from penstock.sdk.metrics import LATENCIES_KEPT, Counts, ProducerMetrics, Statistics, producer_metrics
from penstock.sdk.partition_counts import PartitionCounts
from penstock.sdk.partitioners import NATIVE, Partitioner, resolve
from penstock.sdk.records import Delivery, Headers, Payload, header_list
from penstock.sdk.settings import ClusterConnection
from penstock.sdk.transaction_engine import TransactionEngine

Sink: TypeAlias = Callable[[Delivery | ClientError], None]

POLL_S = 0.05
FULL_QUEUE_PAUSE_S = 0.002
LOCAL_PARTITION = -1  # librdkafka decides
NEVER_MS = 0
ABORTED = "TRANSACTION_ABORTED"
PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
SMALLEST_RECORD_LIMIT, LARGEST_RECORD_LIMIT = 1000, 1_000_000_000  # librdkafka's bounds of message.max.bytes


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of a producer. `ProducerConfig` documents them and has their defaults."""

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
    transactional_id: str | None
    transaction_timeout_ms: int
    settings: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    acks: Literal["all", 0, 1] = "all"
    idempotent: bool | None = None
    """If True, retries never write a record twice or out of order. Needs acks="all". None: on if acks is "all"."""
    batch_size_bytes: int = 16_384
    linger_ms: float = 10
    """How long a batch waits for more records."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    partitioner: Partitioner = "hash"
    retries: int | None = None
    """None: retry until delivery_timeout_ms is over."""
    delivery_timeout_ms: int = 120_000
    timeout_counts_from: Literal["sending", "progress"] = "sending"
    """sending: each record has its own timeout, which includes its time in the buffer. progress: all waiting records
    fail when no record was acknowledged for that long, and none fails earlier."""
    buffer_size_bytes: int = 64 * 1024 * 1024
    """Limit for unacknowledged records; when it is reached, `send` waits."""
    metrics_interval_ms: int = 1000
    client_id: str = "penstock"
    transactional_id: str | None = None
    """Name of this producer over restarts; with it the producer has transactions. A new producer with the same name
    fences the one before."""
    transaction_timeout_ms: int = 60_000
    """The coordinator aborts a transaction that is open for longer."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Other settings by librdkafka's names, for example {"security.protocol": "SSL"}."""

    @property
    def record_limit(self) -> int:
        """librdkafka's limit on a record: as large as the buffer, because the topic has the actual limit."""
        return max(SMALLEST_RECORD_LIMIT, min(self.buffer_size_bytes // 1024 * 1024, LARGEST_RECORD_LIMIT))

    def librdkafka(self) -> dict[str, object]:
        if self.acks not in ("all", 0, 1):
            raise ValueError(f'acks must be "all", 1 or 0, not {self.acks!r}')
        if self.timeout_counts_from not in ("sending", "progress"):
            raise ValueError(f'timeout_counts_from must be "sending" or "progress", not {self.timeout_counts_from!r}')
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
        if self.transactional_id is not None:
            named |= self._transactional()
        return named

    def _transactional(self) -> dict[str, object]:
        if not self.transactional_id:
            raise ValueError("transactional_id must not be empty")
        if self.acks != "all" or self.idempotent is False:
            raise ValueError('transactions need acks="all" and idempotence')
        return {
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            # librdkafka requires that
            "delivery.timeout.ms": min(self.delivery_timeout_ms, self.transaction_timeout_ms),
        }


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
        self._transactions: TransactionEngine | None = None
        if config.transactional_id is not None:
            timeout_s = config.transaction_timeout_ms / 1000
            self._transactions = TransactionEngine(self._client, self._connection, config.transactional_id, timeout_s)
        self._partition_counts = PartitionCounts(self._client, self._connection, self.delivery_timeout_s)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="penstock-producer", daemon=True)
        self._thread.start()

    @property
    def transactions(self) -> TransactionEngine | None:
        """None: the producer has no transactional id."""
        return self._transactions

    def transaction_engine(self) -> TransactionEngine:
        if self._is_closed:
            raise ClientClosed("producer")
        if self._transactions is None:
            raise BadSetting("this producer has no transactions: give transactional_id=...")
        return self._transactions

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
        """False means that the queue is full: try again later."""
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
            if self._transactions is not None and error.args[0].code() == KafkaError._STATE:
                raise _not_in_a_transaction(topic, self._transactions) from error
            raise self._delivery_error(error.args[0], topic, partition, key) from error
        except (TypeError, ValueError, AttributeError) as error:
            raise BadSetting(
                f"cannot send this to {topic!r}: {error}; keys, values and header values must be bytes, text or None"
            ) from error
        return True

    def partition_for(self, topic: str, key: Payload, value: Payload) -> int | None:
        """The partition. None means: wait for `learn_partitions` first."""
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
        """The number of partitions, in one request for all callers."""
        return self._partition_counts.ask(topic)

    def is_flushed(self) -> bool:
        return len(self._client) == 0

    def flush(self, timeout_s: float) -> None:
        """Blocks until everything sent so far was acknowledged or has failed."""
        if self._counts_from_progress:
            while not self.is_flushed():  # or the serving thread gives up
                self._flush(POLL_S)
            return
        left = self._flush(timeout_s)
        if left:
            if self._connection.is_down:
                raise Unreachable(self._connection.servers)
            raise TimedOut(f"{left} records are not acknowledged after {timeout_s:g} s", "TIMED_OUT")

    def _flush(self, timeout_s: float) -> int:
        """The number of records that are still not acknowledged."""
        with _fatal_error_told():
            return self._client.flush(timeout_s)
        return self._client.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.flush(timeout_s)
        finally:
            if not self.is_flushed():
                self._client.purge()
                self._flush(1.0)  # reports the purged records
            self._thread.join()

    def metrics(self) -> ProducerMetrics:
        return producer_metrics(self._statistics, self._counts(), len(self._client), self._latencies.copy())

    # -- the serving thread ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not (self._is_closed and self.is_flushed()):
            with _fatal_error_told():
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
            self._client.purge()  # later records start a new timeout

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
            f"a record for {topic} of {size} bytes is too large for this producer: raise buffer_size_bytes, and "
            "message.max.bytes if the client's settings have it",
            "MSG_SIZE_TOO_LARGE",
        )

    def _delivery_error(self, error: KafkaError, topic: str, partition: int | None, key: object) -> ClientError:
        doing = f"a record for {topic} was not delivered"
        if self._has_given_up and error.code() in PURGED:
            if self._connection.is_down:
                return Unreachable(self._connection.servers)
            return DeliveryFailed(f"{doing}: no answer in time; the record may have been written", "TIMED_OUT")
        if self._transactions is not None and error.code() in PURGED:
            return DeliveryFailed(f"{doing}: its transaction was aborted", ABORTED)
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            return UnknownTopic(f"{doing}: the topic has no partition {partition}", error.name())
        if error.code() == KafkaError.INVALID_RECORD:
            # librdkafka does not pass on the broker's message. This is the usual mistake of a client.
            which = "it has no key" if key is None else "it or another record of its batch is invalid"
            return Refused(f"{doing}: {which}, and a compacted topic needs a key (INVALID_RECORD)", error.name())
        reason = self._connection.error(error, doing)
        if isinstance(reason, Refused | Unreachable):
            return reason
        return DeliveryFailed(str(reason), error.name())


@contextmanager
def _fatal_error_told() -> Iterator[None]:
    """confluent-kafka raises a fatal error once, in the call that serves callbacks. Here each later call raises it
    again.
    """
    try:
        yield
    except KafkaException as error:
        if not error.args[0].fatal():
            raise


def _not_in_a_transaction(topic: str, transactions: TransactionEngine) -> ClientError:
    if transactions.is_open:
        return TransactionAborted(f"a record for {topic} is not sent: this transaction has failed already", ABORTED)
    return BadSetting(f"cannot send to {topic}: no transaction is open. Send inside of `with producer.transaction()`")


def _size(value: Payload, key: Payload, headers: Headers) -> int:
    parts = [value, key, *(part for header in header_list(headers) or () for part in header)]
    return sum(len(_bytes(part) or b"") for part in parts)


def _bytes(payload: Payload) -> bytes | None:
    return payload.encode() if isinstance(payload, str) else payload
