"""The results of a run: metrics by scenario, broker and round, saved as JSON.

A later run replaces its own scenarios and keeps the others; every scenario has its own date and revision.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

Metrics = dict[str, float]

PENSTOCK = "penstock"
KAFKA = "kafka"


@dataclass(slots=True)
class Outcome:
    """One scenario. A round that failed is an empty dictionary, so that rounds still pair up."""

    measured_at: str
    revision: str
    flush: str
    rounds: dict[str, list[Metrics]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def values(self, side: str, metric: str) -> list[float]:
        return [one[metric] for one in self.rounds.get(side, []) if metric in one]

    def ratios(self, metric: str) -> list[float]:
        """Penstock / Kafka, round by round."""
        pairs = zip(self.rounds.get(PENSTOCK, []), self.rounds.get(KAFKA, []), strict=False)
        return [ours[metric] / theirs[metric] for ours, theirs in pairs if metric in ours and theirs.get(metric)]


@dataclass(slots=True)
class Results:
    environment: dict[str, str]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        temporary.replace(path)


def load(path: Path) -> Results | None:
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text())
        return Results(raw["environment"], {name: Outcome(**one) for name, one in raw["outcomes"].items()})
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path.name} is not a results file of this version ({error}): move it away") from None


@dataclass(frozen=True, slots=True)
class Summary:
    median: float
    low: float
    high: float


def summarize(values: list[float]) -> Summary | None:
    return Summary(statistics.median(values), min(values), max(values)) if values else None
