"""Time and randomness of one simulated node.

Fair faults: a wall clock that is off, runs too fast or too slow, and jumps in either direction, as an operator or NTP
may cause; a monotonic clock that stops while its machine is suspended, together with the loop's timers.
Not fair, and not simulated: a monotonic clock that goes back or runs at another speed than the loop's timers.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

EPOCH_MS = 1_700_000_000_000  # start of a world


class SimClock:
    def __init__(
        self,
        time: Callable[[], float],
        world_time: Callable[[], float] | None = None,
        *,
        skew_ms: float = 0.0,
        drift_ppm: float = 0.0,
    ) -> None:
        """`time` is the process's time, which stops while suspended; `world_time` continues."""
        self._time = time
        self._world_time = world_time or time
        self.skew_ms = self._usual_skew_ms = skew_ms
        self._rate = 1 + drift_ppm / 1e6

    def now_ms(self) -> int:
        return int(EPOCH_MS + self.skew_ms + self._world_time() * 1000 * self._rate)

    def monotonic(self) -> float:
        return self._time()

    def jump(self, by_ms: float) -> None:
        self.skew_ms += by_ms

    def set_right(self) -> None:
        """Undo all jumps."""
        self.skew_ms = self._usual_skew_ms


class SimEntropy:
    def __init__(self, random: Random) -> None:
        self._random = random

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)
