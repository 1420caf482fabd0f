"""The transactions that `producer.transaction()` returns: context managers that commit at the end of their block.

An exception in the block aborts the transaction, and is raised again. If the producer has become unusable,
`ProducerFailed` is raised instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from penstock.sdk.blocking_consumer import BlockingConsumer, Commitable
from penstock.sdk.consumer import Consumer
from penstock.sdk.errors import ClientError, ProducerFailed
from penstock.sdk.transaction_engine import TransactionEngine

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("penstock.sdk")


class Transaction:
    """For asyncio:

    async with producer.transaction() as transaction:
        await producer.send("orders", b"...")
        await transaction.send_offsets(consumer)
    """

    def __init__(self, engine: TransactionEngine) -> None:
        self._engine = engine

    async def send_offsets(self, consumer: Consumer | BlockingConsumer, what: Commitable | None = None) -> None:
        """Commits offsets of the consumer's group with this transaction.

        Without `what`: the offsets of all records that the consumer has handed out. The consumer needs a group and
        auto_commit=False.
        """
        if isinstance(consumer, Consumer):
            offsets, metadata = await consumer.transactional_offsets(what)
        else:
            offsets, metadata = await asyncio.to_thread(consumer.transactional_offsets, what)
        if offsets:
            await _to_the_end(self._engine.send_offsets, offsets, metadata)

    async def __aenter__(self) -> Self:
        await _to_the_end(self._engine.begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await _to_the_end(self._engine.commit)
        else:
            await _to_the_end(_abort, self._engine, error)


class BlockingTransaction:
    """For threads:

    with producer.transaction() as transaction:
        producer.send("orders", b"...")
        transaction.send_offsets(consumer)
    """

    def __init__(self, engine: TransactionEngine) -> None:
        self._engine = engine

    def send_offsets(self, consumer: BlockingConsumer, what: Commitable | None = None) -> None:
        """Like `Transaction.send_offsets`."""
        offsets, metadata = consumer.transactional_offsets(what)
        if offsets:
            self._engine.send_offsets(offsets, metadata)

    def __enter__(self) -> Self:
        self._engine.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._engine.commit()
        else:
            _abort(self._engine, error)


def _abort(engine: TransactionEngine, because: BaseException) -> None:
    """The exception of the block is raised again, unless the producer has failed."""
    try:
        engine.abort()
    except ProducerFailed as error:
        raise error from because
    except ClientError as error:
        log.warning("%s; the coordinator aborts it when its timeout is over", error)


async def _to_the_end(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs the call in a thread. A cancelled caller still waits for its end: librdkafka takes one call at a time."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            await asyncio.wait((running,))
        raise
