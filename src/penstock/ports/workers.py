"""The workers port: work that may block (cold reads, recompression, deletion) off the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Workers(Protocol):
    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """The outcome of `work`, which runs elsewhere and must not touch the loop's state."""
        ...
