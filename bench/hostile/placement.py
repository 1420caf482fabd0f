"""The processors of broker and clients, as if the broker and its clients were on two machines.

The broker with all its processes has one processor, the clients have another. Among the clients, the producer that
measures has a real-time priority: the processor time that a hostile peer takes on its own machine must not count as
the broker's doing. Without two processors, or without the right to a real-time priority (root has it), everybody
shares, and the table says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PRIORITY = 1


def _processors() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _may_go_first() -> bool:
    try:
        with going_first():
            return True
    except PermissionError:
        return False


@contextmanager
def going_first() -> Iterator[None]:
    """This thread before all others of its processor."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Placement:
    """Apart (see above), or all on the same processors."""

    def __init__(self) -> None:
        self._all = _processors()
        self.is_apart = len(self._all) >= 2 and _may_go_first()

    def __str__(self) -> str:
        if self.is_apart:
            return "The broker has one processor, its clients another; the producer has a real-time priority there."
        return "Broker and clients share all processors (two processors and root are needed to keep them apart)."

    @contextmanager
    def of_broker(self) -> Iterator[None]:
        """Processes started meanwhile belong to the broker, all others to its clients."""
        if not self.is_apart:
            yield
            return
        os.sched_setaffinity(0, self._all[:1])
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._all[1:])

    @contextmanager
    def measuring(self) -> Iterator[None]:
        if not self.is_apart:
            yield
            return
        with going_first():
            yield
