"""The workers port: blocking work (cold reads, recompression, deletion) off the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Workers(Protocol):
    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run `work` elsewhere and return its result. It must not touch the loop's state."""
        ...

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        """Yield the results in order, with up to `threads` at a time. Blocks: for start and stop."""
        ...


class RecordWorkers(Protocol):
    """Work on client data outside the interpreter of the loop: decompressing the records of a batch,
    walking over them, matching regular expressions.

    `work` is a module-level function; `args` and result are plain values (they are pickled). An ApiError that it raises
    is passed on; StorageError if the work failed: the process died, or took too long.
    """

    def call(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """For producers and readers: never waits behind a lookup."""
        ...

    def look_up(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """For lookups by time, which have their own queue."""
        ...

    def call_patiently(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """For regular expressions, which have their own queue with a lower priority."""
        ...
