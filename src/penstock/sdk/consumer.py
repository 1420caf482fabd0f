"""`Consumer`: the asyncio consumer, a `BlockingConsumer` in a dedicated thread.

Iteration takes buffered records without a thread switch. Cancelling a wait loses nothing: the records stay in the
buffer for the next call. Rebalance callbacks may be plain functions or coroutines. They run in the event loop while the
rebalance waits, and may call this consumer.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeAlias, Unpack

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.blocking_consumer import (
    SLICE_S,
    BlockingConsumer,
    Commitable,
    OnRebalance,
    Partitions,
)
from penstock.sdk.call_thread import CallThread
from penstock.sdk.consumer_config import ConsumerConfig, ConsumerOptions, Strategy
from penstock.sdk.metrics import ConsumerMetrics
from penstock.sdk.records import Position, Record

__all__ = ["BlockingConsumer", "Consumer", "ConsumerConfig", "ConsumerOptions", "Strategy"]

RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], Awaitable[None] | None]


class Consumer:
    """
    async with Consumer("localhost:9092", group="billing") as consumer:
        await consumer.subscribe("events")
        async for record in consumer:
            print(record.text())
    """

    def __init__(self, bootstrap_servers: str | None = None, **options: Unpack[ConsumerOptions]) -> None:
        self._core = BlockingConsumer(bootstrap_servers, **options)
        self._max_poll_records = ConsumerConfig(**options).max_poll_records
        self._thread = CallThread("consumer")
        self._is_closed = False

    @staticmethod
    def blocking(bootstrap_servers: str | None = None, **options: Unpack[ConsumerOptions]) -> BlockingConsumer:
        return BlockingConsumer(bootstrap_servers, **options)

    # -- subscription and assignment -------------------------------------------------------------------------

    async def subscribe(
        self,
        *topics: str,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribes as a member of the group. A topic that begins with ^ is a regular expression."""
        loop = asyncio.get_running_loop()

        def bridged(callback: RebalanceCallback | None) -> OnRebalance | None:
            return None if callback is None else lambda partitions: self._tell(loop, callback, partitions)

        await self._thread.call(
            self._core.subscribe,
            *topics,
            on_assign=bridged(on_assign),
            on_revoke=bridged(on_revoke),
            on_lost=bridged(on_lost),
        )

    async def unsubscribe(self) -> None:
        await self._thread.call_deferred(self._core.unsubscribe)

    async def assign(
        self, *what: str | TopicPartition, at: Position | Mapping[TopicPartition, Position] = "committed"
    ) -> None:
        """Assigns partitions, or all partitions of topics, without the group. Replaces the earlier assignment."""
        await self._thread.call(self._core.assign, *what, at=at)

    async def assignment(self) -> list[TopicPartition]:
        return await self._thread.call(self._core.assignment)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        return await self._thread.call(self._core.partitions, topic)

    # -- reading ---------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        record = self._core.next_buffered()
        if record is not None:
            if self._core.wants_store():
                await self._thread.call(self._core.store)
            return record
        while record is None:
            await self._thread.call_deferred(self._core.fill, SLICE_S)
            record = self._core.next_buffered()
        return record

    async def poll(self, max_records: int | None = None, timeout_s: float = 1.0) -> list[Record]:
        """Returns the available records. Waits for the first one, and returns an empty list if none arrives in time."""
        handout = self._core.handout
        handout.finish()
        deadline = time.monotonic() + timeout_s
        while not handout:
            await self._thread.call_deferred(self._core.fill, max(0.0, min(SLICE_S, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                break
        return handout.take(max_records or self._max_poll_records)

    async def at_end(self) -> bool:
        """Whether nothing is buffered and every assigned partition has been read to its end."""
        return await self._thread.call(self._core.at_end)

    # -- moving ----------------------------------------------------------------------------------------------

    async def seek(self, to: Position, partitions: Partitions | None = None) -> None:
        """Moves the positions of the given partitions, or of all assigned ones."""
        await self._thread.call(self._core.seek, to, partitions)

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record that the application gets, if known."""
        return self._core.position(partition)

    async def pause(self, *partitions: TopicPartition) -> None:
        await self._thread.call(self._core.pause, partitions)

    async def resume(self, *partitions: TopicPartition) -> None:
        await self._thread.call(self._core.resume, partitions)

    # -- offsets ---------------------------------------------------------------------------------------------

    async def commit(self, what: Commitable | None = None) -> None:
        """Commits, and waits for the coordinator. Without an argument: everything that the application got so far."""
        offsets = self._core.offsets_to_commit(what)
        if offsets:
            await self._thread.call(self._core.commit_offsets, offsets, is_everything=what is None)

    async def transactional_offsets(self, what: Commitable | None) -> tuple[dict[TopicPartition, int], Any]:
        """For `Transaction.send_offsets`."""
        return await self._thread.call(self._core.transactional_offsets, what)

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        return await self._thread.call(self._core.committed, partitions or None)

    async def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset and the end offset of the log."""
        return await self._thread.call(self._core.bounds, partition)

    async def offsets_at(self, times: Mapping[TopicPartition, datetime]) -> dict[TopicPartition, int | None]:
        """The offset of the first record at or after the time; None if there is none."""
        return await self._thread.call(self._core.offsets_at, times)

    def metrics(self) -> ConsumerMetrics:
        return self._core.metrics()

    # -- the end ---------------------------------------------------------------------------------------------

    async def close(self, *, is_done: bool = True) -> None:
        """Like `BlockingConsumer.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._thread.call_deferred(self._core.close, is_done=is_done)
        finally:
            self._thread.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(is_done=error is None)

    def _tell(
        self, loop: asyncio.AbstractEventLoop, callback: RebalanceCallback, partitions: list[TopicPartition]
    ) -> None:
        """Runs the callback in the loop. Called in the consumer's thread, inside a librdkafka call."""

        async def run() -> None:
            answer = callback(partitions)
            if inspect.isawaitable(answer):
                await answer

        future = asyncio.run_coroutine_threadsafe(run(), loop)
        self._thread.serve_until(future)
        future.result()
