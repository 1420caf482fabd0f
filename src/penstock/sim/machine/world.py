"""A world on a seed: machines with disks, clocks and processes, a network between them, one loop, one trace.

The same seed and the same program give the same trace, byte for byte. Every source of chance is a stream of its own,
named and derived from the seed, so that drawing more from one does not change the others. The garbage collector rests
while a world runs: finalizers at moments of its choosing would be another source of chance.

Two ways to die: `kill` is the end of a process (page cache stays, sockets close at once), `crash` the end of a machine
(what was not synced is lost or torn, peers hear nothing). Must not know: what the programs on its machines do.
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
    """The process ended before what was awaited of it."""


class SimPorts:
    """What a program on a machine is given: the ports of one process."""

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
        # The lane of the metadata quorum, which waits for nothing else.
        lane, times = world.random(f"quorum lane of {name}"), machine.disk_times
        self.quorum_workers = SimWorkers(self.loop, lane, times, threads=1)
        self.quorum_flusher = SimFlusher(self.loop, self.disk, lane, times, threads=1)
        self.disk_workers = SimWorkers(self.loop, world.random(f"disk lane of {name}"), times, threads=1)


class SimMachine:
    """A host with a disk and a clock that outlive its processes. It runs one program at a time."""

    def __init__(self, world: SimWorld, name: str, disk_times: DiskTimes) -> None:
        self.world = world
        self.name = name
        self.disk_times = replace(disk_times)  # its own: a disk may become slow
        random = world.random(f"clock of {name}")
        skew_ms, drift_ppm = random.uniform(-MAX_SKEW_MS, MAX_SKEW_MS), random.uniform(-MAX_DRIFT_PPM, MAX_DRIFT_PPM)
        self.clock = SimClock(world.loop.time, world.loop.world_time, skew_ms=skew_ms, drift_ppm=drift_ppm)
        self.disk = SimDisk(world.random(f"disk of {name}"))
        self.disk.on_crash = self._stopped_by_disk
        self.process: SimProcess | None = None
        self.on_end: Callable[[str], None] = lambda how: None
        """Told how the process ends, right before it does. Must change nothing."""
        self.on_wake: Callable[[], None] = lambda: None
        """Told that a process which was paused or suspended is about to go on. Must change nothing."""
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
        """How many processes it has run."""
        return self._incarnations

    def start(self, program: Callable[[SimPorts], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Run a program in a new process; its result, or ProcessDied if that ends first."""
        if self.process is not None:
            raise SimError(f"{self.name} is running already")
        self._lose_power()
        self._close_killed()
        if not self.world.network.is_up(self.name):
            self.world.network.boot(self.name)
        self._incarnations += 1
        self.process = SimProcess(self.name, self._incarnations)
        self.world.trace.note(self.process.name, "starts")
        return self.run(program(SimPorts(self, self.process)))

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Something more in the running process."""
        process = self.process
        if process is None:
            work.close()
            raise SimError(f"nothing runs on {self.name}")
        outcome = self.world.run_in(process, work)
        self._outcomes[outcome] = None
        outcome.add_done_callback(self._outcomes.pop, context=self.world.context)
        return outcome

    def exited(self) -> None:
        """The program has ended by itself, as after a clean stop."""
        self._close_for(self._end("exits"))

    def kill(self) -> None:
        """kill -9: the page cache stays, the kernel closes what was open."""
        self._close_for(self._end("killed"))

    def crash(self) -> None:
        """Power failure."""
        self._end("crashes")
        self._has_lost_power = True
        self._lose_power()

    def pause(self) -> None:
        """SIGSTOP, or a machine that swaps: the process does nothing, its kernel still takes what arrives."""
        if self.process is None:
            raise SimError(f"nothing runs on {self.name}")
        self.world.trace.note(self.process.name, "paused")
        self.world.loop.pause(self.process)

    def suspend(self) -> None:
        """As a virtual machine is: it hears nothing, its monotonic clock stands still, and the world goes on."""
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
        """Power failure at the disk's k-th change from now, right before it or right after; or kill -9 there."""
        self.disk.crash_after = self.disk.changes + changes
        self._keeps_power = keeps_power

    def _stopped_by_disk(self) -> None:
        """The disk is about to raise SimCrash: from here on the process does nothing any more."""
        if self.process is not None:
            # Not now: whoever changes the disk is still on the stack. But before anybody hears of it.
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
                outcome.exception()  # nobody has to look
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
        # Abstract to a type checker: what it lacks raises NotImplementedError, as it should.
        self.loop = SimLoop(max_steps=max_steps)  # type: ignore[abstract]
        self.trace = Trace(seed, self.loop.world_time)
        self.network = self.loop.network = SimNetwork(self.loop, self.random("network"), self.trace, profile)
        self.machines: dict[str, SimMachine] = {}
        self._guests: dict[str, SimProcess] = {}

    def random(self, name: str) -> Random:
        """A stream of chance of its own: the same for the same seed and name."""
        return Random(f"{self.seed}/{name}")

    def machine(self, name: str, disk_times: DiskTimes | None = None) -> SimMachine:
        if name not in self.machines:
            self.machines[name] = SimMachine(self, name, disk_times or self._disk_times)
        return self.machines[name]

    # -- running ------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T], timeout_s: float = DEFAULT_TIMEOUT_S) -> T:
        """Run the driver of a history to its end. Raises what it raises, and `sim.machine.loop`'s errors."""
        had_gc = gc.isenabled()
        gc.disable()
        try:
            return self.loop.run_until_complete(self.spawn(DRIVER, main), timeout_s=timeout_s)
        finally:
            if had_gc:
                gc.enable()

    def spawn(self, host: str, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """A client on a machine without a disk. The name may be partitioned like any other."""
        process = self._guests.get(host)
        if process is None:
            self.network.boot(host)
            process = self._guests[host] = SimProcess(host)
        return self.run_in(process, work)

    def run_in(self, process: SimProcess, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """The outcome is the world's: it can be awaited from any process."""
        task = self.loop.create_task(work, context=process.context.run(copy_context))
        outcome: asyncio.Future[T] = self.context.run(self.loop.create_future)
        task.add_done_callback(lambda done: _hand_on(done, outcome), context=self.context)
        return outcome

    # -- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Everything still running ends where it stands."""
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
