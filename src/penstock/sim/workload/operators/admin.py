"""An operator who changes the cluster now and then: creates, grows and deletes topics, changes settings, moves
replicas.

Only the operator's own topics are deleted; topics of other clients keep their name and content. Requests that a broker
does not serve (yet) are counted and skipped. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.sim.judges.history import AdminAction, History, Outcome, Place
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.wire.apis import Api
from penstock.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from penstock.wire.messages.create_partitions import CreatePartitionsResponse
from penstock.wire.messages.create_topics import CreateTopicsResponse
from penstock.wire.messages.delete_topics import DeleteTopicsResponse
from penstock.wire.messages.elect_leaders import ElectLeadersResponse
from penstock.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from penstock.wire_client.requests.configs import TOPIC, alter_configs_request, check_altered
from penstock.wire_client.requests.errors import check
from penstock.wire_client.requests.replicas import elect_request, read_elected, read_reassigned, reassign_request
from penstock.wire_client.requests.topics import (
    check_deleted,
    check_grown,
    create_topic_request,
    delete_topic_request,
    grow_topic_request,
    read_created,
)

TIMEOUT_MS = 1000
RETRY_S = 0.1
REPLICAS = (1, 2, 3, 3, 3)
CANCEL_CHANCE = 0.3
LONGEST_CATCHING_UP_S = 0.1
SEGMENT_BYTES = "internal.segment.bytes"
# Errors that are answered before anything was decided.
DECIDED_AGAINST = frozenset(
    (
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    )
)


class Operator:
    def __init__(
        self,
        caller: Caller,
        history: History,
        topics: Sequence[str],
        brokers: Sequence[int],
        fewest_replicas: Callable[[str], int] = lambda _: 1,
        not_moved: Sequence[str] = (),
    ) -> None:
        """`brokers` includes those that may join later; `fewest_replicas` of a topic: its lower limit;
        `not_moved`: topics whose replicas another client moves."""
        self._caller = caller
        self._history = history
        self._topics = list(topics)
        self._brokers = list(brokers)
        self._fewest = fewest_replicas
        self._not_moved = frozenset(not_moved)
        self._own: dict[str, int] = {}
        self._moved: list[Place] = []
        self._made = 0

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        actions: list[Callable[[], Awaitable[None]]] = [
            self._create,
            self._delete,
            self._grow,
            self._reassign,
            self._reassign,
            self._cancel,
            self._elect,
            self._configure,
        ]
        while not is_over():
            await self._caller.pause(pause_s)
            await self._caller.random.choice(actions)()

    async def act(self, action: AdminAction, work: Awaitable[None]) -> bool:
        try:
            await work
        except TROUBLE as error:
            self._caller.note(error)
            is_refused = isinstance(error, ApiError) and error.code in DECIDED_AGAINST
            self._history.end_admin(action, Outcome.REFUSED if is_refused else Outcome.UNKNOWN, str(error))
            return False
        self._history.end_admin(action, Outcome.ACKNOWLEDGED)
        return True

    async def until_told(self, do: Callable[[], Awaitable[bool]]) -> None:
        """Repeat until it is acknowledged, or refused because an earlier try may have done it."""
        may_be_done = False
        while not await do():
            outcome = self._history.admin[-1].outcome
            if outcome is Outcome.REFUSED and may_be_done:
                return
            may_be_done = may_be_done or outcome is Outcome.UNKNOWN
            await self._caller.pause(RETRY_S)

    # -- topics -------------------------------------------------------------------------

    async def create(self, topic: NewTopic) -> bool:
        action = self._history.begin_admin("create", topic.name, value=str(topic.partitions))
        return await self.act(action, self._ask_to_create(topic))

    async def _ask_to_create(self, topic: NewTopic) -> None:
        request = create_topic_request(topic, TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(), Api.CREATE_TOPICS, request, CreateTopicsResponse, purpose="admin"
        )
        read_created(answer)

    async def _create(self) -> None:
        name = f"scratch-{self._made}"
        self._made += 1
        self._own[name] = self._caller.random.randint(1, 2)
        await self.create(NewTopic(name, self._own[name]))

    async def _delete(self) -> None:
        if not self._own:
            return
        name = self._caller.random.choice(list(self._own))
        self._own.pop(name)
        await self.delete(name)

    async def delete(self, name: str) -> bool:
        return await self.act(self._history.begin_admin("delete", name), self._ask_to_delete(name))

    async def _ask_to_delete(self, name: str) -> None:
        request = delete_topic_request(name, TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(), Api.DELETE_TOPICS, request, DeleteTopicsResponse, purpose="admin"
        )
        check_deleted(answer)

    async def _grow(self) -> None:
        if not self._own:
            return
        name = self._caller.random.choice(list(self._own))
        self._own[name] += 1
        action = self._history.begin_admin("grow", name, value=str(self._own[name]))
        await self.act(action, self._ask_to_grow(name, self._own[name]))

    async def _ask_to_grow(self, name: str, count: int) -> None:
        request = grow_topic_request(name, count, TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(), Api.CREATE_PARTITIONS, request, CreatePartitionsResponse, purpose="admin"
        )
        check_grown(answer)

    # -- replicas -----------------------------------------------------------------------

    async def _reassign(self) -> None:
        """Reassign a partition to any brokers; sometimes cancel it while replicas still catch up."""
        random = self._caller.random
        place = await self._partition()
        if place is None:
            return
        self._moved.append(place)
        await self.move(place, random.choice(REPLICAS))
        if random.random() < CANCEL_CHANCE:
            await self._caller.pause(random.uniform(0.0, LONGEST_CATCHING_UP_S))
            await self._call_off(place)

    async def move(self, place: Place, count: int) -> bool:
        """Move the partition to this many random brokers; not fewer than allowed."""
        count = max(self._fewest(place.topic), count)
        replicas = self._caller.random.sample(self._brokers, min(count, len(self._brokers)))
        action = self._history.begin_admin("reassign", place.topic, str(place.partition), ",".join(map(str, replicas)))
        return await self.act(action, self._ask_to_reassign(place, replicas))

    async def _partition(self) -> Place | None:
        """A partition of a topic with data, including those of groups; None: no broker answers."""
        try:
            await self._caller.refresh()
        except TROUBLE as error:
            self._caller.note(error)
            return None
        others = [name for name in self._caller.topics if name not in self._own and name not in self._not_moved]
        topic = self._caller.random.choice(others)
        return Place(topic, self._caller.random.randrange(self._caller.topics[topic]))

    async def _cancel(self) -> None:
        if self._moved:
            await self._call_off(self._caller.random.choice(self._moved))

    async def _call_off(self, place: Place) -> None:
        action = self._history.begin_admin("reassign", place.topic, str(place.partition))
        await self.act(action, self._ask_to_reassign(place, None))

    async def _ask_to_reassign(self, place: Place, replicas: list[int] | None) -> None:
        request = reassign_request({place: replicas}, TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(),
            Api.ALTER_PARTITION_REASSIGNMENTS,
            request,
            AlterPartitionReassignmentsResponse,
            purpose="admin",
        )
        for verdict in read_reassigned(answer):
            check(verdict.code, verdict.message)

    async def _elect(self) -> None:
        action = self._history.begin_admin("elect", "")
        await self.act(action, self._ask_to_elect())

    async def _ask_to_elect(self) -> None:
        request = elect_request(None, TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(), Api.ELECT_LEADERS, request, ElectLeadersResponse, purpose="admin"
        )
        read_elected(answer)

    # -- settings -----------------------------------------------------------------------

    async def _configure(self) -> None:
        topic = self._caller.random.choice(self._topics)
        size = self._caller.random.choice((4 << 10, 16 << 10, 64 << 10))
        action = self._history.begin_admin("configure", topic, SEGMENT_BYTES, str(size))
        await self.act(action, self._ask_to_configure(topic, SEGMENT_BYTES, str(size)))

    async def configure(self, topic: str, name: str, value: str) -> None:
        """Repeat until it is acknowledged."""
        await self.until_told(lambda: self._set(topic, name, value))

    async def _set(self, topic: str, name: str, value: str) -> bool:
        action = self._history.begin_admin("configure", topic, name, value)
        return await self.act(action, self._ask_to_configure(topic, name, value))

    async def _ask_to_configure(self, topic: str, name: str, value: str) -> None:
        answer = await self._caller.ask(
            self._caller.any_address(),
            Api.INCREMENTAL_ALTER_CONFIGS,
            alter_configs_request(TOPIC, topic, {name: value}),
            IncrementalAlterConfigsResponse,
            purpose="admin",
        )
        check_altered(answer)
