"""A topic that is deleted and recreated under its name, while it is written and read.

Each incarnation is its own topic in the history, and requests use its topic id: a record written to one and read in
another was inherited. The producer id is the same in all, and its sequence starts at 0 in each. Must not know: faults,
checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from penstock.model.errors import ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.sim.judges.history import History, Outcome, Place
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.operators.admin import TIMEOUT_MS, Operator
from penstock.sim.workload.reading.readers import Reader
from penstock.sim.workload.writers.producers import IdempotentLane
from penstock.wire.apis import Api
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire_client.requests.errors import check

NAME = "reborn"
LONGEST_LIFE_S = 2.5
WRITE_EVERY_S = 0.15
READ_EVERY_S = 0.1
RETRY_S = 0.1
DONE = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)


class Reborn:
    def __init__(
        self,
        caller: Caller,
        history: History,
        operator: Operator,
        now_ms: Callable[[], int],
        settings: Mapping[str, str],
    ) -> None:
        self._caller = caller
        self._history = history
        self._operator = operator
        self._now_ms = now_ms
        self._settings = dict(settings)
        self.lives: dict[Place, bytes] = {}
        """By topic id; the last one is not deleted."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Returns while the last incarnation lives."""
        lane: IdempotentLane | None = None
        while True:
            place = await self._be_born()
            born = IdempotentLane(self._caller, self._history, place, self._now_ms)
            if lane is not None:
                born.producer_id, born.epoch = lane.producer_id, lane.epoch
            lane = born
            if await self._outlives(place, lane, is_over):
                return

    def introduce(self, caller: Caller) -> None:
        for place, topic_id in self.lives.items():
            caller.know_by_id(place.topic, NAME, topic_id)

    async def _be_born(self) -> Place:
        """Repeat until a broker reports a new id."""
        while True:
            await self._operator.create(NewTopic(NAME, 1, configs=self._settings))
            try:
                answer = await self._caller.refresh([NAME])
            except TROUBLE as error:
                self._caller.note(error)
            else:
                topic_id = answer.topics[0].topic_id
                if not answer.topics[0].error_code and topic_id not in self.lives.values():
                    place = Place(f"{NAME}#{len(self.lives)}", 0)
                    self.lives[place] = topic_id
                    self._caller.know_by_id(place.topic, NAME, topic_id)
                    return place
            await self._caller.pause(RETRY_S)

    async def _outlives(self, place: Place, lane: IdempotentLane, is_over: Callable[[], bool]) -> bool:
        is_dead = False

        def is_gone() -> bool:
            return is_dead

        async def die() -> None:
            nonlocal is_dead
            await asyncio.sleep(self._caller.random.uniform(0.2, LONGEST_LIFE_S))
            if not is_over():
                await self._delete(place)
                is_dead = True

        lane.is_gone = is_gone
        reader = Reader(self._caller, self._history, [place])
        works: list[Awaitable[None]] = [
            die(),
            lane.run(lambda: is_dead or is_over(), WRITE_EVERY_S),
            reader.run(lambda: is_dead or is_over(), READ_EVERY_S),
        ]
        await asyncio.gather(*works)
        return not is_dead

    async def _delete(self, place: Place) -> None:
        """Delete by id until it is gone, so that a late request does not hit the next incarnation."""
        action = self._history.begin_admin("delete", NAME)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=self.lives[place])], timeout_ms=TIMEOUT_MS)
        while True:
            try:
                answer = await self._caller.ask(
                    self._caller.any_address(),
                    Api.DELETE_TOPICS,
                    request,
                    DeleteTopicsResponse,
                    purpose="admin",
                    has_topic_ids=True,
                )
                if answer.responses[0].error_code not in DONE:
                    check(answer.responses[0].error_code, answer.responses[0].error_message)
            except TROUBLE as error:
                self._caller.note(error)
                await self._caller.pause(RETRY_S)
            else:
                self._history.end_admin(action, Outcome.ACKNOWLEDGED)
                return
