"""Kills of whoever writes tables: when they come, and the table of those that were made."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

WAIT_S = 180.0
LOOK_S = 0.0005
MOST_DELAY_S = 0.02
"""After the first sign of a commit: its files are flushed, its entry is written."""


class Victim(StrEnum):
    FOLLOWER = "table follow"
    COMPACTION = "table compact"
    DRIVER = "serve and its Java"
    SERVE = "serve alone"
    JAVA = "Java alone"
    WORKER = "a Python worker"
    BROKER = "a broker"


class Kills:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._made: Counter[tuple[Victim, str]] = Counter()
        self.left_files = 0
        """Kills that left files which no version has: they came between the first file and the version."""

    @property
    def total(self) -> int:
        return self._made.total()

    def victims(self) -> set[Victim]:
        return {victim for victim, _ in self._made}

    def make(self, victim: Victim, pids: Sequence[int], moment: str) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._made[victim, moment] += 1

    def table(self) -> str:
        lines = [f"{victim:<20} {moment:<12} {count:>4}" for (victim, moment), count in sorted(self._made.items())]
        return "\n".join([*lines, f"{self.left_files} kills have left files that no version has"])

    def moment(self, tables: Sequence[Path]) -> tuple[str, set[Path]]:
        """Returns at the moment for a kill: in mid-commit, or at random. With the files that were seen to come."""
        if self._chance.random() < 0.3:
            time.sleep(self._chance.random())
            return "at random", set()
        before = data_files(tables)
        deadline = time.monotonic() + WAIT_S
        while not (new := data_files(tables) - before):
            assert time.monotonic() < deadline, f"nothing is committed to {tables}"
            time.sleep(LOOK_S)
        time.sleep(self._chance.random() * MOST_DELAY_S)
        return "in mid-commit", new

    def note_files(self, seen: set[Path]) -> None:
        """Call it after the kill, before anybody writes again."""
        self.left_files += any(path.exists() and not is_named(path) for path in seen)


def data_files(tables: Sequence[Path]) -> set[Path]:
    """Data files, except those of partitions."""
    found = set()
    for table in tables:
        with suppress(FileNotFoundError):
            found |= {table / name for name in os.listdir(table) if name.endswith(".parquet")}
    return found


def is_named(file: Path) -> bool:
    """By one of the newest entries of the log."""
    entries = sorted(file.parent.glob("_delta_log/*.json"))[-10:]
    return any(file.name in entry.read_text() for entry in entries)


def wait_for(holds: Callable[[], bool], what: str, said: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}\n{said()}"
        time.sleep(0.02)
