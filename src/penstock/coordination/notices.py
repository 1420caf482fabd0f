"""Log lines about groups, limited so that a client that keeps creating, joining or leaving groups cannot fill the log.

Each interval has a maximum number of lines; suppressed lines are counted, and the next line gives the count. Idle
groups get one line per interval: a hundred of them are one client's mistake, and one line is enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
LINES: Final = 50
"""Lines per interval: a broker that takes over many groups logs some lines for each."""


class Notices:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._rebalances = _Lines(now_s, LINES)
        self._idle = _Lines(now_s, 1)

    def say(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._rebalances.say(line)

    def say_of_idle(self, lines: Iterable[str]) -> None:
        """For groups that have nothing to read."""
        for line in lines:
            self._idle.say(line)


class _Lines:
    def __init__(self, now_s: Callable[[], float], most: int) -> None:
        self._now_s = now_s
        self._most = most
        self._until_s = 0.0
        self._said = 0
        self._unsaid = 0

    def say(self, line: str) -> None:
        now_s = self._now_s()
        if now_s >= self._until_s:
            self._until_s = now_s + INTERVAL_S
            self._said = 0
        if self._said >= self._most:
            self._unsaid += 1
            return
        self._said += 1
        more = f" ({self._unsaid} more such lines were left out)" if self._unsaid else ""
        self._unsaid = 0
        log.info("%s%s", line, more)
