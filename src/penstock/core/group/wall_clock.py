"""The time of day, for what is stored and told. Moments (`now_ms`) are those of a clock that never jumps.

Deadlines and pauses count in moments, so that nobody's session ends because somebody set the clock. What
outlives the process (timestamps in records, offset retention) cannot: the host says before each question
how far the wall clock is ahead.
"""

from __future__ import annotations


class WallClock:
    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0

    def at(self, now_ms: int) -> int:
        return now_ms + self.ahead_ms
