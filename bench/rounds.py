"""The rounds of one scenario: each is saved and printed as one line, also a failed one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.results import Metrics, Outcome


@dataclass(frozen=True, slots=True)
class Rounds:
    outcome: Outcome
    shown: Sequence[str]
    failures: tuple[type[Exception], ...]
    progress: Callable[[str], None]

    def run(self, number: int, key: str, label: str, measure: Callable[[], Metrics]) -> bool:
        """Returns whether the run succeeded. A failed run is an empty round and a line in the outcome's failures."""
        metrics: Metrics = {}
        try:
            metrics = measure()
        except self.failures as error:
            self.outcome.failures.append(f"{label}, round {number}: {error}")
            self.progress(f"{label:<12} round {number}: FAILED: {error}")
        else:
            shown = ", ".join(f"{name} {metrics[name]:,.3g}" for name in self.shown)
            self.progress(f"{label:<12} round {number}: {shown}")
        self.outcome.rounds.setdefault(key, []).append(metrics)
        return bool(metrics)
