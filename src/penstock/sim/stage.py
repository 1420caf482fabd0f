"""The stage of a history: the world, its cluster and watch, clients, and their history.

Must not know: what is done there, and in which order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from penstock.sim.cluster import SimCluster
from penstock.sim.faults.nemesis import Nemesis
from penstock.sim.faults.plan import UNSOUND
from penstock.sim.judges.history import History, Outcome, Place, Violation
from penstock.sim.judges.judging import PROGRESS
from penstock.sim.judges.transactions import TransactionHistory
from penstock.sim.judges.watch import Watch
from penstock.sim.machine.world import SimWorld
from penstock.sim.plan import MIN_INSYNC_REPLICAS, Plan
from penstock.sim.tuning import Tuning
from penstock.sim.workload.caller import Caller
from penstock.sim.workload.operators.admin import Operator
from penstock.sim.workload.operators.tuner import BROKERS, Tuner
from penstock.sim.workload.operators.voters import VoterOperator
from penstock.sim.workload.reading.readers import WITH_HOLES, Reader
from penstock.sim.workload.writers.early import EarlyWriter
from penstock.sim.workload.writers.producers import IdempotentLane
from penstock.sim.workload.writers.reborn import Reborn
from penstock.sim.workload.writers.unclean import UNCLEAN

PROGRESS_WITHIN_S = 120.0
"""Virtual time for each demand on a healed cluster."""
CONTROLLER = "a healed quorum has a controller"
KEYED = Place("keyed", 0)
SCRUBBED_S = 2.0
VOTED_WITHIN_S = 6.0


class Stage:
    """Also the operators of faults (`faults.enemy.Operators`), with clients of its own."""

    def __init__(self, plan: Plan, world: SimWorld) -> None:
        self.plan = plan
        self.world = world
        self.history = History(world.loop.time)
        self.cluster = SimCluster(world, plan.nodes, joins=plan.joins, settings=plan.settings)
        self.watch = Watch(self.cluster)
        self.nemesis = Nemesis(
            self.cluster, plan.seed, self.watch, self, plan.max_down, has_voter_changes=plan.has_voter_changes
        )
        self.keyed = History(world.loop.time)
        """The history of the compacted topic."""
        self.trimmed = History(world.loop.time)
        """The history of the topic whose oldest records are deleted."""
        self.votes = History(world.loop.time)
        """The history of changes of voters."""
        self.unclean = History(world.loop.time)
        """The history of the topic that may lose records."""
        self.tuned = History(world.loop.time)
        """Of settings."""
        self.rows = History(world.loop.time)
        """The history of the transactional producers."""
        self.transactions = TransactionHistory(world.loop.time)
        self.transactions.on_begun = self.watch.transactions.markers.begun
        self.transactions.may_not_know = self.watch.may_not_know
        self.early: list[EarlyWriter] = []
        self.reborn: Reborn | None = None
        self.is_over = False
        self._callers: list[Caller] = []

    @property
    def troubles(self) -> Counter[str]:
        return sum((caller.counts for caller in self._callers), Counter())

    def settings_changed(self) -> Counter[str]:
        """By name; broker settings with that prefix."""
        return Counter(
            f"broker {action.key}" if action.topic.startswith(BROKERS) else action.key
            for action in (*self.history.admin, *self.tuned.admin)
            if action.verb == "configure" and action.outcome is Outcome.ACKNOWLEDGED
        )

    def caller(self, name: str, patience_s: float = 1.5) -> Caller:
        caller = Caller(self.cluster.addresses, name, self.world.random(f"client {name}"), patience_s)
        self._callers.append(caller)
        if self.reborn is not None:
            self.reborn.introduce(caller)
        return caller

    def lane(self, caller: Caller, history: History, place: Place) -> IdempotentLane:
        return IdempotentLane(caller, history, place, self.now_ms, self.plan.forgotten_after_s)

    def _client(self, name: str) -> str:
        """The machine a client runs on; several clients share one."""
        return f"client-{1 + self.world.random(f'host of {name}').randrange(3)}"

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        outcome = self.world.spawn(self._client(name), work)
        outcome.add_done_callback(self.ended, context=self.world.context)
        return outcome

    def ended(self, outcome: asyncio.Future[None]) -> None:
        if not outcome.cancelled() and (error := outcome.exception()) is not None:
            assert isinstance(error, Exception)
            self.watch.failed(error)

    def voter_operator(self, name: str) -> VoterOperator:
        nodes = dict(zip(self.cluster.ids, self.cluster.addresses, strict=True))
        return VoterOperator(self.caller(name), self.votes, nodes)

    @asynccontextmanager
    async def replacing(self, number: int) -> AsyncIterator[None]:
        """As in docs/cluster.md: its vote is removed before it returns, and added when it has caught up."""
        voters = self.cluster.voters
        operator = self.voter_operator(f"replacer of {number}")
        if number in voters:
            await self.within(f"taking the vote of {number}", operator.settle([one for one in voters if one != number]))
        yield
        if number in voters:
            await self.within(f"giving a vote to {number}", operator.settle(voters))

    async def vote(self, verb: str, voter: int, way: int) -> None:
        nodes = dict(zip(self.cluster.ids, self.cluster.addresses, strict=True))
        caller = self.caller(f"{verb} {voter}", patience_s=VOTED_WITHIN_S)
        await VoterOperator(caller, self.votes, nodes).ask(verb, voter, way)

    async def settle(self) -> None:
        await self.within("the first voters", self.voter_operator("settler").settle(self.cluster.voters))

    async def configure(self, topic: str, name: str, value: str | None) -> None:
        """None: the planned value."""
        planned = next((plan.settings for plan in self.plan.topics if plan.name == topic), {})
        usual = {MIN_INSYNC_REPLICAS: str(min(2, self.plan.nodes))}
        operator = Operator(self.caller("settler"), self.tuned, [], self.cluster.ids)
        told = operator.configure(topic, name, value or planned.get(name, usual.get(name, "")))
        await self.within(f"a setting of {topic}", told)

    async def move_compacted(self, count: int) -> None:
        history = self.tuned if self.plan.has_tuner else self.history
        operator = Operator(self.caller("mover"), history, [], self.cluster.ids, self._fewest_replicas)
        await self.within("moving replicas", operator.until_told(lambda: operator.move(KEYED, count)))

    def come_early(self, number: int) -> EarlyWriter:
        others = [other for other in self.cluster.voters if other != number]
        place = Place(f"early-{len(self.early)}", 0)
        caller = self.caller(f"early-{number}")
        caller.bootstrap(self.cluster.addresses[other - 1] for other in others)
        lane = self.lane(caller, self.history, place)
        self.early.append(EarlyWriter(caller, self.history, lane, [number, *others[:2]], self.plan.topics[0].settings))
        return self.early[-1]

    async def read_replica(self, number: int) -> None:
        """Everything that this broker has, from the start."""
        caller, time = self.caller(f"scrubber of {number}", patience_s=0.5), self.world.loop.time
        readers = [Reader(caller, self.history, self.plan.places, lambda *_: number)]
        if self.plan.is_compacting:
            readers.append(Reader(caller, self.keyed, [KEYED], lambda *_: number, WITH_HOLES))
        ends_s = time() + SCRUBBED_S
        await asyncio.gather(*(reader.run(lambda: time() >= ends_s, 0.01) for reader in readers))

    def tuner(self, tuning: Tuning) -> Tuner:
        nodes = dict(zip(self.cluster.ids, self.cluster.addresses, strict=True))
        mover = Operator(self.caller("mover"), self.tuned, [], self.cluster.ids, self._fewest_replicas)
        return Tuner(self.caller("tuner"), self.tuned, tuning, nodes, mover, KEYED if self.plan.is_compacting else None)

    def operator(self) -> Operator:
        names = [topic.name for topic in self.plan.topics]
        not_moved = [UNCLEAN.topic, *([KEYED.topic] if self.plan.has_tuner else [])]
        caller = self.caller("operator")
        return Operator(caller, self.history, names, self.cluster.ids, self._fewest_replicas, not_moved)

    def _fewest_replicas(self, topic: str) -> int:
        """With fewer replicas acks=all would always be refused; if one may rot or lose unflushed data, one more."""
        settings = next((plan.settings for plan in self.plan.topics if plan.name == topic), {})
        least = int(settings.get(MIN_INSYNC_REPLICAS, min(2, self.plan.nodes)))
        is_one_unsound = any(fault.kind in UNSOUND for fault in self.plan.faults)
        return min(least + is_one_unsound, self.plan.nodes)

    def has_ended(self) -> bool:
        return self.is_over

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(self.world.loop.time() * 1000)

    async def within(self, what: str, work: Any, limit_s: float = PROGRESS_WITHIN_S) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await work
        except TimeoutError:
            story = "; ".join(self.watch.ailments()[:5]) or "the cluster is well"
            troubles = ", ".join(f"{name} {count}" for name, count in self.troubles.most_common(6))
            raise Violation(
                PROGRESS if self.watch.controller() is not None else CONTROLLER,
                f"{what}: not done within {limit_s:g} s; {story}; clients met: {troubles or 'nothing'}",
            ) from None
