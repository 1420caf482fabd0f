"""Requests whose answer waits for others, while further requests on the connection wait for that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.net.connection import Connection

R = TypeVar("R")


def park(connection: Connection, answer: asyncio.Future[R], make_way: Callable[[int], None]) -> Coroutine[Any, Any, R]:
    """Wait for the answer; `make_way` is called with the key of a request that has arrived behind it.

    Call this in the turn in which the request arrived: the next one may already be in the buffer.
    """
    connection.when_blocked = make_way
    return _wait(connection, answer)


async def _wait(connection: Connection, answer: asyncio.Future[R]) -> R:
    try:
        return await answer
    finally:
        connection.when_blocked = None
