"""The findings of the judges of one history.

A history does not end with the first broken promise. It continues for a moment, so that other judges can report too. A
logged defect, or clients that wait forever, is often the consequence of something that a more specific judge can name.
That name becomes the verdict. Must not know: nodes, clients, faults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.sim.judges.history import Violation
from penstock.sim.machine.loop import StepLimit

AFTERMATH_S = 1.0
AFTERMATH_STEPS = 30_000
DEFECT = "brokers have no defects"
UNHANDLED = "no error goes unhandled"
ENDLESS = "histories come to an end"
PROGRESS = "a healed cluster makes progress"
BROAD = (DEFECT, UNHANDLED, ENDLESS, PROGRESS)
"""Findings that something is wrong, without saying what."""


class Breach(NamedTuple):
    what: str
    story: str
    error: Exception


class Guarding:
    """Guards a judge's check: a broken promise is recorded, and the history continues."""

    __slots__ = ("_judging",)

    def __init__(self, judging: Judging) -> None:
        self._judging = judging

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Violation):
            return False
        self._judging.failed(error)
        return True


class Judging:
    def __init__(self, time: Callable[[], float], steps: Callable[[], int]) -> None:
        self._time = time
        self._steps = steps
        self._over_s = 0.0
        self._last_step = 0
        self._guard = Guarding(self)
        self.breaches: list[Breach] = []
        """The first of each name, in the order found."""

    def failed(self, error: Exception) -> None:
        what, story = _named(error)
        if any(breach.what == what for breach in self.breaches):
            return
        if not self.breaches:
            self._over_s, self._last_step = self._time() + AFTERMATH_S, self._steps() + AFTERMATH_STEPS
        self.breaches.append(Breach(what, story, error))

    def judging(self) -> Guarding:
        """For checks inside a node, which would take the error for its own, or where the history must continue."""
        return self._guard

    @property
    def is_over(self) -> bool:
        """No further findings are expected."""
        return bool(self.breaches) and (self._time() >= self._over_s or self._steps() >= self._last_step)

    @property
    def verdict(self) -> Breach | None:
        """The first specific finding, else the first."""
        sharp = (breach for breach in self.breaches if breach.what not in BROAD)
        return next(sharp, self.breaches[0] if self.breaches else None)


def _named(error: Exception) -> tuple[str, str]:
    if isinstance(error, Violation):
        return error.what, error.story
    if isinstance(error, StepLimit):
        return ENDLESS, str(error)
    return UNHANDLED, f"{type(error).__name__}: {error}"
