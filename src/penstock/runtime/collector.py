"""The garbage collector of a process with an event loop: a full collection stays short, however much the process holds.

A full collection walks over everything that is not frozen, in one go, with the interpreter held: 0.3 s for the groups
of a busy coordinator. What survived a long one is old, and is frozen: the next one walks over what came since. Frozen
objects are freed as always when nothing refers to them; only cycles among them stay. So what lives long must not end
in a cycle.

Must not know: whose objects these are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final

FULL: Final = 2
LONG_S: Final = 0.02


class Collector:
    def __init__(self, clock: Callable[[], float] = perf_counter, freeze: Callable[[], None] = gc.freeze) -> None:
        self._clock = clock
        self._freeze = freeze
        self._began_s = 0.0

    def start(self) -> None:
        """What was imported so far stays as long as the process."""
        self._freeze()
        gc.callbacks.append(self.collected)

    def stop(self) -> None:
        gc.callbacks.remove(self.collected)

    def settle(self) -> None:
        """Freeze what is there, without a full collection. Young garbage goes first."""
        gc.collect(1)
        self._freeze()

    def collected(self, phase: str, info: Mapping[str, int]) -> None:
        """As `gc.callbacks` has it. Called in any thread, with the interpreter held."""
        if info["generation"] != FULL:
            return
        if phase == "start":
            self._began_s = self._clock()
        elif self._clock() - self._began_s > LONG_S:
            self._freeze()
