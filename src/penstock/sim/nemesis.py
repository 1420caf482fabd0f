"""The enemy: faults drawn from the seed, each fair (see `docs/simulation.md`), each over after a while.

A plan is a list of faults, every one with chance of its own, so that a fault can be left out of a plan and the others
stay what they were. What a fault meets is decided when its time comes: a machine that is down already is left alone.
Nothing here may lose what was promised:
- power fails only where every topic is durable; elsewhere processes die and the page cache stays;
- bits rot on one machine only, in batches that are stable, while everything else is well, and the machine is restarted
  so that it finds out; the others are left alone until it has caught up.
Must not know: clients, checkers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol

from penstock.records.batch import CRC_START, iterate_headers
from penstock.sim.broker import DATA
from penstock.sim.campaigns import Campaigns
from penstock.sim.cluster import SimCluster, host_of
from penstock.sim.disk import SimDisk
from penstock.sim.fault_plan import Fault
from penstock.sim.network import LAN, LinkProfile

SLOW = LinkProfile(0.02, 0.08, 0.02, 0.5, 2e6, 0.3, (4 << 10, 16 << 10))
ARMED_S = 3.0
WELL_WITHIN_S = 20.0
EPOCH_CHANCE = 0.2
EPOCH_START = 12  # of the partition leader epoch in a batch
LOOK_AGAIN_S = 0.1
LEADER_CHANCE = 0.4
CONTROLLER_CHANCE = 0.2


class Eyes(Protocol):
    """Who is who in the cluster, and how it is."""

    def is_well(self) -> bool:
        """Every replica has what it should."""
        ...

    def led(self) -> list[tuple[int, tuple[int, ...]]]:
        """Leader and replicas of each partition that is led."""
        ...

    def controller(self) -> int | None: ...


class Nemesis:
    def __init__(self, cluster: SimCluster, seed: int, eyes: Eyes, max_down: int) -> None:
        """`max_down`: machines that are down or paused at a time, by faults that take one."""
        self.cluster = self._cluster = cluster
        self._world = cluster.world
        self._network = cluster.world.network
        self._seed = seed
        self._eyes = eyes
        self._max_down = max_down
        self._busy: dict[int, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_alone = False
        self._rotten: int | None = None
        self.on_rot: Callable[[int], None] = lambda _: None
        """Told which machine bits rot on, before they do."""
        self.counts: Counter[str] = Counter()
        self._deeds: dict[str, Callable[[Fault, Random], Awaitable[None]]] = {
            "kill": self._kill,
            "crash": self._crash,
            "blackout": self._blackout,
            "torn": self._torn,
            "stop": self._stop,
            "pause": self._pause,
            "cut": self._cut,
            "cut one way": self._cut,
            "isolate": self._isolate,
            "flap": self._flap,
            "slow link": self._slow_link,
            "reset": self._break,
            "hang": self._break,
            "slow disk": self._slow_disk,
            "failing disk": self._failing_disk,
            "full disk": self._full_disk,
            "bit rot": self._bit_rot,
            "clock": self._clock,
            **Campaigns(self).deeds,
        }

    async def run(self, plan: Sequence[Fault]) -> None:
        """Returns when the last fault has begun and all are over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for fault in plan:
            await asyncio.sleep(max(0.0, began + fault.at_s - loop.time()))
            if self._is_alone:
                continue
            self.begin(self._deeds[fault.kind](fault, Random(f"{self._seed}/fault {fault.number}")))
        while self._tasks:
            await asyncio.gather(*self._tasks)  # gives way even if all are done and only their callbacks are due
        self.heal()

    def begin(self, deed: Awaitable[None]) -> None:
        task = asyncio.ensure_future(deed)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def heal(self) -> None:
        self._network.heal()
        for number in self._cluster.ids:
            machine = self._cluster.machines[number]
            machine.disk.capacity = machine.disk.fail_sync = machine.disk.crash_after = None
            machine.resume()

    def note(self, fault: Fault, what: str) -> None:
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
        led = self._eyes.led()
        return random.choice(led)[0] if led else None

    def replicas(self, random: Random) -> list[int]:
        led = self._eyes.led()
        if not led:
            return []
        leader, replicas = random.choice(led)
        return [*(number for number in replicas if number != leader), leader]

    def controller(self) -> int | None:
        return self._eyes.controller()

    def _anybody(self, random: Random) -> int:
        """Rather one that matters: leaders and the controller are hit more often than the others."""
        aim = random.random()
        number = (
            self.leader(random) if aim < LEADER_CHANCE else self.controller() if aim > 1 - CONTROLLER_CHANCE else None
        )
        return random.choice(self._cluster.ids) if number is None else number

    def _target(self, random: Random) -> int | None:
        """A machine that is up and that no other fault has taken."""
        if len(self._busy) >= self._max_down:
            return None
        number = self._anybody(random)
        if self.is_free(number):
            return number
        free = [number for number in self._cluster.started if self.is_free(number)]
        return random.choice(free) if free else None

    async def _down(self, fault: Fault, number: int) -> None:
        """It is dead: for a while, then up again."""
        await asyncio.sleep(fault.lasts_s)
        await self._cluster.bring_up(number)
        self.give_back(number)

    async def _kill(self, fault: Fault, random: Random) -> None:
        number = self._target(random)
        if number is not None:
            self.take(number)
            self.note(fault, f"kill {host_of(number)}")
            self._cluster.kill(number)
            await self._down(fault, number)

    async def _crash(self, fault: Fault, random: Random) -> None:
        number = self._target(random)
        if number is not None:
            self.take(number)
            self.note(fault, f"cut the power of {host_of(number)}")
            self._cluster.crash(number)
            await self._down(fault, number)

    async def _blackout(self, fault: Fault, random: Random) -> None:
        """The power of all machines fails at once; they come back one by one."""
        numbers = [number for number in self._cluster.started if self.is_free(number)]
        self.note(fault, f"cut the power of {', '.join(map(host_of, numbers)) or 'nobody'}")
        for number in numbers:
            self.take(number)
            self._cluster.crash(number)
        random.shuffle(numbers)
        for number in numbers:
            await asyncio.sleep(random.random() * fault.lasts_s)
            self.begin(self._down(fault, number))

    async def _torn(self, fault: Fault, random: Random) -> None:
        """In the middle of writing, and perhaps again while it recovers."""
        number = self._target(random)
        if number is None:
            return
        self.take(number)
        machine = self._cluster.machines[number]
        changes = random.randint(1, 60)
        self.note(fault, f"cut the power of {host_of(number)} after {changes} changes of its disk")
        machine.crash_after(changes)
        await self._wait(lambda: not machine.is_running, ARMED_S)
        machine.disk.crash_after = None
        if machine.is_running:
            self._cluster.crash(number)
        self._cluster.died(number)
        await asyncio.sleep(fault.lasts_s)
        if random.random() < 0.5:
            machine.crash_after(random.randint(1, 30))
            with_torn_recovery = asyncio.ensure_future(self._cluster.bring_up(number))
            await self._wait(with_torn_recovery.done, ARMED_S)
            machine.disk.crash_after = None
            await with_torn_recovery
        else:
            await self._cluster.bring_up(number)
        if not machine.is_running:  # the armed change came right after it served
            self._cluster.died(number)
            await self._cluster.bring_up(number)
        self.give_back(number)

    async def _stop(self, fault: Fault, random: Random) -> None:
        number = self._target(random)
        if number is None or number not in self._cluster.nodes:
            return
        self.take(number)
        self.note(fault, f"stop {host_of(number)}")
        await self._cluster.stop(number)
        await self._down(fault, number)

    async def _pause(self, fault: Fault, random: Random) -> None:
        number = self._target(random)
        if number is None:
            return
        self.take(number)
        self.note(fault, f"pause {host_of(number)}")
        self._cluster.machines[number].pause()
        await asyncio.sleep(fault.lasts_s)
        self._cluster.machines[number].resume()
        self.give_back(number)

    async def _clock(self, fault: Fault, random: Random) -> None:
        number = random.choice(self._cluster.ids)
        by_ms = random.uniform(-5000, 5000) * random.choice((0.1, 1, 20))
        self.note(fault, f"the clock of {host_of(number)} jumps by {by_ms:.0f} ms")
        self._cluster.machines[number].clock.jump(by_ms)

    # -- network ------------------------------------------------------------------------

    async def _cut(self, fault: Fault, random: Random) -> None:
        """Machines, and those of clients, on one side or the other."""
        hosts = self._network.hosts
        random.shuffle(hosts)
        split = random.randint(1, len(hosts) - 1)
        left, right = hosts[:split], hosts[split:]
        self.note(fault, f"cut {','.join(sorted(left))} {'->' if 'way' in fault.kind else 'from'} the others")
        self._network.partition(left, right, one_way="way" in fault.kind)
        await asyncio.sleep(fault.lasts_s)
        self._network.unblock(*_pairs(left, right))

    async def _isolate(self, fault: Fault, random: Random) -> None:
        """One from the other machines; clients may still reach it."""
        host = host_of(self._anybody(random))
        others = [host_of(number) for number in self._cluster.ids if host_of(number) != host]
        self.note(fault, f"isolate {host} from the other brokers")
        self._network.partition([host], others)
        await asyncio.sleep(fault.lasts_s)
        self._network.unblock(*_pairs([host], others))

    async def _flap(self, fault: Fault, random: Random) -> None:
        left, right = random.sample(self._network.hosts, 2)
        self.note(fault, f"flap {left} and {right}")
        shut_s, open_s = random.uniform(0.05, 1.0), random.uniform(0.05, 1.0)
        flapping = self._network.flap([left], [right], shut_s=shut_s, open_s=open_s, one_way=random.random() < 0.3)
        await asyncio.sleep(fault.lasts_s)
        flapping.stop()

    async def _slow_link(self, fault: Fault, random: Random) -> None:
        left, right = random.sample(self._network.hosts, 2)
        self.note(fault, f"slow {left}->{right}")
        self._network.set_profile(left, right, SLOW)
        await asyncio.sleep(fault.lasts_s)
        self._network.set_profile(left, right, LAN)

    async def _break(self, fault: Fault, random: Random) -> None:
        left, right = random.sample(self._network.hosts, 2)
        act = self._network.reset if fault.kind == "reset" else self._network.hang
        self.note(fault, f"{fault.kind} {act(left, right)} connections from {left} to {right}")

    # -- disks --------------------------------------------------------------------------

    async def _slow_disk(self, fault: Fault, random: Random) -> None:
        number = random.choice(self._cluster.ids)
        times = self._cluster.machines[number].disk_times
        before = times.sync_s, times.work_s
        self.note(fault, f"the disk of {host_of(number)} is slow")
        times.sync_s, times.work_s = random.uniform(0.01, 0.3), random.uniform(0.005, 0.1)
        await asyncio.sleep(fault.lasts_s)
        times.sync_s, times.work_s = before

    async def _failing_disk(self, fault: Fault, random: Random) -> None:
        """Some syncs fail for a while; then the disk is mended and the process started again."""
        number = self._target(random)
        if number is None:
            return
        self.take(number)
        machine = self._cluster.machines[number]
        chance = random.choice((0.1, 1.0))
        self.note(fault, f"the disk of {host_of(number)} fails to sync")
        machine.disk.fail_sync = lambda _: random.random() < chance
        await asyncio.sleep(fault.lasts_s)
        machine.disk.fail_sync = None
        self._cluster.crash(number)  # what the disk said it could not keep is not there
        await self._cluster.bring_up(number)
        self.give_back(number)

    async def _full_disk(self, fault: Fault, random: Random) -> None:
        number = self._target(random)
        if number is None:
            return
        self.take(number)
        disk = self._cluster.machines[number].disk
        disk.capacity = 0
        disk.capacity = -disk.free_bytes() + random.randint(0, 4000)
        self.note(fault, f"the disk of {host_of(number)} is full")
        await asyncio.sleep(fault.lasts_s)
        disk.capacity = None
        self._cluster.kill(number)
        await self._cluster.bring_up(number)
        self.give_back(number)

    async def _bit_rot(self, fault: Fault, random: Random) -> None:
        """Alone: while nothing else is wrong, on one machine a history, and until it has caught up again."""
        number = self._target(random)
        if number is None or self._busy or self._tasks_beside() or self._rotten is not None:
            return
        if not self._eyes.is_well():
            return
        place = self._batch_byte(self._cluster.machines[number].disk, random)
        if place is None:
            return
        self._is_alone = True
        self.take(number)
        self._rotten = number
        self.on_rot(number)
        path, position = place
        self.note(fault, f"a bit of {host_of(number)}:{path} at {position} flips, and it is restarted")
        self._cluster.kill(number)
        self._cluster.machines[number].disk.flip_bit(path, position, random.randrange(8))
        await self._down(fault, number)
        await self._wait(self._eyes.is_well, WELL_WITHIN_S)
        self._is_alone = False

    def _batch_byte(self, disk: SimDisk, random: Random) -> tuple[str, int] | None:
        """Within what the checksum of a stable batch covers; or far up in its leader epoch, which no leader had yet."""
        logs = [
            f"{DATA}/{directory}/{name}"
            for directory in disk.list_directory(DATA)
            if directory.startswith("data-")
            for name in disk.list_directory(f"{DATA}/{directory}")
            if name.endswith(".log") and disk.stable_size(f"{DATA}/{directory}/{name}") > 0
        ]
        if not logs:
            return None
        path = random.choice(logs)
        file = disk.open(path)
        stable_size = disk.stable_size(path)
        batches = [
            (at, header.size_bytes)
            for at, header in iterate_headers(file.read(0, file.size()), path)
            if at + header.size_bytes <= stable_size
        ]
        if not batches:
            return None
        at, size = random.choice(batches)
        if random.random() < EPOCH_CHANCE:
            return path, at + EPOCH_START
        return path, random.randrange(at + CRC_START, at + size)

    def _tasks_beside(self) -> bool:
        return len(self._tasks) > 1

    async def _wait(self, is_so: Callable[[], bool], at_most_s: float) -> None:
        deadline = self._world.loop.time() + at_most_s
        while True:
            if is_so() or self._world.loop.time() >= deadline:
                return
            await asyncio.sleep(LOOK_AGAIN_S)


def _pairs(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for a in left for b in right for pair in ((a, b), (b, a))]
