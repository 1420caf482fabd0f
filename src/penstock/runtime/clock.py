"""The machine's own clock and randomness."""

from __future__ import annotations

import os
import time


class SystemClock:
    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class SystemEntropy:
    __slots__ = ()

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)
