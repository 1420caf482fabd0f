"""Sequences of related faults aimed at important nodes: leaders, the controller, all machines in an order.

Each is fair because each of its parts is. Must not know: clients, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from penstock.sim.cluster import host_of
from penstock.sim.faults.enemy import Enemy
from penstock.sim.faults.plan import Fault

NOTICED_S = 0.4
"""A dead process is noticed sooner: its connections break."""

PATIENCE_S = 5.0
"""How long an operator of a rolling restart waits for a node to be in sync again."""

REWRITTEN = {
    "broker.heartbeat.interval.ms": ("200", "700"),
    "broker.rack": ("left", "right"),
    "broker.session.timeout.ms": ("1500", "3000"),
    "fetch.max.bytes": ("2048", "57671680"),
    "log.cleaner.backoff.ms": ("500", "10000"),
    "log.flush.offset.checkpoint.interval.ms": ("500", "20000"),
    "log.index.interval.bytes": ("100", "4096"),
    "replica.fetch.max.bytes": ("1000", "1048576"),
    "replica.fetch.response.max.bytes": ("2000", "10485760"),
    "replica.fetch.wait.max.ms": ("50", "500"),
    "replica.high.watermark.checkpoint.interval.ms": ("200", "5000"),
    "replica.lag.time.max.ms": ("1000", "4000"),
}
"""Settings that a node's file may change at a restart."""


Deed = Callable[[Fault, Random], Awaitable[None]]


