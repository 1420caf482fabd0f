"""A world on a seed: machines with disks, clocks and processes, a network between them, one loop, one trace.

The same seed and the same program give the same trace, byte for byte. Every source of randomness is its own stream,
derived from the seed and a name, so that drawing more from one does not change the others. The garbage collector is off
while a world runs, because finalizers at unpredictable moments would be another source of randomness.
There are two ways to die: `kill` ends a process (the page cache stays, sockets close at once), `crash` ends a machine
(unsynced data is lost or torn, peers hear nothing). Must not know: what the programs on its machines do.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from penstock.sim.machine.clock import SimClock, SimEntropy
from penstock.sim.machine.disk import SimDisk
from penstock.sim.machine.loop import DEFAULT_MAX_STEPS, SimError, SimLoop
from penstock.sim.machine.network import LAN, LinkProfile, SimNetwork
from penstock.sim.machine.process import SimProcess
from penstock.sim.machine.threads import DiskTimes, SimFlusher, SimWorkers
from penstock.sim.machine.trace import Trace

T = TypeVar("T")

MAX_SKEW_MS = 500
MAX_DRIFT_PPM = 200
DEFAULT_TIMEOUT_S = 24 * 3600.0
DRIVER = "driver"


class ProcessDied(SimError):
    """The process ended before the awaited event."""


class SimPorts:
    """The ports of one process, for a program on a machine."""

    def __init__(self, machine: SimMachine, process: SimProcess) -> None:
        world, name = machine.world, process.name
        self.loop = world.loop
        self.network = world.network
        self.trace = world.trace
        self.process = process
        self.disk = machine.disk
        self.clock = machine.clock
        self.entropy = SimEntropy(world.random(f"entropy of {name}"))
        self.workers = SimWorkers(self.loop, world.random(f"workers of {name}"), machine.disk_times)
        self.flusher = SimFlusher(self.loop, self.disk, world.random(f"flusher of {name}"), machine.disk_times)
        # The lane of the metadata quorum, which waits for no other work.
        lane, times = world.random(f"quorum lane of {name}"), machine.disk_times
        self.quorum_workers = SimWorkers(self.loop, lane, times, threads=1)
        self.quorum_flusher = SimFlusher(self.loop, self.disk, lane, times, threads=1)
        self.disk_workers = SimWorkers(self.loop, world.random(f"disk lane of {name}"), times, threads=1)


class SimMachine:
    """A host with a disk and a clock that outlive its processes. It runs one program at a time."""

    def __init__(self, world: SimWorld, name: str, disk_times: DiskTimes) -> None:
        self.world = world
        self.name = name
        self.disk_times = replace(disk_times)  # a copy, because a disk may become slow
        random = world.random(f"clock of {name}")
        skew_ms, drift_ppm = random.uniform(-MAX_SKEW_MS, MAX_SKEW_MS), random.uniform(-MAX_DRIFT_PPM, MAX_DRIFT_PPM)
        self.clock = SimClock(world.loop.time, world.loop.world_time, skew_ms=skew_ms, drift_ppm=drift_ppm)
        self.disk = SimDisk(world.random(f"disk of {name}"))
        self.disk.on_crash = self._stopped_by_disk
        self.process: SimProcess | None = None
        self.on_end: Callable[[str], None] = lambda how: None
        """Called with the way the process ends, just before. Must change nothing."""
        self.on_wake: Callable[[], None] = lambda: None
        """Called when a paused or suspended process is about to continue. Must change nothing."""
        self._has_lost_power = self._keeps_power = False
        self._killed: SimProcess | None = None
        self._incarnations = 0
        self._outcomes: dict[asyncio.Future[Any], None] = {}
        world.network.boot(name)

    @property
    def is_running(self) -> bool:
        return self.process is not None

    @property
    def incarnations(self) -> int:
        """Number of processes it has run."""
        return self._incarnations

    def start(self, program: Callable[[SimPorts], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Run a program in a new process; returns its result, or ProcessDied if it ends first."""
        if self.process is not None:
            raise SimError(f"{self.name} is already running")
        self._lose_power()
        self._close_killed()
        if not self.world.network.is_up(self.name):
            self.world.network.boot(self.name)
        self._incarnations += 1
        self.process = SimProcess(self.name, self._incarnations)
        self.world.trace.note(self.process.name, "starts")
        return self.run(program(SimPorts(self, self.process)))

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run more work in the running process."""
        process = self.process
        if process is None:
            work.close()
            raise SimError(f"nothing runs on {self.name}")
        outcome = self.world.run_in(process, work)
        self._outcomes[outcome] = None
        outcome.add_done_callback(self._outcomes.pop, context=self.world.context)
        return outcome

    def exited(self) -> None:
        """The program ended by itself, as after a clean stop."""
        self._close_for(self._end("exits"))

    def kill(self) -> None:
        """kill -9: the page cache stays, the kernel closes open files and sockets."""
        self._close_for(self._end("killed"))

    def crash(self) -> None:
        """Power failure."""
        self._end("crashes")
        self._has_lost_power = True
        self._lose_power()

    def pause(self) -> None:
        """SIGSTOP, or heavy swapping: the process does nothing, its kernel still accepts bytes."""
        if self.process is None:
            raise SimError(f"nothing runs on {self.name}")
        self.world.trace.note(self.process.name, "paused")
        self.world.loop.pause(self.process)

    def suspend(self) -> None:
        """Like a suspended virtual machine: it hears nothing, its monotonic clock stops, and the world continues."""
        if self.process is None:
            raise SimError(f"nothing runs on {self.name}")
        self.world.trace.note(self.process.name, "suspended")
        self.world.loop.suspend(self.process)
        self.world.network.fall_asleep(self.name)

    def resume(self) -> None:
        if self.process is not None:
            if self.process.held is not None:
                self.on_wake()
            self.world.trace.note(self.process.name, "resumed")
            if self.process.suspended_ns is not None:
                self.world.network.wake(self.name)
            self.world.loop.resume(self.process)

    def crash_after(self, changes: int, *, keeps_power: bool = False) -> None:
        """Power failure at the disk's k-th change from now, just before or after it; or kill -9 there."""
        self.disk.crash_after = self.disk.changes + changes
        self._keeps_power = keeps_power

    def _stopped_by_disk(self) -> None:
        """The disk is about to raise SimCrash: from here on the process does nothing."""
        if self.process is not None:
            # Not now, because the caller that changes the disk is on the stack; but before other code runs.
            if self._keeps_power:
                self._killed = self._end("killed at a change of its disk")
                self.world.loop.call_soon(self._close_killed, context=self.world.context)
                return
            self._has_lost_power = True
            self.world.loop.call_soon(self._lose_power, context=self.world.context)
            self._end("crashes at a change of its disk")

    def _close_killed(self) -> None:
        process, self._killed = self._killed, None
        if process is not None:
            self.disk.crash_after = None
            self._close_for(process)

    def _lose_power(self) -> None:
        if not self._has_lost_power:
            return
        self._has_lost_power = False
        self.disk.crash_after = None
        self.world.network.machine_died(self.name)
        self.disk.crash()

    def _close_for(self, process: SimProcess) -> None:
        self.disk.kill()
        self.world.network.process_died(process)

    def _end(self, how: str) -> SimProcess:
        process = self.process
        if process is None:
            raise SimError(f"nothing runs on {self.name}")
        self.on_end(how)
        self.process = None
        process.is_alive = False
        self.world.trace.note(process.name, how)
        for outcome in list(self._outcomes):
            if not outcome.done():
                outcome.set_exception(ProcessDied(process.name))
                outcome.exception()  # marks the exception as retrieved
        return process


