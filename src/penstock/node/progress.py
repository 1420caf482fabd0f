"""Logs the progress of a long start or stop."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 2.0


class ProgressLines:
    """A log line every two seconds of a long start or stop."""

    def __init__(self, time: Callable[[], float], verb: str) -> None:
        self._time = time
        self._verb = verb
        self._next = time() + PROGRESS_EVERY_S

    def __call__(self, done: int, total: int) -> None:
        now = self._time()
        if now >= self._next:
            self._next = now + PROGRESS_EVERY_S
            log.info("%s %d of %d partitions", self._verb, done, total)
