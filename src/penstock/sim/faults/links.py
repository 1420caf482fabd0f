"""Faults of the network: blocked, slow or flapping paths, connections that are reset or fall silent.

A fault between two machines picks two that are connected at that moment: brokers, or a client and a broker. Without
one, nothing happens and nothing is counted. Must not know: checkers, the content of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from penstock.sim.cluster import host_of
from penstock.sim.faults.enemy import Enemy
from penstock.sim.faults.plan import Fault
from penstock.sim.machine.network import LAN, LinkProfile
from penstock.sim.machine.world import DRIVER

SLOW = LinkProfile(0.02, 0.08, 0.02, 0.5, 2e6, 0.3, (4 << 10, 16 << 10))
BROKERS_CHANCE = 0.6
"""Chance that both machines are brokers."""


Deed = Callable[[Fault, Random], Awaitable[None]]


class LinkFaults:
    def __init__(self, enemy: Enemy) -> None:
        self._enemy = enemy
        self._cluster = enemy.cluster
        self._network = enemy.cluster.world.network
        self.deeds: dict[str, Deed] = {
            "cut": self._cut,
            "cut one way": self._cut,
            "isolate": self._isolate,
            "flap": self._flap,
            "slow link": self._slow_link,
            "reset": self._break,
            "hang": self._break,
        }

    def _link(self, random: Random) -> tuple[str, str] | None:
        """Two machines with a connection between them, in any order."""
        brokers = {host_of(number) for number in self._cluster.ids}
        inner: list[tuple[str, str]] = []
        outer: list[tuple[str, str]] = []
        for link in self._network.links():
            (inner if brokers.issuperset(link) else outer).append(link)
        wanted, others = (inner, outer) if random.random() < BROKERS_CHANCE else (outer, inner)
        links = wanted or others
        if not links:
            return None
        left, right = random.choice(links)
        return (left, right) if random.random() < 0.5 else (right, left)

    async def _cut(self, fault: Fault, random: Random) -> None:
        """Split all machines, including clients', in two sides that separate at least one connection."""
        hosts = [host for host in self._network.hosts if host != DRIVER]
        first = self._link(random)
        if first is None:
            return
        left, right = [first[0]], [first[1]]
        for host in hosts:
            if host not in first:
                random.choice((left, right)).append(host)
        is_one_way = fault.kind == "cut one way"
        self._enemy.note(fault, f"cut {','.join(sorted(left))} {'->' if is_one_way else 'from'} the others")
        self._network.partition(left, right, one_way=is_one_way)
        await asyncio.sleep(fault.lasts_s)
        self._network.unblock(*_pairs(left, right))

    async def _isolate(self, fault: Fault, random: Random) -> None:
        """Cut one broker off from the others; clients may still reach it."""
        number = self._enemy.somebody(random)
        if number is None:
            return
        host = host_of(number)
        others = [host_of(other) for other in self._cluster.ids if other != number]
        self._enemy.note(fault, f"isolate {host} from the other brokers")
        self._network.partition([host], others)
        await asyncio.sleep(fault.lasts_s)
        self._network.unblock(*_pairs([host], others))

    async def _flap(self, fault: Fault, random: Random) -> None:
        link = self._link(random)
        if link is None:
            return
        left, right = link
        self._enemy.note(fault, f"flap {left} and {right}")
        shut_s, open_s = random.uniform(0.05, 1.0), random.uniform(0.05, 1.0)
        flapping = self._network.flap([left], [right], shut_s=shut_s, open_s=open_s, one_way=random.random() < 0.3)
        await asyncio.sleep(fault.lasts_s)
        flapping.stop()

    async def _slow_link(self, fault: Fault, random: Random) -> None:
        link = self._link(random)
        if link is None:
            return
        left, right = link
        self._enemy.note(fault, f"slow {left}->{right}")
        self._network.set_profile(left, right, SLOW)
        await asyncio.sleep(fault.lasts_s)
        self._network.set_profile(left, right, LAN)

    async def _break(self, fault: Fault, random: Random) -> None:
        link = self._link(random)
        if link is None:
            return
        left, right = link
        act = self._network.reset if fault.kind == "reset" else self._network.hang
        self._enemy.note(fault, f"{fault.kind} {act(left, right)} connections of {left} and {right}")


def _pairs(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for a in left for b in right for pair in ((a, b), (b, a))]
