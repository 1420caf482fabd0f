"""The rounds of one scenario: each is kept and said in a line, also those that fail."""

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
        """Whether it went well. A failed run is an empty round and a line among the outcome's failures."""
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
