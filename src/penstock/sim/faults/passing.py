"""Faults of disks that end by themselves. The process is not restarted and must live with the consequences.

Calls fail for a while, or one call once; a disk is full and then not; the process can open no more files; syncs take
seconds, or hang. Stopping, killing or cutting the power of a process meanwhile is another fault.
Must not know: clients, checkers.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from penstock.sim.cluster import host_of
from penstock.sim.faults.campaigns import Deed
from penstock.sim.faults.enemy import Enemy
from penstock.sim.faults.plan import FAILING_CHECKPOINT, Fault
from penstock.sim.machine.disk import NEED_A_DESCRIPTOR

ARMED_S = 3.0
LOOK_AGAIN_S = 0.25
EPOCH_BEGINS_S = (0.2, 1.5)
CHECKPOINTS_S = (0.3, 1.5)
STALLED_WITHIN_S = 15.0
"""If nothing else is wrong, other brokers must have taken over from a broker with a hung disk within this time."""


class Single(NamedTuple):
    """One call that fails, once or a few times in a row."""

    call: str
    part: str
    """A part of the path; empty: any."""
    code: int


OF_CHECKPOINTS = (
    Single("write", ".snapshot", errno.EIO),
    Single("write", ".snapshot", errno.ENOSPC),
    Single("open", ".snapshot", errno.ENOSPC),
    Single("rename", ".snapshot", errno.EIO),
    Single("sync", ".snapshot", errno.EIO),
    Single("rename", "checkpoint", errno.ENOSPC),
    Single("write", "checkpoint", errno.ENOSPC),
)
"""Files beside a log that spare a restart from reading all of it."""
OF_CHECKPOINTS_CHANCE = 0.4
SINGLES = (
    Single("write", ".log", errno.EIO),
    Single("write", ".index", errno.ENOSPC),
    Single("write", "", errno.ENOSPC),
    Single("rename", "", errno.ENOSPC),
    Single("rename", "", errno.EIO),
    Single("open", "", errno.EMFILE),
    Single("remove", "", errno.EIO),
    Single("truncate", "", errno.EIO),
    Single("sync", "", errno.EIO),
    Single("sync directory", "", errno.EIO),
    Single("sync directory", "", errno.EMFILE),
    Single("list", "", errno.EMFILE),
    Single("make", "", errno.ENOSPC),
)


class PassingFaults:
    def __init__(self, enemy: Enemy) -> None:
        self._enemy = enemy
        self._cluster = enemy.cluster
        self._usual_sync_s: dict[int, float] = {}
        self.deeds: dict[str, Deed] = {
            "passing errors": self._errors,
            "passing shortage": self._shortage,
            "no descriptors": self._no_descriptors,
            "single failure": self._single,
            "hung disk": self._hung,
            "stalled disk": self._stalled,
            "crawling disk": self._crawling,
            FAILING_CHECKPOINT: self._failing_checkpoint,
        }

    def heal(self) -> None:
        for machine in self._cluster.machines.values():
            machine.disk.fail_call = None
            machine.disk_times.is_hung = False

    async def _errors(self, fault: Fault, random: Random) -> None:
        """Some writes or syncs fail, occasionally or always."""
        calls = random.choice((("write",), ("sync", "sync directory"), ("write", "truncate", "rename", "sync")))
        code = errno.EIO if "sync" in calls else random.choice((errno.EIO, errno.ENOSPC))
        chance = random.choice((0.05, 0.3, 1.0))

        def fails(call: str, path: str) -> int | None:
            return code if call in calls and random.random() < chance else None

        await self._while(fault, random, fails)

    async def _no_descriptors(self, fault: Fault, random: Random) -> None:
        """Files cannot be opened."""
        chance = random.choice((0.3, 1.0))

        def fails(call: str, path: str) -> int | None:
            return errno.EMFILE if call in NEED_A_DESCRIPTOR and random.random() < chance else None

        await self._while(fault, random, fails)

    async def _single(self, fault: Fault, random: Random) -> None:
        single = random.choice(OF_CHECKPOINTS if random.random() < OF_CHECKPOINTS_CHANCE else SINGLES)
        left = random.choice((1, 1, 1, 3))

        def fails(call: str, path: str) -> int | None:
            nonlocal left
            if not left or call != single.call or single.part not in path:
                return None
            left -= 1
            return single.code

        await self._while(fault, random, fails, max(fault.lasts_s, ARMED_S))

    async def _failing_checkpoint(self, fault: Fault, random: Random) -> None:
        """A leader dies, so that new epochs begin. On another broker a step of its checkpoints fails a few times per
        log. Later that broker dies, too, and returns with the files that it has stored."""
        number, leader = self._enemy.somebody(random), self._enemy.leader(random)
        if number is None:
            return
        if leader is not None and leader != number and self._enemy.can_take(leader):
            self._enemy.take(leader)
            self._cluster.kill(leader)
            self._enemy.begin(self._enemy.down(fault, leader))
            await asyncio.sleep(random.uniform(*EPOCH_BEGINS_S))
        single, most = random.choice(OF_CHECKPOINTS), random.choice((1, 2, 4))
        failed: Counter[str] = Counter()

        def fails(call: str, path: str) -> int | None:
            directory = path.rpartition("/")[0]
            if call != single.call or single.part not in path or failed[directory] >= most:
                return None
            failed[directory] += 1
            return single.code

        await self._while(fault, random, fails, random.uniform(*CHECKPOINTS_S), number)
        await asyncio.sleep(random.uniform(*CHECKPOINTS_S))
        if self._enemy.can_take(number):
            self._enemy.take(number)
            self._cluster.kill(number)
            await self._enemy.down(fault, number)

    async def _while(
        self,
        fault: Fault,
        random: Random,
        fails: Callable[[str, str], int | None],
        for_s: float | None = None,
        number: int | None = None,
    ) -> None:
        """Noted the first time. `number`: on this machine; None: on any."""
        number = self._enemy.somebody(random) if number is None else number
        if number is None:
            return
        disk = self._cluster.machines[number].disk
        is_noted = False

        def may_fail(call: str, path: str) -> int | None:
            nonlocal is_noted
            code = fails(call, path)
            if code is not None and not is_noted:
                is_noted = True
                self._enemy.note(fault, f"{host_of(number)} fails to {call} {path}: {errno.errorcode[code]}")
            return code

        disk.fail_call = may_fail
        await asyncio.sleep(fault.lasts_s if for_s is None else for_s)
        if disk.fail_call is may_fail:
            disk.fail_call = None

    async def _shortage(self, fault: Fault, random: Random) -> None:
        """The disk is full, and later has room again."""
        number = self._enemy.somebody(random)
        if number is None:
            return
        disk = self._cluster.machines[number].disk
        disk.capacity = 0
        disk.capacity = -disk.free_bytes() + random.randint(0, 4000)
        self._enemy.note(fault, f"the disk of {host_of(number)} is full for a while")
        await asyncio.sleep(fault.lasts_s)
        disk.capacity = None

    async def _crawling(self, fault: Fault, random: Random) -> None:
        """Every sync takes seconds."""
        number = self._enemy.somebody(random)
        if number is None:
            return
        times = self._cluster.machines[number].disk_times
        usual_s = self._usual_sync_s.setdefault(number, times.sync_s)  # another such fault may be active
        self._enemy.note(fault, f"a sync of {host_of(number)} takes seconds")
        times.sync_s = slow_s = random.uniform(0.5, 3.0)
        await asyncio.sleep(fault.lasts_s)
        if times.sync_s == slow_s:
            times.sync_s = usual_s

    async def _hung(self, fault: Fault, random: Random) -> None:
        number = self._enemy.somebody(random)
        if number is None:
            return
        times = self._cluster.machines[number].disk_times
        self._enemy.note(fault, f"the disk of {host_of(number)} hangs")
        times.is_hung = True
        await asyncio.sleep(fault.lasts_s)
        times.is_hung = False

    async def _stalled(self, fault: Fault, random: Random) -> None:
        """The disk hangs while all else is well: other brokers soon lead the partitions it cannot make stable."""
        if not await self._enemy.wait_for_quiet():
            return
        number = self._enemy.leader(random)
        if number is None or not self._cluster.is_running(number):
            return
        self._enemy.is_alone = True
        self._enemy.note(fault, f"the disk of {host_of(number)} hangs, and all else is well")
        times = self._cluster.machines[number].disk_times
        times.is_hung = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        since: dict[str, float] = {}
        while loop.time() < began + 2 * STALLED_WITHIN_S:
            held_up = self._enemy.held_up(number)
            since = {name: since.get(name, loop.time()) for name in held_up}
            late = [name for name, at_s in since.items() if loop.time() - at_s > STALLED_WITHIN_S]
            if late:
                self._enemy.eyes.stalled(f"{late[0]} on {host_of(number)}, for {STALLED_WITHIN_S:.0f} s")
                break
            if not since and loop.time() > began + fault.lasts_s:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        times.is_hung = False
        await self._enemy.wait_until_well()
        self._enemy.is_alone = False
