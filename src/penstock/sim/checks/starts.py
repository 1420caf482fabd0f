"""Where only compaction removes records, all in-sync replicas begin at the same offset.

A log that has lost its first segment looks like one whose oldest records were deleted. Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from penstock.sim.checks.chains import HELD, ChainChecker, Key
from penstock.sim.judges.history import Violation


class ConfigLike(Protocol):
    @property
    def delete(self) -> bool:
        """Whether retention deletes segments."""
        ...


class LogStart(Protocol):
    @property
    def config(self) -> ConfigLike: ...
    @property
    def log_start_offset(self) -> int: ...


class StartChecker:
    def __init__(self, chains: ChainChecker) -> None:
        self._chains = chains
        self._deletes: dict[Key, None] = {}  # records were deleted, or may have been

    def look(self, name: object, key: Key, members: Mapping[int, LogStart], excused: Container[int]) -> None:
        """`members`: the logs of in-sync replicas, by node. `name` is converted to text only if needed."""
        if not self._chains.is_compacted(key) or any(log.config.delete for log in members.values()):
            self._deletes[key] = None
        if key in self._deletes:
            return
        start = min((log.log_start_offset for log in members.values()), default=0)
        for number, log in members.items():
            if log.log_start_offset > start and number not in excused:
                raise Violation(
                    HELD,
                    f"{name} on {number} begins at offset {log.log_start_offset} and another in-sync replica at "
                    f"{start}, but nothing was deleted",
                )
