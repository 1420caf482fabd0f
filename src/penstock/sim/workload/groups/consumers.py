"""Members of a group with the new protocol (KIP-848), which commit like classic members.

The coordinator assigns. A member accepts its assignment, gives up removed partitions at once, and reports that with its
next heartbeat. A member epoch and a partition have at most one owner. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.history import Assigned, History, Place
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.groups.members import AWAY_S, LEAVE_CHANCE, RETRY_S, STAY_CHANCE, Member
from penstock.wire.apis import Api
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.wire_client.requests.errors import check

REBALANCE_TIMEOUT_MS = 5000
LEAVE_EPOCH = -1
AWAY_EPOCH = -2
"""The member epoch of a static member that will return."""
JOIN_EPOCH = 0
# The group continues without this member, or with another incarnation: it no longer owns its partitions.
FENCED = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_INSTANCE_ID))


class ConsumerMember(Member):
    def __init__(
        self, caller: Caller, history: History, group: str, topics: Sequence[str], instance: str | None = None
    ) -> None:
        super().__init__(caller, history, group, topics, instance)
        self._be_new()

    def _be_new(self) -> None:
        super()._be_new()
        self.member_id = f"{self._caller.random.getrandbits(64):016x}"
        self._lose()

    def _lose(self) -> None:
        self.generation = JOIN_EPOCH
        self._next = {}
        self._let_go(self.held)

    async def run(self, is_over: Callable[[], bool], pause_s: float, stay_chance: float = STAY_CHANCE) -> None:
        while not is_over():
            try:
                await self._beat(is_full=True)
                while not is_over() and self._caller.random.random() < stay_chance:
                    await self._commit()
                    await self._beat()
                    await self._caller.pause(pause_s)
                if not is_over():
                    await self._go(LEAVE_CHANCE)
                    await self._caller.pause(AWAY_S)
            except TROUBLE as error:
                self._caller.note(error)
                self._coordinator = None
                if isinstance(error, ApiError) and error.code in FENCED:
                    self._lose()
                await self._caller.pause(RETRY_S)
        await self._end()

    async def _beat(self, *, is_full: bool = False) -> None:
        """While the reply brings other partitions than are owned, report the owned ones again."""
        while True:
            is_full = is_full or self.generation == JOIN_EPOCH
            if is_full:  # a member that does not report its partitions may own any
                self._let_go(place for place in self.held if place not in self._next)
            sent_s = self._history.time()
            answer = await self._ask(self.generation, is_full=is_full)
            self.generation = answer.member_epoch
            self._hold((), sent_s)
            if answer.assignment is None:
                return
            told = await self._places(answer.assignment.topic_partitions)
            self._history.assigned.append(Assigned(self.group, self.generation, self._who, told))
            self._hold(told, sent_s)
            if set(told) == self._next.keys():
                return
            new = [place for place in told if place not in self._next]
            kept = {place: offset for place, offset in self._next.items() if place in told}
            self._next = kept  # removed partitions are given up at once; new ones begin at the group's offset
            self._next = kept | await self.committed(new)
            is_full = True

    async def _ask(self, epoch: int, *, is_full: bool) -> ConsumerGroupHeartbeatResponse:
        owned: dict[bytes, list[int]] = {}
        for place in self._next:
            owned.setdefault(self._caller.leaders[place].topic_id, []).append(place.partition)
        parts = [TopicPartitions(topic_id=topic_id, partitions=indexes) for topic_id, indexes in owned.items()]
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_full else -1,
            subscribed_topic_names=list(self._topics) if is_full else None,
            topic_partitions=parts if is_full else None,
        )
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, self._is_in_doubt or is_full
        answer = await self._caller.ask(
            await self._address(),
            Api.CONSUMER_GROUP_HEARTBEAT,
            request,
            ConsumerGroupHeartbeatResponse,
            purpose=self.group,
        )
        self._is_in_doubt = was_in_doubt
        check(answer.error_code, answer.error_message)
        return answer

    async def _places(self, assigned: Sequence[TopicPartitions]) -> tuple[Place, ...]:
        await self._caller.refresh(self._topics)
        names = {leader.topic_id: place.topic for place, leader in self._caller.leaders.items()}
        return tuple(Place(names[one.topic_id], index) for one in assigned for index in one.partitions)

    async def _leave(self, *, for_good: bool) -> None:
        await self._ask(LEAVE_EPOCH if self.instance is None or for_good else AWAY_EPOCH, is_full=False)
