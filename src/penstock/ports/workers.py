"""The workers port: work that may block (cold reads, recompression, deletion) off the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Workers(Protocol):
    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """The outcome of `work`, which runs elsewhere and must not touch the loop's state."""
        ...

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        """The outcomes in order, as they come; up to `threads` at a time. Blocks: for start and stop."""
        ...


class RecordWorkers(Protocol):
    """Work on what clients sent, elsewhere than in the interpreter of the loop: decompressing the records of a batch,
    walking over them, matching regular expressions.

    `work` is a function of a module, `args` and outcome are plain values (they are pickled). What it raises comes back
    if it is an ApiError; StorageError where it could not be done: the process died, or took too long.
    """

    def call(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """For producers and readers: never behind a lookup."""
        ...

    def look_up(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """For lookups by time, which have a lane of their own."""
        ...

    def call_patiently(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """For regular expressions: a lane of their own, with a lower priority."""
        ...
