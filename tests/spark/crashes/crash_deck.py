"""Which crashes a crash test of the sink makes, and the table of those that it has made.

A crash is one SIGKILL, or several at the same moment where processes die together. Its moment is a step of the protocol
(`penstock.spark.sink.steps`), or a random one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from penstock.spark.sink.steps import Step

OF_TASKS = (Step.TASK_BEGUN, Step.TASK_WRITING, Step.TASK_FLUSHED)
OF_ABORT = (Step.ABORT_CALLED, Step.ABORTED)
OF_COMMIT = tuple(step for step in Step if step not in (*OF_TASKS, *OF_ABORT))
AT_RANDOM = "at a random moment"


class Victim(StrEnum):
    PROCESS = "process"
    """The Python process that is at the step: of a task, a commit or an abort."""
    DRIVER_TOO = "and driver"
    """That process, and the driver with its JVM at the same moment."""
    DRIVER = "driver"
    """The driver and its JVM. The process at the step goes on as an orphan."""
    EXECUTOR = "executor"
    """The process at the step, and one of two executors."""
    BROKER = "broker"
    """The process at the step goes on."""
    ONE_OF_TWO = "one of two drivers"
    """Two drivers run on one checkpoint."""


class Crash(NamedTuple):
    step: Step | None
    """None: at a random moment of a batch."""
    victim: Victim


Moments = list[tuple[Step | None, Victim]]


class Round(NamedTuple):
    is_cluster: bool
    """On a master and two workers, with speculation; otherwise all in one JVM."""
    crashes: list[Crash]


def rounds(chance: random.Random) -> Iterator[Round]:
    """Without end. The first round has every step."""
    while True:
        yield Round(False, _shuffled(chance, _steps(Victim.PROCESS), _at_random(1, 1, 1)))
        yield Round(False, [Crash(None, Victim.ONE_OF_TWO)])
        alone = [_steps(victim) for victim in (Victim.DRIVER_TOO, Victim.DRIVER, Victim.BROKER)]
        yield Round(False, _shuffled(chance, *alone, _at_random(3, 1, 1), [(None, Victim.ONE_OF_TWO)] * 3))
        executors: Moments = [(step, Victim.EXECUTOR) for step in (*OF_TASKS, *OF_TASKS, *[None] * 6)]
        yield Round(True, _shuffled(chance, _steps(Victim.PROCESS), executors, _at_random(3, 1, 2)))


def rounds_without_steps(chance: random.Random) -> Iterator[Round]:
    while True:
        yield Round(False, _shuffled(chance, _at_random(3, 3, 1)))


def _steps(victim: Victim) -> Moments:
    return [(step, victim) for step in Step]


def _at_random(processes: int, drivers: int, brokers: int) -> Moments:
    counts = {Victim.PROCESS: processes, Victim.DRIVER: drivers, Victim.BROKER: brokers}
    return [(None, victim) for victim, count in counts.items() for _ in range(count)]


def _shuffled(chance: random.Random, *parts: Moments) -> list[Crash]:
    crashes = [Crash(*one) for part in parts for one in part]
    chance.shuffle(crashes)
    return crashes


class Crashes:
    """Those that were made."""

    def __init__(self) -> None:
        self._counts: Counter[Crash] = Counter()

    def add(self, crash: Crash) -> None:
        self._counts[crash] += 1

    @property
    def total(self) -> int:
        return self._counts.total()

    def steps(self) -> set[Step]:
        return {crash.step for crash in self._counts if crash.step is not None}

    def table(self) -> str:
        victims = [victim for victim in Victim if any(crash.victim is victim for crash in self._counts)]
        width = max(len(AT_RANDOM), *map(len, Step))
        lines = [" " * width + "".join(f"  {victim}" for victim in victims) + "  sum"]
        for step in (*Step, None):
            counts = [self._counts[Crash(step, victim)] for victim in victims]
            cells = "".join(f"  {count or '-':>{len(victim)}}" for victim, count in zip(victims, counts, strict=True))
            lines.append(f"{step or AT_RANDOM:<{width}}{cells}  {sum(counts):>3}")
        sums = [sum(count for crash, count in self._counts.items() if crash.victim is one) for one in victims]
        cells = "".join(f"  {count:>{len(victim)}}" for victim, count in zip(victims, sums, strict=True))
        return "\n".join([*lines, f"{'sum':<{width}}{cells}  {self.total:>3}"])
