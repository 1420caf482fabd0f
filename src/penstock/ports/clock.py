"""Time and randomness as ports, so that a whole cluster can run on a seed."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock in milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class Chance(Protocol):
    """Unpredictable numbers that a seed can repeat."""

    def randrange(self, stop: int, /) -> int:
        """From 0 to `stop` - 1."""
        ...


class Entropy(Protocol):
    def random_bytes(self, size: int) -> bytes: ...
