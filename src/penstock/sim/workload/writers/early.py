"""A producer whose first batches come to a new topic while its leader learns of it.

It sends several batches one after the other, so that all are in flight before the first answer. If the first is refused
because the leader does not lead yet, the ones behind it must be refused too: otherwise it could never be stored.
Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from penstock.model.addresses import Address
from penstock.model.new_topic import NewTopic
from penstock.sim.judges.history import History, Place
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.operators.admin import Operator
from penstock.sim.workload.writers.producers import MAX_IN_FLIGHT, IdempotentLane

GAP_S = 0.02
TRIES = 5


class EarlyWriter:
    def __init__(
        self,
        caller: Caller,
        history: History,
        lane: IdempotentLane,
        replicas: Sequence[int],
        settings: Mapping[str, str],
    ) -> None:
        """`caller` asks other brokers than the leader, which is the first of the `replicas`."""
        self._caller = caller
        self._lane = lane
        self._operator = Operator(caller, history, [], replicas)
        self._leader = replicas[0]
        self._replicas = list(replicas)
        self._settings = dict(settings)
        self.is_there = False
        """Whether the topic exists."""

    @property
    def place(self) -> Place:
        return self._lane.place

    async def prepare(self) -> None:
        await self._lane.introduce()
        try:
            await self._caller.refresh()
            await self._caller.connection(self._address(), self._lane.name)
        except TROUBLE as error:
            self._caller.note(error)

    def _address(self) -> Address:
        return self._caller.address_of(self._leader)

    async def create(self) -> bool:
        topic = self._lane.place.topic
        for _ in range(TRIES):
            await self._operator.create(NewTopic(topic, 1, assignments={0: self._replicas}, configs=self._settings))
            try:
                leader = await self._caller.leader(self._lane.place)
            except TROUBLE as error:
                self._caller.note(error)
            else:
                self.is_there = True
                return leader.node_id == self._leader
        return False

    async def write(self, after_first: Callable[[], Awaitable[None]]) -> None:
        is_first = True

        async def between() -> None:
            nonlocal is_first
            await self._caller.pause(GAP_S)
            if is_first:
                is_first = False
                await after_first()

        self._lane.between = between
        await self._lane.deliver([self._lane.batch() for _ in range(MAX_IN_FLIGHT)])
        self._lane.between = None
