"""The time of day, for stored and displayed times. Moments (`now_ms`) come from a clock that never jumps.

Deadlines and pauses use moments, so a change of the system clock ends no session. Timestamps in records and
offset retention outlive the process and need the time of day: before each operation the host sets how far
the wall clock is ahead.
"""

from __future__ import annotations


class WallClock:
    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0

    def at(self, now_ms: int) -> int:
        return now_ms + self.ahead_ms
