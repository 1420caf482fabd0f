"""The producers: `Producer` for asyncio, `BlockingProducer` (or `Producer.blocking(...)`) for threads.

`send` returns when the cluster has acknowledged the record. `submit` returns a future as soon as the buffer has room: a
loop over `submit` fills batches, a loop over `send` waits for each record. Leaving the `with` block waits for all
submitted records.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypedDict, Unpack

from penstock.sdk.errors import ClientError
from penstock.sdk.metrics import ProducerMetrics
from penstock.sdk.producer_engine import ABORTED, FULL_QUEUE_PAUSE_S, ProducerConfig, ProducerEngine, ProducerOptions
from penstock.sdk.records import Delivery, Headers, NewRecord, Payload
from penstock.sdk.transactions import BlockingTransaction, Transaction

__all__ = ["BlockingProducer", "Producer", "ProducerConfig", "ProducerOptions"]


class Producer:
    """The producer for asyncio:

    async with Producer("localhost:9092") as producer:
        delivery = await producer.send("events", b"hello", key="user-1")
    """

    def __init__(self, bootstrap_servers: str | None = None, **options: Unpack[ProducerOptions]) -> None:
        self._settled: list[tuple[asyncio.Future[Delivery], Delivery | ClientError]] = []
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine = ProducerEngine(bootstrap_servers, ProducerConfig(**options), self._wake)

    @staticmethod
    def blocking(bootstrap_servers: str | None = None, **options: Unpack[ProducerOptions]) -> BlockingProducer:
        return BlockingProducer(bootstrap_servers, **options)

    async def submit(
        self,
        topic: str,
        value: Payload = None,
        *,
        key: Payload = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[Delivery]:
        """Waits only while the buffer is full."""
        loop = self._loop = asyncio.get_running_loop()
        if partition is None:
            while (chosen := self._engine.partition_for(topic, key, value)) is None:
                await asyncio.wrap_future(self._engine.learn_partitions(topic))
            partition = chosen
        future: asyncio.Future[Delivery] = loop.create_future()

        def sink(result: Delivery | ClientError) -> None:
            with self._lock:
                self._settled.append((future, result))

        while not self._engine.enqueue(topic, value, key, partition, headers, timestamp_ms, sink):  # noqa: ASYNC110
            await asyncio.sleep(FULL_QUEUE_PAUSE_S)  # librdkafka does not say when there is room again
        return future

    async def send(
        self,
        topic: str,
        value: Payload = None,
        *,
        key: Payload = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Waits for the acknowledgement. A cancelled wait does not take the record back."""
        return await (
            await self.submit(topic, value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms)
        )

    async def send_many(self, topic: str, records: Iterable[NewRecord]) -> list[Delivery]:
        """Sends all records at once. After all have an outcome, the first failure is raised."""
        futures = [await self.submit(topic, new.value, **_options(new)) for new in records]
        results = await asyncio.gather(*futures, return_exceptions=True)
        return _without_failures(results)

    def transaction(self) -> Transaction:
        """For `async with`: commits at the end of the block, aborts if an exception leaves it. One at a time."""
        return Transaction(self._engine.transaction_engine())

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until everything submitted so far was acknowledged or has failed."""
        await asyncio.to_thread(self._engine.flush, self._engine.delivery_timeout_s if timeout_s is None else timeout_s)
        self._settle()

    async def close(self, timeout_s: float | None = None) -> None:
        """Flushes and closes. Records that are not acknowledged in time fail."""
        await asyncio.to_thread(self._engine.close, self._engine.delivery_timeout_s if timeout_s is None else timeout_s)
        self._settle()

    def metrics(self) -> ProducerMetrics:
        return self._engine.metrics()

    async def __aenter__(self) -> Self:
        if self._engine.transactions is not None:
            await asyncio.to_thread(self._engine.transactions.initialise)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _wake(self) -> None:
        """Called in the serving thread after deliveries: one call into the loop for all of them."""
        if self._settled and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        with self._lock:
            settled, self._settled = self._settled, []
        for future, result in settled:
            if future.done():
                continue  # the caller was cancelled
            if isinstance(result, ClientError):
                future.set_exception(result)
                if result.name == ABORTED:
                    # mark the exception as retrieved: after an abort asyncio must not log it for each record
                    future.exception()
            else:
                future.set_result(result)


class BlockingProducer:
    """The producer for threads. Any number of threads may share one.

    with BlockingProducer("localhost:9092") as producer:
        delivery = producer.send("events", b"hello", key="user-1")
    """

    def __init__(self, bootstrap_servers: str | None = None, **options: Unpack[ProducerOptions]) -> None:
        self._engine = ProducerEngine(bootstrap_servers, ProducerConfig(**options), lambda: None)

    def enqueue(
        self,
        topic: str,
        value: Payload = None,
        *,
        then: Callable[[Delivery | ClientError], None],
        key: Payload = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Like `submit`, with a callback instead of a future, at half the cost. Another thread calls `then`."""
        if partition is None:
            while (chosen := self._engine.partition_for(topic, key, value)) is None:
                self._engine.learn_partitions(topic).result()
            partition = chosen
        while not self._engine.enqueue(topic, value, key, partition, headers, timestamp_ms, then):
            time.sleep(FULL_QUEUE_PAUSE_S)

    def submit(
        self,
        topic: str,
        value: Payload = None,
        *,
        key: Payload = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Future[Delivery]:
        """Waits only while the buffer is full."""
        future: Future[Delivery] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled

        def sink(result: Delivery | ClientError) -> None:
            if isinstance(result, ClientError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.enqueue(topic, value, then=sink, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms)
        return future

    def send(
        self,
        topic: str,
        value: Payload = None,
        *,
        key: Payload = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Waits for the acknowledgement."""
        return self.submit(
            topic, value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
        ).result()

    def send_many(self, topic: str, records: Iterable[NewRecord]) -> list[Delivery]:
        """Sends all records at once. After all have an outcome, the first failure is raised."""
        futures = [self.submit(topic, new.value, **_options(new)) for new in records]
        return _without_failures([future.exception() or future.result() for future in futures])

    def transaction(self) -> BlockingTransaction:
        """For `with`: commits at the end of the block, aborts if an exception leaves it. One at a time."""
        return BlockingTransaction(self._engine.transaction_engine())

    def flush(self, timeout_s: float | None = None) -> None:
        self._engine.flush(self._engine.delivery_timeout_s if timeout_s is None else timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        self._engine.close(self._engine.delivery_timeout_s if timeout_s is None else timeout_s)

    def metrics(self) -> ProducerMetrics:
        return self._engine.metrics()

    def __enter__(self) -> Self:
        if self._engine.transactions is not None:
            self._engine.transactions.initialise()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _SendOptions(TypedDict):
    key: Payload
    partition: int | None
    headers: Headers
    timestamp_ms: int | None


def _options(new: NewRecord) -> _SendOptions:
    return {"key": new.key, "partition": new.partition, "headers": new.headers, "timestamp_ms": new.timestamp_ms}


def _without_failures(results: Iterable[Delivery | BaseException]) -> list[Delivery]:
    deliveries: list[Delivery] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        deliveries.append(result)
    return deliveries
