"""Faults that wait for a critical moment of a broker and hit it then.

The time between two steps of a broker is short: a flush takes a millisecond or two, and random moments hardly ever
hit it. So these faults listen to the brokers (`sim.places`) and strike when a step has just begun, or up to a few
milliseconds later. Must not know: clients, checkers. Invariant: listening changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from random import Random
from typing import Any, NamedTuple

from penstock.sim.cluster import host_of
from penstock.sim.faults.campaigns import Deed
from penstock.sim.faults.enemy import Enemy
from penstock.sim.faults.plan import AMBUSHES, COORDINATOR_FALLS, INSIDE, POWER, Fault
from penstock.sim.machine.process import current_process
from penstock.sim.places import replaced

ARMED_S = 3.0
SPRUNG_S = 1.0
LATE_S = 0.005
AT_ONCE_CHANCE = 0.4
ALL_CHANCE = 0.2


class Moment(NamedTuple):
    place: str
    is_it: Callable[[Any, Any], bool] = lambda *_: True
    """Called after the production code, with the result and the method's owner, or the function's first argument."""


def _is_left_alone(_: Any, partition: Any) -> bool:
    return partition.is_leader and partition.isr == (partition.node_id,) and len(partition.replicas) > 1


FREQUENT = "a flush begins"
"""For faults that must happen while nothing else is wrong."""
MOMENTS: Mapping[str, Moment] = {
    FREQUENT: Moment("penstock.storage.log:Log.begin_flush", lambda flush, _: flush is not None),
    "a segment is rolled": Moment("penstock.storage.log_files:LogFiles.roll"),
    "a log is cut": Moment("penstock.storage.log:Log.begin_cut", lambda cut, _: cut is not None),
    "a compacted segment waits to be swapped in": Moment(
        "penstock.storage.log:Log.begin_swap", lambda is_begun, _: is_begun
    ),
    "a replica begins to lead": Moment("penstock.replica.partition:Partition._lead"),
    "a leader is left alone in sync": Moment("penstock.replica.partition:Partition._isr_changed", _is_left_alone),
}


VOTERS_CHANGE = {
    "voters change": Moment(
        "penstock.core.raft.membership:changed", lambda after, before: after.voters != before.voters
    )
}
"""If the history changes voters."""


REBALANCES: Mapping[str, Moment] = {
    "a group waits for its members": Moment("penstock.core.group.rebalance:Rebalance.prepare"),
    "a group waits for its leader": Moment("penstock.core.group.rebalance:Rebalance._form"),
    "a group has a new target": Moment("penstock.core.group.consumer_draft:Draft.retarget"),
}
"""On the coordinator of the group."""
REBALANCING_S = 0.3

CHANGES: Mapping[str, str] = {
    "a log is cut": "penstock.storage.log_files:LogFiles.cut",
    "a log is started again": "penstock.storage.log_files:LogFiles.begin_anew",
    "a replica starts over": "penstock.replica.hosting:HostedPartitions.start_over",
    "a segment is rolled": "penstock.storage.log_files:LogFiles.roll",
    "segments are deleted": "penstock.storage.deletion:Deletion.run",
    "a compacted segment is swapped in": "penstock.storage.log:Log.end_swap",
    "logs are checkpointed": "penstock.replica.housekeeping:Housekeeping.checkpoint",
    "offsets are checkpointed": "penstock.replica.housekeeping:Housekeeping.persist_offsets",
    "a replica is removed": "penstock.replica.hosting:HostedPartitions._remove_directories",
    "a log is recovered": "penstock.storage.log:recover",
    "a snapshot of the metadata is kept": "penstock.cluster.raft_store:RaftStore._settle",
    "a log is closed": "penstock.storage.log:Log.close",
}
"""Each makes several changes on disk: a process may end between any two."""
MOST_STEPS = 10
USUAL_CHANGE = "logs are checkpointed"
CUTS = ("a log is cut", "a log is started again", "a replica starts over", "a log is recovered")
"""Consequences of damage."""


class Trap(NamedTuple):
    """A trap for one process."""

    changes: Sequence[str]
    steps: int
    keeps_power: bool
    is_for: Callable[[int], bool]
    sprung: asyncio.Future[tuple[int, str]]


class Ambushes:
    def __init__(self, enemy: Enemy) -> None:
        self._enemy = enemy
        self._cluster = enemy.cluster
        self._moments = {**MOMENTS, **VOTERS_CHANGE} if enemy.has_voter_changes else MOMENTS
        self._waiting: dict[str, list[asyncio.Future[int]]] = {}
        self._traps: list[Trap] = []
        self.deeds: dict[str, Deed] = {
            **dict.fromkeys(AMBUSHES, self._ambush),
            **dict.fromkeys(INSIDE, self._strike_inside),
            COORDINATOR_FALLS: self._fell_coordinator,
        }

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for what, moment in (*self._moments.items(), *REBALANCES.items()):
                stack.enter_context(replaced(moment.place, partial(self._overhear, what, moment)))
            for what, place in CHANGES.items():
                stack.enter_context(replaced(place, partial(self._overhear_change, what)))
            yield

    def _overhear(self, what: str, moment: Moment, original: Any) -> Any:
        @wraps(original)
        def overheard(owner: Any, *args: Any, **named: Any) -> Any:
            result = original(owner, *args, **named)
            if what in self._waiting and moment.is_it(result, owner):
                process = current_process()
                assert process is not None, "a broker runs in a process"
                for waiter in self._waiting.pop(what):
                    if not waiter.done():
                        waiter.set_result(int(process.host.rpartition("-")[2]))
            return result

        return overheard

    def _overhear_change(self, what: str, original: Any) -> Any:
        @wraps(original)
        def overheard(*args: Any, **named: Any) -> Any:
            if self._traps:
                self._spring(what)
            return original(*args, **named)

        return overheard

    def _spring(self, what: str) -> None:
        process = current_process()
        if process is None or not process.host.startswith(host_of(0)[:-1]):
            return
        number = int(process.host.rpartition("-")[2])
        machine = self._cluster.machines[number]
        for trap in self._traps:
            if what in trap.changes and trap.is_for(number) and machine.disk.crash_after is None:
                self._traps.remove(trap)
                machine.crash_after(trap.steps, keeps_power=trap.keeps_power)
                trap.sprung.set_result((number, what))
                return

    async def trap(self, trap: Trap, at_most_s: float) -> tuple[int, str] | None:
        """Return the number that fell into the trap and the change; None: none. It may still run."""
        self._traps.append(trap)
        try:
            async with asyncio.timeout(at_most_s):
                return await trap.sprung
        except TimeoutError:
            return None
        finally:
            if trap in self._traps:
                self._traps.remove(trap)

    async def _strike_inside(self, fault: Fault, random: Random) -> None:
        keeps_power = fault.kind not in POWER
        what, steps = random.choice(list(CHANGES)), random.randint(1, MOST_STEPS)
        loop = asyncio.get_running_loop()
        found = None
        for changes in ((what,), (USUAL_CHANGE, what)):
            found = await self.trap(
                Trap(changes, steps, keeps_power, self._enemy.can_take, loop.create_future()), ARMED_S / 2
            )
            if found is not None:
                break
        if found is None:
            return
        number, what = found
        self._enemy.take(number)
        end = "kill" if keeps_power else "cut the power of"
        self._enemy.note(fault, f"{what} on {host_of(number)}: {end} it at change {steps} of its disk")
        await self.spring_for(number, keeps_power=keeps_power)
        await self._enemy.down(fault, number)

    async def _fell_coordinator(self, fault: Fault, random: Random) -> None:
        """During a rebalance of its group, the coordinator dies, or is stopped and hands over."""
        what = random.choice(list(REBALANCES))
        number = await self._next(what)
        await asyncio.sleep(random.random() * REBALANCING_S)
        if number is None or not self._enemy.can_take(number) or number not in self._cluster.nodes:
            return
        self._enemy.take(number)
        is_killed = random.random() < 0.5
        self._enemy.note(fault, f"{what} on {host_of(number)}: {'kill' if is_killed else 'stop'} it")
        if is_killed:
            self._cluster.kill(number)
        else:
            await self._cluster.stop(number)
        await self._enemy.down(fault, number)

    async def spring_for(self, number: int, *, keeps_power: bool) -> None:
        """Wait until it is dead: at the armed change, or later if it makes no more changes."""
        machine = self._cluster.machines[number]
        await self._enemy.wait(lambda: not machine.is_running, SPRUNG_S)
        machine.disk.crash_after = None
        if machine.is_running:
            (self._cluster.kill if keeps_power else self._cluster.crash)(number)
        self._cluster.died(number)

    async def _next(self, what: str) -> int | None:
        """The next broker at its moment, among those that may be hit; None: none."""
        try:
            async with asyncio.timeout(ARMED_S):
                while True:
                    waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                    self._waiting.setdefault(what, []).append(waiter)
                    number = await waiter
                    if self._enemy.can_take(number):
                        return number
        except TimeoutError:
            return None

    async def _ambush(self, fault: Fault, random: Random) -> None:
        what = random.choice(list(self._moments))
        number = await self._next(what)
        if number is None:
            what, number = FREQUENT, await self._next(FREQUENT)
        if number is None:
            return
        if random.random() >= AT_ONCE_CHANCE:
            await asyncio.sleep(random.random() * LATE_S)
        victims = [number] if random.random() >= ALL_CHANCE else list(self._cluster.started)
        victims = [victim for victim in victims if self._enemy.is_free(victim)]
        if not victims:
            return
        has_power = fault.kind not in POWER
        end = self._cluster.kill if has_power else self._cluster.crash
        names = ", ".join(map(host_of, victims))
        self._enemy.note(fault, f"{what} on {host_of(number)}: {'kill' if has_power else 'cut the power of'} {names}")
        for victim in victims:
            self._enemy.take(victim)
            end(victim)
        for victim in victims:
            self._enemy.begin(self._enemy.down(fault, victim))
