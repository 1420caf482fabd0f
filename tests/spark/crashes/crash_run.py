"""A copy from topic to topic that is crashed again and again, and the verdict on what came of it.

Between a crash and the repetition of its batch, the number of tasks changes, and from time to time that of the target's
partitions. Spark's checkpoint tells how far the query is: nothing here asks the query itself.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import copied_rows
from copied_rows import Verdict
from copy_query import LOST, CopyDriver, Plan, Setup, processes_with
from crash_brokers import CrashBrokers, kill
from crash_deck import OF_ABORT, OF_COMMIT, Crash, Crashes, Round, Victim
from held_query import finished, planned
from standalone_cluster import StandaloneCluster

from penstock.spark.sink.steps import REACHED, SELF, Step
from support.processes.tree import command_line, parent

SOURCE, TARGET = "numbers", "copies"
SOURCE_PARTITIONS = 4
FIRST_PARTITIONS, MOST_PARTITIONS = 2, 12
CRASHES_PER_PARTITION = 4
BATCHES_PER_CRASH = 8
"""For which there are rows. More than one batch passes while a driver or a broker starts."""
WAIT_S = 180.0
TICK_S = 0.05
LOCAL = "local[2,4]"
ON_A_CLUSTER = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


class CrashRun:
    def __init__(self, directory: Path, brokers: CrashBrokers, *, rows: int, crashes: int, delivery: str, seed: int):
        self._directory = directory
        self._brokers = brokers
        self._rows = rows
        self._wanted = crashes
        self._chance = random.Random(seed)
        self._arms = directory / "arms"
        self._arms.mkdir()
        self._setup = Setup(LOCAL, brokers.bootstrap_servers, SOURCE, TARGET, delivery)
        self._straggles = 1.0 if delivery == "at-least-once" else 0.0
        self._driver: CopyDriver | None = None
        self._drivers: list[CopyDriver] = []
        self._partitions = FIRST_PARTITIONS
        self.crashes = Crashes()

    def run(self, rounds: Iterator[Round]) -> Verdict:
        self._brokers.create_topic(SOURCE, SOURCE_PARTITIONS)
        self._brokers.create_topic(TARGET, self._partitions)
        copied_rows.fill(self._setup.servers, SOURCE, self._rows)
        try:
            while self.crashes.total < self._wanted:
                self._round(next(rounds))
            self._finish()
        finally:
            self._end_all()
        self._brokers.check()
        return copied_rows.judge(self._setup.servers, TARGET, self._rows)

    def failures(self) -> Counter[str]:
        """Why runs of the query have failed."""
        return Counter(event.reason for one in self._drivers for event in one.events() if event.kind == "failed")

    @property
    def driver_count(self) -> int:
        return len(self._drivers)

    @property
    def partitions(self) -> int:
        return self._partitions

    @property
    def batches(self) -> int:
        return finished(self._directory) + 1

    # -- rounds ---------------------------------------------------------------------------

    def _round(self, round_: Round) -> None:
        with self._master(round_.is_cluster):
            for crash in round_.crashes:
                if self.crashes.total < self._wanted:
                    self._crash(crash)
                    step = crash.step or "a random moment"
                    print(
                        f"{self.crashes.total} of {self._wanted} crashes, {self.batches} batches done: "
                        f"{crash.victim} at {step}",
                        flush=True,
                    )
            self._stop_driver()

    @contextmanager
    def _master(self, is_cluster: bool) -> Iterator[None]:
        if not is_cluster:
            self._setup.write(self._directory)
            yield
            return
        place = self._directory / f"spark-{len(self._drivers)}"
        place.mkdir()
        with StandaloneCluster(place, workers=2) as cluster:
            config = {**ON_A_CLUSTER, "spark.executorEnv.PENSTOCK_SINK_CRASHES": str(self._arms)}
            replace(self._setup, master=cluster.master, config=config).write(self._directory)
            yield

    def _finish(self) -> None:
        """Copies the rest, undisturbed."""
        self._setup.write(self._directory)
        before = finished(self._directory)
        Plan(rows_per_batch=self._rows, min_partitions=3, until_done=True).write(self._directory)
        driver = self._start_driver()
        self._wait(lambda: driver.exit_code is not None, "the last run ends", tends=False)
        assert driver.exit_code == 0, self._tail()
        assert finished(self._directory) > before, "all rows were copied before the last crash: use more rows"

    # -- one crash ------------------------------------------------------------------------

    def _crash(self, crash: Crash) -> None:
        self._new_plan()
        if self._driver is None:
            self._start_driver()
        if crash.victim is Victim.ONE_OF_TWO:
            self._crash_one_of_two()
        elif crash.step is None:
            self._crash_at_random(crash.victim)
        elif crash.step in OF_ABORT:
            # Spark aborts after a commit has failed.
            self._arm(crash)
            self._arm(Crash(self._chance.choice(OF_COMMIT), Victim.PROCESS))
            self._await_reached(crash)
        else:
            self._arm(crash)
            self._await_reached(crash)
        self.crashes.add(crash)
        if self._brokers.serve_without_one or crash.victim is not Victim.BROKER:
            self._grow()
            if crash.victim is Victim.BROKER:
                self._brokers.mend((SOURCE, TARGET))
        else:
            self._brokers.mend((SOURCE, TARGET))
            self._grow()
        if crash.victim is Victim.BROKER or self._chance.random() < 0.6:
            # Otherwise the next crash may hit the repetition of the batch.
            before = finished(self._directory)
            self._wait(lambda: finished(self._directory) > before, f"a batch is done after {crash}")

    def _new_plan(self) -> None:
        usual = max(1, self._rows // (self._wanted * BATCHES_PER_CRASH))
        Plan(
            rows_per_batch=self._chance.randint(max(1, usual // 2), usual),
            min_partitions=self._chance.randint(1, 5),
            repartition=self._chance.choice((0, 0, 2, 3, 5)),
            straggle_s=self._straggles or self._chance.choice((0.0, 0.0, 0.0, 0.5)),
        ).write(self._directory)

    def _arm(self, crash: Crash) -> None:
        assert crash.step is not None
        victims = [SELF]
        if crash.victim is Victim.BROKER:
            victims = [str(self._brokers.choose(self._chance))]
        elif crash.victim in (Victim.DRIVER, Victim.DRIVER_TOO):
            driver = self._running_driver()
            victims = [*map(str, driver.pids), *([SELF] if crash.victim is Victim.DRIVER_TOO else [])]
        elif crash.victim is Victim.EXECUTOR:
            victims = [str(self._executor()), SELF]
        new = self._arms / "new"
        new.write_text(" ".join(victims))
        new.rename(self._arms / crash.step)

    def _await_reached(self, crash: Crash) -> None:
        assert crash.step is not None
        reached = self._arms / f"{crash.step}{REACHED}"
        # A process id in an armed file must not outlive its process.
        dies = crash.victim in (Victim.DRIVER, Victim.DRIVER_TOO)
        while not self._wait(reached.exists, f"{crash} is reached", until_driver_ends=dies):
            (self._arms / crash.step).unlink(missing_ok=True)
            if not reached.exists():
                self._start_driver()
                self._arm(crash)
        reached.unlink()
        self._note_others()

    def _note_others(self) -> None:
        """Steps that were reached on the way: those that made Spark abort."""
        for reached in self._arms.glob(f"*{REACHED}"):
            self.crashes.add(Crash(Step(reached.name.removesuffix(REACHED)), Victim.PROCESS))
            reached.unlink()

    def _crash_at_random(self, victim: Victim) -> None:
        self._await_mid_batch()
        if victim is Victim.DRIVER:
            self._stop_driver()
        elif victim is Victim.BROKER:
            kill(self._brokers.choose(self._chance))
        elif victim is Victim.EXECUTOR:
            kill(self._executor())
        else:
            while True:
                self._wait(lambda: bool(self._workers()), "there is a Python worker")
                with suppress(IndexError, ProcessLookupError):
                    kill(self._chance.choice(self._workers()))
                    return

    def _await_mid_batch(self) -> None:
        def is_mid_batch() -> bool:
            with suppress(ValueError, FileNotFoundError):  # no batch is planned yet
                return planned(self._directory) > finished(self._directory)
            return False

        self._wait(is_mid_batch, "a batch has begun")
        time.sleep(self._chance.random() * max(0.5, self._straggles))

    def _crash_one_of_two(self) -> None:
        """One of them may sleep while the other takes over."""
        old = self._running_driver()
        self._wait(old.has_started, "the first driver runs")
        sleeping = old.tree() if self._chance.random() < 0.5 else []
        _signal(sleeping, signal.SIGSTOP)
        new = self._start_driver()
        try:
            self._wait(new.has_started, "the second driver runs", tends=False)
            time.sleep(self._chance.random() * 2)
        finally:
            _signal(sleeping, signal.SIGCONT)
        time.sleep(self._chance.random() * 3)
        self._driver, killed = (old, new) if self._chance.random() < 0.5 else (new, old)
        killed.kill()

    # -- processes ------------------------------------------------------------------------

    def _start_driver(self) -> CopyDriver:
        self._driver = CopyDriver(self._directory, f"driver-{len(self._drivers)}", self._arms)
        self._drivers.append(self._driver)
        return self._driver

    def _running_driver(self) -> CopyDriver:
        """With its JVM."""
        self._wait(lambda: self._driver is not None and len(self._driver.pids) > 1, "a driver has a JVM")
        assert self._driver is not None
        return self._driver

    def _stop_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

    def _executors(self) -> list[int]:
        return list(processes_with(self._arms, "CoarseGrainedExecutorBackend"))

    def _executor(self) -> int:
        self._wait(lambda: bool(self._executors()), "there is an executor")
        return self._chance.choice(self._executors())

    def _workers(self) -> list[int]:
        """Forks of a daemon: tasks, the source's planner, a commit."""
        found = processes_with(self._arms, "pyspark.daemon")
        return [pid for pid in found if "pyspark.daemon" in command_line(parent(pid))]

    def _end_all(self) -> None:
        """Also orphans, which end by themselves but for broken ones."""
        for driver in self._drivers:
            driver.kill()
        for _ in range(50):
            if not any(processes_with(self._arms)):
                return
            time.sleep(0.1)
        _signal(list(processes_with(self._arms)), signal.SIGKILL)

    # -- waiting --------------------------------------------------------------------------

    def _wait(
        self, holds: Callable[[], bool], what: str, *, tends: bool = True, until_driver_ends: bool = False
    ) -> bool:
        """Whether it holds. Without it only where the driver may end before."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}\n{self._tail()}"
            if tends and (self._driver is None or not self._driver.is_running):
                if self._driver is not None:
                    lost = [event for event in self._driver.events() if event.reason == LOST]
                    assert not lost, self._tail()
                if until_driver_ends:
                    return holds()
                self._start_driver()
            time.sleep(TICK_S)
        return True

    def _grow(self) -> None:
        if self.crashes.total % CRASHES_PER_PARTITION == 0 and self._partitions < MOST_PARTITIONS:
            self._partitions += 1
            self._brokers.add_partitions(TARGET, self._partitions)

    def _tail(self) -> str:
        logs = "\n".join(one.log_path.read_text(errors="replace")[-6000:] for one in self._drivers[-2:])
        return f"{logs}\n{self.crashes.table()}\n{self.failures()}"


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
