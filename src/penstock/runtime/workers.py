"""A small thread pool behind the workers port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


class ThreadWorkers:
    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int, name: str = "penstock-worker") -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._pool, work)

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        if not items:
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="penstock-each") as pool:
            yield from pool.map(work, items)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
