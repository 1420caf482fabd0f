"""A small thread pool behind the workers port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ThreadWorkers:
    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-worker")

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
