"""How far a table is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class FollowProgress:
    """Counts of this run. Rows count when they are committed."""

    topic: str
    directory: str
    began_s: float = field(default_factory=time.monotonic)
    records: int = 0
    size_bytes: int = 0
    """Of the records in memory."""
    evolutions: int = 0
    """Changes of the schema, by values."""
    dead_letters: int = 0
    tombstones: int = 0
    """Of the records, those that delete by their key."""
    lost: int = 0
    """Offsets that retention deleted before they were read."""
    commits: int = 0
    commit_s: float = 0.0
    """The time that they took."""
    restarts: int = 0
    """Failures after which it began again."""
    is_running: bool = False
    version: int = 0
    positions: Mapping[int, int] = field(default_factory=dict)
    """What the table has, by partition."""
    ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        return sum(max(0, end - self.positions.get(partition, 0)) for partition, end in self.ends.items())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds > 0 else 0.0
