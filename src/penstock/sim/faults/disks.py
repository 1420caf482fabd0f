"""Faults of disks: slow, full, failing, lossy, rotten. Each ends after a while, and the process is restarted.

Must not know: clients, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from penstock.records.batch import CRC_START, iterate_headers
from penstock.sim.broker import DATA
from penstock.sim.cluster import host_of
from penstock.sim.faults.ambush import CUTS, MOST_STEPS, Trap
from penstock.sim.faults.campaigns import Deed
from penstock.sim.faults.enemy import Enemy
from penstock.sim.faults.plan import ROT_AND_CRASH, Fault
from penstock.sim.machine.disk import SimDisk
from penstock.sim.machine.threads import DiskTimes

AIDS = (".index", ".timeindex", ".snapshot")
AID_CHANCE = 0.3
MENDING_S = 6.0
EPOCH_CHANCE = 0.2
EPOCH_START = 12  # position of the partition leader epoch in a batch
COMPACTED = ("keyed-", "__consumer_offsets-")
ROTTEN = ("data-", "keyed-", "__consumer_offsets-")
"""Logs in which bits rot: those of topics that `sim.judges.healed` reads in the end."""


class DiskFaults:
    def __init__(self, enemy: Enemy) -> None:
        self._enemy = enemy
        self._cluster = enemy.cluster
        self.deeds: dict[str, Deed] = {
            "slow disk": self._slow,
            "failing disk": self._failing,
            "bad writes": self._bad_writes,
            "full disk": self._full,
            "cold cache": self._cold,
            "bit rot": self._rot,
            ROT_AND_CRASH: self._rot,
        }

    def heal(self) -> None:
        for machine in self._cluster.machines.values():
            disk = machine.disk
            disk.capacity = disk.fail_sync = disk.fail_write = disk.crash_after = None
            disk.is_cold = False
            # Two concurrent slow faults may each have restored the other's times.
            times, usual = machine.disk_times, DiskTimes()
            times.sync_s, times.work_s = usual.sync_s, usual.work_s

    async def _slow(self, fault: Fault, random: Random) -> None:
        number = self._enemy.somebody(random)
        if number is None:
            return
        times = self._cluster.machines[number].disk_times
        before = times.sync_s, times.work_s
        self._enemy.note(fault, f"the disk of {host_of(number)} is slow")
        times.sync_s, times.work_s = random.uniform(0.01, 0.3), random.uniform(0.005, 0.1)
        await asyncio.sleep(fault.lasts_s)
        times.sync_s, times.work_s = before

    async def _cold(self, fault: Fault, random: Random) -> None:
        """Memory is short: every read comes from the platter."""
        number = self._enemy.somebody(random)
        if number is None:
            return
        disk = self._cluster.machines[number].disk
        self._enemy.note(fault, f"reads of {host_of(number)} are never in memory")
        disk.is_cold = True
        await asyncio.sleep(fault.lasts_s)
        disk.is_cold = False

    async def _failing(self, fault: Fault, random: Random) -> None:
        """Some syncs fail for a while; then the disk is repaired and the process restarted."""
        number = self._enemy.target(random)
        if number is None:
            return
        self._enemy.take(number)
        disk = self._cluster.machines[number].disk
        chance = random.choice((0.1, 1.0))
        disk.fail_sync = self._now_and_then(fault, number, "sync", random, chance)
        await asyncio.sleep(fault.lasts_s)
        disk.fail_sync = None
        self._cluster.crash(number)  # data of failed syncs is lost
        await self._cluster.bring_up(number)
        self._enemy.give_back(number)

    async def _bad_writes(self, fault: Fault, random: Random) -> None:
        """Some writes fail for a while, after writing part of their bytes."""
        number = self._enemy.target(random)
        if number is None:
            return
        self._enemy.take(number)
        disk = self._cluster.machines[number].disk
        chance = random.choice((0.05, 0.3, 1.0))
        disk.fail_write = self._now_and_then(fault, number, "write", random, chance)
        await asyncio.sleep(fault.lasts_s)
        disk.fail_write = None
        await self._begin_anew(number)

    def _now_and_then(
        self, fault: Fault, number: int, what: str, random: Random, chance: float
    ) -> Callable[[str], bool]:
        """Noted the first time."""
        failed = False

        def fails(path: str) -> bool:
            nonlocal failed
            if random.random() >= chance:
                return False
            if not failed:
                failed = True
                self._enemy.note(fault, f"the disk of {host_of(number)} fails to {what} {path}")
            return True

        return fails

    async def _full(self, fault: Fault, random: Random) -> None:
        number = self._enemy.target(random)
        if number is None:
            return
        self._enemy.take(number)
        disk = self._cluster.machines[number].disk
        disk.capacity = 0
        disk.capacity = -disk.free_bytes() + random.randint(0, 4000)
        self._enemy.note(fault, f"the disk of {host_of(number)} is full")
        await asyncio.sleep(fault.lasts_s)
        disk.capacity = None
        await self._begin_anew(number)

    async def _begin_anew(self, number: int) -> None:
        self._cluster.kill(number)
        await self._cluster.bring_up(number)
        self._enemy.give_back(number)

    async def _rot(self, fault: Fault, random: Random) -> None:
        """While nothing else is wrong, on one machine per history, and until it has caught up again."""
        if self._enemy.rotten is not None or not await self._enemy.wait_for_quiet():
            return
        number = self._enemy.target(random)
        if number is None:
            return
        disk = self._cluster.machines[number].disk
        preferred = COMPACTED[:1] if fault.kind == ROT_AND_CRASH else ROTTEN
        place = _aid_byte(disk, random) if random.random() < AID_CHANCE else batch_byte(disk, random, preferred)
        if place is None:
            return
        self._enemy.is_alone = True
        self._enemy.take(number)
        self._enemy.rotten = number
        self._enemy.eyes.excuse(number)
        path, position = place
        self._enemy.note(fault, f"a bit of {host_of(number)}:{path} at {position} flips, and it is restarted")
        self._cluster.kill(number)
        self._cluster.machines[number].disk.flip_bit(path, position, random.randrange(8))
        if fault.kind == ROT_AND_CRASH:
            await asyncio.gather(self._enemy.down(fault, number), self._strike_while_mending(fault, number, random))
        else:
            await self._enemy.down(fault, number)
        await self._enemy.wait_until_well()
        self._enemy.is_alone = False

    async def _strike_while_mending(self, fault: Fault, number: int, random: Random) -> None:
        """The power of the machine fails during the repair. The other machines have everything, as before."""
        steps = random.randint(1, MOST_STEPS)
        sprung: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        trap = Trap(CUTS, steps, False, lambda one: one == number, sprung)
        found = await self._enemy.ambushes.trap(trap, MENDING_S)
        if found is None:
            return
        self._enemy.note(fault, f"{found[1]} on {host_of(number)}: cut its power at change {steps} of its disk")
        await self._enemy.ambushes.spring_for(number, keeps_power=False)
        await self._cluster.bring_up(number)


def _files(disk: SimDisk, *endings: str, of: tuple[str, ...] = ROTTEN) -> list[str]:
    """Files with these endings in log directories with stable bytes."""
    return [
        path
        for directory in disk.list_directory(DATA)
        if directory.startswith(of)
        for path in (f"{DATA}/{directory}/{name}" for name in disk.list_directory(f"{DATA}/{directory}"))
        if path.endswith(endings) and disk.stable_size(path) > 0
    ]


def _aid_byte(disk: SimDisk, random: Random) -> tuple[str, int] | None:
    """A byte of a file that can be rebuilt from the log: an index or a producer snapshot."""
    paths = _files(disk, *AIDS)
    if not paths:
        return None
    path = random.choice(paths)
    return path, random.randrange(disk.stable_size(path))


def batch_byte(disk: SimDisk, random: Random, preferred: tuple[str, ...]) -> tuple[str, int] | None:
    """A byte covered by the checksum of a stable batch, or a high byte of its leader epoch. In one of the `preferred`
    logs if there is one."""
    logs = _files(disk, ".log", of=preferred) or _files(disk, ".log")
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
