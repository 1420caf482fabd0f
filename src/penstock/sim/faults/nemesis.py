"""The enemy: faults drawn from the seed, each fair (see `docs/simulation.md`), each limited in time.

A plan is a list of faults. Each has its own random stream, so a fault can be removed from a plan without changing the
others. Targets are chosen when a fault begins; machines that are already down are left alone.
Faults must not lose what was promised:

- power fails only if every topic is durable; otherwise processes die and the page cache stays, or the power of one
  machine fails while everything else is well, and the others are left alone until it has caught up;
- bits rot on one machine only, in stable batches, while everything else is well, and the machine is restarted so that
  it notices; the others are left alone until it has caught up.

Must not know: clients, checkers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from random import Random

from penstock.sim.cluster import SimCluster, host_of
from penstock.sim.faults.ambush import Ambushes
from penstock.sim.faults.campaigns import Campaigns
from penstock.sim.faults.disks import DiskFaults
from penstock.sim.faults.enemy import Eyes, Operators
from penstock.sim.faults.links import LinkFaults
from penstock.sim.faults.passing import PassingFaults
from penstock.sim.faults.plan import LEAP, LISTENING, LOST_DISK, Fault
from penstock.sim.faults.staged import StagedFaults
from penstock.sim.faults.steered import SteeredFaults

CLOCK_JUMPS_MS = (500, 5_000, 100_000, 12 * 3_600_000, 5 * 86_400_000)
"""Limit in either direction: less than the retention of records and committed offsets (a week)."""
LEAPS_MS = (2 * 3_600_000, 40 * 3_600_000)
"""Longer than the retention of one topic, and shorter than any other retention."""
ARMED_S = 3.0
QUIET_WITHIN_S = 3.0
WELL_WITHIN_S = 20.0
LONGEST_COPYING_S = 60.0
LOOK_AGAIN_S = 0.1
CLOSELY_S = 0.0005
LEADER_CHANCE = 0.4
CONTROLLER_CHANCE = 0.2


class Nemesis:
    def __init__(
        self,
        cluster: SimCluster,
        seed: int,
        eyes: Eyes,
        operators: Operators,
        max_down: int,
        *,
        has_voter_changes: bool = False,
    ) -> None:
        """`eyes` see faults that excuse a broker. `max_down`: machines that may be down or paused at a time."""
        self.cluster = self._cluster = cluster
        self._world = cluster.world
        self._network = cluster.world.network
        self._seed = seed
        self.eyes = eyes
        self.operators = operators
        self._max_down = max_down
        self.has_voter_changes = has_voter_changes
        self._busy: dict[int, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.is_alone = False
        self.rotten: int | None = None
        self._has_lost = False
        self.counts: Counter[str] = Counter()
        self._ambushes = self.ambushes = Ambushes(self)
        self._disks = DiskFaults(self)
        self._passing = PassingFaults(self)
        self._deeds: dict[str, Callable[[Fault, Random], Awaitable[None]]] = {
            "kill": self._kill,
            "crash": self._crash,
            "lone crash": self._lone_crash,
            LOST_DISK: self._lose_disk,
            "blackout": self._blackout,
            "torn": self._torn,
            "stop": self._stop,
            "pause": self._pause,
            "suspend": self._suspend,
            "clock": self._clock,
            LEAP: self._leap,
            **LinkFaults(self).deeds,
            **Campaigns(self).deeds,
            **self._disks.deeds,
            **self._passing.deeds,
            **self._ambushes.deeds,
            **StagedFaults(self).deeds,
            **SteeredFaults(self).deeds,
        }

    async def run(self, plan: Sequence[Fault]) -> None:
        """Returns when the last fault has begun and all have ended."""
        listens = any(fault.kind in LISTENING for fault in plan)
        with self._ambushes.listening() if listens else nullcontext():
            await self._run(plan)

    async def _run(self, plan: Sequence[Fault]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for fault in plan:
            await asyncio.sleep(max(0.0, began + fault.at_s - loop.time()))
            if self.is_alone:
                continue
            self.begin(self._deeds[fault.kind](fault, Random(f"{self._seed}/fault {fault.number}")))
        while self._tasks:
            # yields to the loop even if all tasks are done and only callbacks are due
            await asyncio.gather(*self._tasks)
        self.heal()

    def begin(self, deed: Awaitable[None]) -> None:
        task = asyncio.ensure_future(deed)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def heal(self) -> None:
        self._network.heal()
        self._disks.heal()
        self._passing.heal()
        for number in self._cluster.ids:
            machine = self._cluster.machines[number]
            machine.resume()
            machine.clock.set_right()  # a broker whose clock is hours behind refuses records from the future

    def note(self, fault: Fault, what: str) -> None:
        """Count and trace a fault; called only if it hits a target, because the counts show what was tried."""
        self.counts[fault.kind] += 1
        self._world.trace.note("nemesis", f"{fault.number}: {what}")

    # -- machines and processes ---------------------------------------------------------

    def is_free(self, number: int) -> bool:
        return number not in self._busy and self._cluster.is_running(number)

    def take(self, number: int) -> None:
        self._busy[number] = None

    def give_back(self, number: int) -> None:
        self._busy.pop(number, None)

    def leader(self, random: Random) -> int | None:
        led = self.eyes.led()
        return random.choice(led)[0] if led else None

    def replicas(self, random: Random) -> list[int]:
        led = self.eyes.led()
        if not led:
            return []
        leader, replicas = random.choice(led)
        return [*(number for number in replicas if number != leader), leader]

    def controller(self) -> int | None:
        return self.eyes.controller()

    def held_up(self, number: int) -> Sequence[str]:
        return self.eyes.held_up(number)

    def is_well(self) -> bool:
        return self.eyes.is_well()

    def somebody(self, random: Random, is_one: Callable[[int], bool] | None = None) -> int | None:
        """A running machine, preferably an important one: leaders and the controller are hit more often."""
        is_one = is_one or self._cluster.is_running
        aim = random.random()
        number = (
            self.leader(random) if aim < LEADER_CHANCE else self.controller() if aim > 1 - CONTROLLER_CHANCE else None
        )
        if number is not None and is_one(number):
            return number
        numbers = [number for number in self._cluster.started if is_one(number)]
        return random.choice(numbers) if numbers else None

    def can_take(self, number: int) -> bool:
        return self.is_free(number) and len(self._busy) < self._max_down

    def target(self, random: Random) -> int | None:
        """A running machine that no other fault has taken."""
        return None if len(self._busy) >= self._max_down else self.somebody(random, self.is_free)

    async def down(self, fault: Fault, number: int) -> None:
        """The node is dead: wait, then start it."""
        await asyncio.sleep(fault.lasts_s)
        await self._cluster.bring_up(number)
        self.give_back(number)

    async def _kill(self, fault: Fault, random: Random) -> None:
        number = self.target(random)
        if number is not None:
            self.take(number)
            self.note(fault, f"kill {host_of(number)}")
            self._cluster.kill(number)
            await self.down(fault, number)

    async def _crash(self, fault: Fault, random: Random) -> None:
        number = self.target(random)
        if number is not None:
            self.take(number)
            self.note(fault, f"cut the power of {host_of(number)}")
            self._cluster.crash(number)
            await self.down(fault, number)

    async def _lone_crash(self, fault: Fault, random: Random) -> None:
        """Without forced flushes: the others have in their page caches what this machine loses."""
        await self.wait(self._is_quiet, QUIET_WITHIN_S)
        number = self.target(random)
        if number is None or not self._is_quiet() or not self._has_copies():
            return
        self.is_alone = True
        self.take(number)
        self.note(fault, f"cut the power of {host_of(number)}, which did not have to flush")
        self._cluster.crash(number)
        await self.down(fault, number)
        await self.wait(self.eyes.is_well, WELL_WITHIN_S)
        self.is_alone = not self.eyes.is_well()

    async def _lose_disk(self, fault: Fault, random: Random) -> None:
        """Once per history, while everything else is well: a node returns under its id with an empty disk."""
        if self._has_lost or not await self.wait_for_quiet() or not self._has_copies():
            return
        number = self.target(random)
        if number is None:
            return
        self.is_alone = self._has_lost = True
        self.take(number)
        self.note(fault, f"the disk of {host_of(number)} is lost, and replaced")
        self._cluster.crash(number)
        self._cluster.machines[number].disk.replace()
        self.eyes.lost_disk(number)
        async with self.operators.replacing(number):
            await self.down(fault, number)
            await self.wait(self.eyes.is_well, LONGEST_COPYING_S)
        self.is_alone = not self.eyes.is_well()

    def _has_copies(self) -> bool:
        return all(len(replicas) > 1 for _, replicas in self.eyes.led())

    async def _blackout(self, fault: Fault, random: Random) -> None:
        """The power of all machines fails at once; they come back one by one."""
        numbers = [number for number in self._cluster.started if self.is_free(number)]
        if not numbers:
            return
        self.note(fault, f"cut the power of {', '.join(map(host_of, numbers))}")
        for number in numbers:
            self.take(number)
            self._cluster.crash(number)
        random.shuffle(numbers)
        for number in numbers:
            await asyncio.sleep(random.random() * fault.lasts_s)
            self.begin(self.down(fault, number))

    async def _torn(self, fault: Fault, random: Random) -> None:
        """Power failure during a write, and perhaps again during recovery."""
        number = self.target(random)
        if number is None:
            return
        self.take(number)
        machine = self._cluster.machines[number]
        changes = random.randint(1, 60)
        self.note(fault, f"cut the power of {host_of(number)} after {changes} changes of its disk")
        machine.crash_after(changes)
        await self.wait(lambda: not machine.is_running, ARMED_S)
        machine.disk.crash_after = None
        if machine.is_running:
            self._cluster.crash(number)
        self._cluster.died(number)
        await asyncio.sleep(fault.lasts_s)
        if random.random() < 0.5:
            machine.crash_after(random.randint(1, 30))
            with_torn_recovery = asyncio.ensure_future(self._cluster.bring_up(number))
            await self.wait(with_torn_recovery.done, ARMED_S)
            machine.disk.crash_after = None
            await with_torn_recovery
        else:
            await self._cluster.bring_up(number)
        if not machine.is_running:  # the armed change came just after it began to serve
            self._cluster.died(number)
            await self._cluster.bring_up(number)
        self.give_back(number)

    async def _stop(self, fault: Fault, random: Random) -> None:
        number = self.target(random)
        if number is None or number not in self._cluster.nodes:
            return
        self.take(number)
        self.note(fault, f"stop {host_of(number)}")
        await self._cluster.stop(number)
        await self.down(fault, number)

    async def _pause(self, fault: Fault, random: Random) -> None:
        number = self.target(random)
        if number is None:
            return
        self.take(number)
        self.note(fault, f"pause {host_of(number)}")
        self._cluster.machines[number].pause()
        await asyncio.sleep(fault.lasts_s)
        self._cluster.machines[number].resume()
        self.give_back(number)

    async def _suspend(self, fault: Fault, random: Random) -> None:
        """A virtual machine is suspended without noticing; its wall clock may have to be set afterwards."""
        number = self.target(random)
        if number is None:
            return
        self.take(number)
        machine = self._cluster.machines[number]
        self.note(fault, f"suspend {host_of(number)}")
        machine.suspend()
        await asyncio.sleep(fault.lasts_s)
        if random.random() < 0.5:
            machine.clock.jump(-fault.lasts_s * 1000)
        machine.resume()
        self.give_back(number)

    async def _clock(self, fault: Fault, random: Random) -> None:
        number = random.choice(self._cluster.ids)
        by_ms = random.uniform(-1, 1) * random.choice(CLOCK_JUMPS_MS)
        self.note(fault, f"the clock of {host_of(number)} jumps by {by_ms:.0f} ms")
        clock = self._cluster.machines[number].clock
        clock.jump(by_ms)
        if random.random() < 0.5:
            await asyncio.sleep(fault.lasts_s)
            clock.set_right()

    async def _leap(self, fault: Fault, random: Random) -> None:
        """A machine's clock is set to another day and back, so data kept for an hour becomes old."""
        number = self.somebody(random)
        if number is None:
            return
        by_ms = random.choice((1, 1, 1, -1)) * random.uniform(*LEAPS_MS)
        self.note(fault, f"the clock of {host_of(number)} leaps by {by_ms / 3_600_000:.1f} hours")
        clock = self._cluster.machines[number].clock
        clock.set_right()  # two leaps together would exceed a week
        clock.jump(by_ms)
        await asyncio.sleep(max(fault.lasts_s, LOOK_AGAIN_S))
        clock.set_right()

    # -- disks --------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        """Nothing is wrong, and no other fault is active."""
        return not self._busy and len(self._tasks) == 1 and self.eyes.is_well()

    async def wait_for_quiet(self) -> bool:
        await self.wait(self._is_quiet, QUIET_WITHIN_S)
        return self._is_quiet()

    async def wait_until_well(self) -> None:
        await self.wait(self.eyes.is_well, WELL_WITHIN_S)

    async def wait(self, is_so: Callable[[], bool], at_most_s: float) -> None:
        await self._wait(is_so, at_most_s, LOOK_AGAIN_S)

    async def wait_closely(self, is_so: Callable[[], bool], at_most_s: float) -> None:
        await self._wait(is_so, at_most_s, CLOSELY_S)

    async def _wait(self, is_so: Callable[[], bool], at_most_s: float, look_again_s: float) -> None:
        deadline = self._world.loop.time() + at_most_s
        while True:
            if is_so() or self._world.loop.time() >= deadline:
                return
            await asyncio.sleep(look_again_s)