class SimWorld:
    def __init__(
        self,
        seed: int,
        *,
        profile: LinkProfile = LAN,
        disk_times: DiskTimes | None = None,
        max_steps: int = DEFAULT_MAX_STEPS,
    ) -> None:
        self.seed = seed
        self._disk_times = disk_times or DiskTimes()
        self.context = copy_context()
        # Abstract for a type checker: missing methods raise NotImplementedError, as intended.
        self.loop = SimLoop(max_steps=max_steps)  # type: ignore[abstract]
        self.trace = Trace(seed, self.loop.world_time)
        self.network = self.loop.network = SimNetwork(self.loop, self.random("network"), self.trace, profile)
        self.machines: dict[str, SimMachine] = {}
        self._guests: dict[str, SimProcess] = {}

    def random(self, name: str) -> Random:
        """A random stream: the same for the same seed and name."""
        return Random(f"{self.seed}/{name}")

    def machine(self, name: str, disk_times: DiskTimes | None = None) -> SimMachine:
        if name not in self.machines:
            self.machines[name] = SimMachine(self, name, disk_times or self._disk_times)
        return self.machines[name]

    # -- running ------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T], timeout_s: float = DEFAULT_TIMEOUT_S) -> T:
        """Run the driver of a history to its end. Raises its errors, and those of `sim.machine.loop`."""
        had_gc = gc.isenabled()
        gc.disable()
        try:
            return self.loop.run_until_complete(self.spawn(DRIVER, main), timeout_s=timeout_s)
        finally:
            if had_gc:
                gc.enable()

    def spawn(self, host: str, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """A client on a machine without a disk. The name can be partitioned like any other."""
        process = self._guests.get(host)
        if process is None:
            self.network.boot(host)
            process = self._guests[host] = SimProcess(host)
        return self.run_in(process, work)

    def run_in(self, process: SimProcess, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """The outcome belongs to the world: any process can await it."""
        task = self.loop.create_task(work, context=process.context.run(copy_context))
        outcome: asyncio.Future[T] = self.context.run(self.loop.create_future)
        task.add_done_callback(lambda done: _hand_on(done, outcome), context=self.context)
        return outcome

    # -- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Everything still running ends where it is."""
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.is_alive = False
        self.loop.close()

    def __enter__(self) -> SimWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"seed {self.seed}, {self.loop.time():.6f} virtual seconds; the last events:")
            error.add_note("\n".join(self.trace.tail(20)))
        self.close()


def _hand_on(done: asyncio.Task[T], outcome: asyncio.Future[T]) -> None:
    if outcome.done():
        if not done.cancelled():
            done.exception()
    elif done.cancelled():
        outcome.cancel()
    elif (error := done.exception()) is not None:
        outcome.set_exception(error if isinstance(error, Exception) else ProcessDied(repr(error)))
    else:
        outcome.set_result(done.result())
