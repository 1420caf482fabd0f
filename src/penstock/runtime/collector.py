"""Python's cycle collector in a process with an event loop: every pass is short, however many objects there are.

Most objects are freed by their reference counts. The collector finds cycles, and it blocks the interpreter meanwhile.
Two things make its passes long:

- A pass starts after a number of net allocations. A request that names 40,000 partitions makes 40,000. With Python's
  own thresholds that was hundreds of passes of half a millisecond, and some of eight. So passes over young objects are
  small here, and a pass over everything is rare.
- A pass over everything visits all objects that are not frozen: 0.3 s for the groups of a busy coordinator. So the
  survivors of a long pass are frozen, and the next one visits only newer objects.

Frozen objects are freed as usual when their last reference goes; only cycles among them stay. So long-lived objects
must not end in a cycle.

Must not know: whose objects these are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final

FULL: Final = 2
LONG_S: Final = 0.02
THRESHOLDS: Final = (500, 2, 1000)
"""Thresholds of the three generations: net allocations before a young pass, young passes before a middle pass, middle
passes before a full pass."""


class Collector:
    def __init__(self, clock: Callable[[], float] = perf_counter, freeze: Callable[[], None] = gc.freeze) -> None:
        self._clock = clock
        self._freeze = freeze
        self._began_s = 0.0

    def start(self) -> None:
        """Modules imported so far stay as long as the process."""
        self._freeze()
        gc.callbacks.append(self.collected)

    def stop(self) -> None:
        gc.callbacks.remove(self.collected)

    def settle(self) -> None:
        """The process has started: its objects stay and are not visited again. Young garbage is collected first."""
        gc.collect(1)  # not the old generation: with thousands of partitions that blocks the loop for half a second
        self._freeze()
        gc.set_threshold(*THRESHOLDS)

    def collected(self, phase: str, info: Mapping[str, int]) -> None:
        """A callback for `gc.callbacks`. Called in any thread, with the interpreter blocked."""
        if info["generation"] != FULL:
            return
        if phase == "start":
            self._began_s = self._clock()
        elif self._clock() - self._began_s > LONG_S:
            self._freeze()