class Campaigns:
    def __init__(self, enemy: Enemy) -> None:
        self._enemy = enemy
        self._cluster = enemy.cluster
        self._network = enemy.cluster.world.network
        self._is_rolling = False
        self.deeds: dict[str, Deed] = {
            "brownout": self._brownout,
            "one by one": self._one_by_one,
            "fade out": self._one_by_one,
            "strand": self._strand,
            "depose": self._depose,
            "headhunt": self._headhunt,
            "coup": self._coup,
            "rolling restart": self._rolling_restart,
        }

    def _free(self) -> list[int]:
        return [number for number in self._cluster.started if self._enemy.is_free(number)]

    # -- all machines -------------------------------------------------------------------

    async def _brownout(self, fault: Fault, random: Random) -> None:
        """All disks become slow, then the power of all machines fails: unflushed data is on no platter."""
        machines = [self._cluster.machines[number] for number in self._cluster.ids]
        before = [(machine.disk_times, machine.disk_times.sync_s) for machine in machines]
        self._enemy.note(fault, "all disks are slow, then the power of all machines fails")
        for machine in machines:
            machine.disk_times.sync_s = random.uniform(0.1, 0.6)
        await asyncio.sleep(random.uniform(0.3, 1.5))
        numbers = self._free()
        for number in numbers:
            self._enemy.take(number)
            self._cluster.crash(number)
        for times, sync_s in before:
            times.sync_s = sync_s
        random.shuffle(numbers)
        await self._bring_up(numbers, random, fault.lasts_s)

    async def _one_by_one(self, fault: Fault, random: Random) -> None:
        """All nodes go down one after the other and return in that order: the first to return was away longest."""
        numbers = self._free()
        random.shuffle(numbers)
        end = self._cluster.crash if fault.kind == "fade out" else self._cluster.kill
        slowest_s = random.choice((0.5, self._cluster.session_s))
        gone = await self._take_down(fault, numbers, end, lambda: random.uniform(0.05, slowest_s))
        await self._bring_up(gone, random, fault.lasts_s)

    async def _strand(self, fault: Fault, random: Random) -> None:
        """The replicas of a partition go down, each after the previous one left the ISR; the leader goes last and
        returns last. Other partitions elect leaders as soon as they can.
        """
        replicas = self._enemy.replicas(random)
        gone = await self._take_down(fault, replicas, self._cluster.kill, lambda: NOTICED_S + random.random())
        await self._bring_up(gone[:-1], random, fault.lasts_s)
        await asyncio.sleep(NOTICED_S + random.random())
        await self._bring_up(gone[-1:], random, fault.lasts_s)

    async def _rolling_restart(self, fault: Fault, random: Random) -> None:
        """A clean rolling restart of all nodes, each when all is well or the operator's patience is over.
        Half of the time with changed files, so that nodes with different settings form one cluster meanwhile.
        """
        if self._is_rolling:
            return
        self._is_rolling = True
        is_rewriting = random.random() < 0.5
        changes = {key: random.choice(values) for key, values in REWRITTEN.items() if random.random() < 0.5}
        numbers = self._free()
        random.shuffle(numbers)
        for number in numbers:
            await self._enemy.wait(self._enemy.is_well, PATIENCE_S)
            if not self._enemy.is_free(number) or number not in self._cluster.nodes:
                continue
            self._enemy.take(number)
            self._enemy.note(fault, f"restart {host_of(number)}{' with a changed file' * is_rewriting}")
            await self._cluster.stop(number)
            if is_rewriting:
                self._cluster.rewrite_file(number, changes)
            await asyncio.sleep(random.uniform(0.0, 0.3))
            await self._up(number)
        self._is_rolling = False

    async def _take_down(
        self, fault: Fault, numbers: Sequence[int], end: Callable[[int], None], pause_s: Callable[[], float]
    ) -> list[int]:
        """Take down nodes that no other fault has taken."""
        gone: list[int] = []
        for number in numbers:
            if self._enemy.is_free(number):
                self._enemy.note(fault, f"of {', '.join(map(host_of, numbers))} {host_of(number)} goes down")
                self._enemy.take(number)
                end(number)
                gone.append(number)
                await asyncio.sleep(pause_s())
        return gone

    async def _bring_up(self, numbers: Sequence[int], random: Random, within_s: float) -> None:
        for number in numbers:
            await asyncio.sleep(random.random() * within_s / len(numbers))
            self._enemy.begin(self._up(number))

    async def _up(self, number: int) -> None:
        await self._cluster.bring_up(number)
        self._enemy.give_back(number)

    # -- one after the other ------------------------------------------------------------

    async def _depose(self, fault: Fault, random: Random) -> None:
        """A leader is cut off from the other brokers until they have another one; clients still reach it."""
        number = self._enemy.leader(random)
        if number is None or not self._cluster.is_running(number):
            return
        self._enemy.note(fault, f"{host_of(number)} leads and is cut off")
        # Sometimes for so long that it must notice by itself.
        sessions = random.uniform(0.5, 1.5) if random.random() < 0.5 else random.uniform(2.5, 3.5)
        await self._cut_off(number, sessions * self._cluster.session_s)
        if random.random() < 0.5 and self._enemy.is_free(number):
            await self._killed(number, random.uniform(0.05, 1.0))

    async def _headhunt(self, fault: Fault, random: Random) -> None:
        """The leader is killed, then its successors."""
        for _ in range(random.randint(2, 5)):
            number = self._enemy.leader(random)
            if number is not None and self._enemy.is_free(number):
                self._enemy.note(fault, f"{host_of(number)} leads and is killed")
                self._enemy.begin(self._killed(number, random.uniform(0.05, 1.0)))
            await asyncio.sleep(random.uniform(0.1, 1.5))

    async def _coup(self, fault: Fault, random: Random) -> None:
        """The controller is removed, then its successors; sometimes a voter restarts during the election."""
        for _ in range(random.randint(2, 6)):
            number = self._enemy.controller()
            if number is not None and self._enemy.is_free(number):
                self._enemy.note(fault, f"{host_of(number)} is the controller and is removed")
                self._enemy.begin(self._removed(number, random))
            if random.random() < 0.5:
                await asyncio.sleep(random.uniform(0.0, 0.3))
                free = self._free()
                if len(free) > 1:
                    self._enemy.begin(self._killed(random.choice(free), random.uniform(0.0, 0.1)))
            await asyncio.sleep(random.uniform(0.1, 1.0))

    async def _removed(self, number: int, random: Random) -> None:
        for_s = random.uniform(0.1, 1.5)
        way = random.randrange(3)
        if way == 0:
            await self._killed(number, for_s)
        elif way == 1:
            await self._cut_off(number, for_s)
        else:
            self._enemy.take(number)
            self._cluster.machines[number].pause()
            await asyncio.sleep(for_s)
            self._cluster.machines[number].resume()
            self._enemy.give_back(number)

    async def _cut_off(self, number: int, for_s: float) -> None:
        host = host_of(number)
        others = [host_of(other) for other in self._cluster.ids if other != number]
        self._network.partition([host], others)
        await asyncio.sleep(for_s)
        self._network.unblock(*((a, b) for other in others for a, b in ((host, other), (other, host))))

    async def _killed(self, number: int, for_s: float) -> None:
        self._enemy.take(number)
        self._cluster.kill(number)
        await asyncio.sleep(for_s)
        await self._up(number)
