"""An operator who changes the cluster now and then: topics come, grow and go, settings change, replicas move.

Only topics of its own are deleted; topics that others write to keep their name and what they hold. What a broker does
not serve (yet) is counted and left. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.history import AdminAction, History, Outcome, Place
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.wire.apis import Api
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from penstock.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire_client.requests.errors import check

TIMEOUT_MS = 1000
RETRY_S = 0.1
PREFERRED = 0
SET = 0
TOPIC_RESOURCE = 2
REPLICAS = (1, 2, 3, 3, 3)
CANCEL_CHANCE = 0.3
LONGEST_CATCHING_UP_S = 0.1
SEGMENT_BYTES = "internal.segment.bytes"
# Said before anything was decided.
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
        """`brokers`: also those that may join later; `fewest_replicas` of a topic: below that it is not brought;
        `not_moved`: topics whose replicas are somebody else's business."""
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
        """Again and again, until it is acknowledged, or refused where an earlier try may have done it."""
        may_be_done = False
        while not await do():
            outcome = self._history.admin[-1].outcome
            if outcome is Outcome.REFUSED and may_be_done:
                return
            may_be_done = may_be_done or outcome is Outcome.UNKNOWN
            await self._caller.pause(RETRY_S)

    # -- topics -------------------------------------------------------------------------

    async def create(self, name: str, partitions: int, settings: dict[str, str]) -> bool:
        action = self._history.begin_admin("create", name, value=str(partitions))
        return await self.act(action, self._ask_to_create(name, partitions, settings))

    async def _ask_to_create(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        wanted = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(), Api.CREATE_TOPICS, request, CreateTopicsResponse, purpose="admin"
        )
        check(answer.topics[0].error_code, answer.topics[0].error_message)

    async def _create(self) -> None:
        name = f"scratch-{self._made}"
        self._made += 1
        self._own[name] = self._caller.random.randint(1, 2)
        await self.create(name, self._own[name], {})

    async def _delete(self) -> None:
        if not self._own:
            return
        name = self._caller.random.choice(list(self._own))
        self._own.pop(name)
        await self.delete(name)

    async def delete(self, name: str) -> bool:
        return await self.act(self._history.begin_admin("delete", name), self._ask_to_delete(name))

    async def _ask_to_delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(), Api.DELETE_TOPICS, request, DeleteTopicsResponse, purpose="admin"
        )
        check(answer.responses[0].error_code, answer.responses[0].error_message)

    async def _grow(self) -> None:
        if not self._own:
            return
        name = self._caller.random.choice(list(self._own))
        self._own[name] += 1
        action = self._history.begin_admin("grow", name, value=str(self._own[name]))
        await self.act(action, self._ask_to_grow(name, self._own[name]))

    async def _ask_to_grow(self, name: str, count: int) -> None:
        wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(), Api.CREATE_PARTITIONS, request, CreatePartitionsResponse, purpose="admin"
        )
        check(answer.results[0].error_code, answer.results[0].error_message)

    # -- replicas -----------------------------------------------------------------------

    async def _reassign(self) -> None:
        """To any brokers; now and then it is called off while replicas still catch up."""
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
        """To so many brokers, any ones; not to fewer than it may have."""
        count = max(self._fewest(place.topic), count)
        replicas = self._caller.random.sample(self._brokers, min(count, len(self._brokers)))
        action = self._history.begin_admin("reassign", place.topic, str(place.partition), ",".join(map(str, replicas)))
        return await self.act(action, self._ask_to_reassign(place, replicas))

    async def _partition(self) -> Place | None:
        """Of a topic with data, those of groups among them; None: nobody says what there is."""
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
        partition = ReassignablePartition(partition_index=place.partition, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS, topics=[ReassignableTopic(name=place.topic, partitions=[partition])]
        )
        answer = await self._caller.ask(
            self._caller.any_address(),
            Api.ALTER_PARTITION_REASSIGNMENTS,
            request,
            AlterPartitionReassignmentsResponse,
            purpose="admin",
        )
        check(answer.error_code, answer.error_message)
        for entry in answer.responses:
            for result in entry.partitions:
                check(result.error_code, result.error_message)

    async def _elect(self) -> None:
        action = self._history.begin_admin("elect", "")
        await self.act(action, self._ask_to_elect())

    async def _ask_to_elect(self) -> None:
        request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=TIMEOUT_MS)
        answer = await self._caller.ask(
            self._caller.any_address(), Api.ELECT_LEADERS, request, ElectLeadersResponse, purpose="admin"
        )
        check(answer.error_code)

    # -- settings -----------------------------------------------------------------------

    async def _configure(self) -> None:
        topic = self._caller.random.choice(self._topics)
        size = self._caller.random.choice((4 << 10, 16 << 10, 64 << 10))
        action = self._history.begin_admin("configure", topic, SEGMENT_BYTES, str(size))
        await self.act(action, self._ask_to_configure(topic, SEGMENT_BYTES, str(size)))

    async def configure(self, topic: str, name: str, value: str) -> None:
        """Again and again, until it is acknowledged."""
        await self.until_told(lambda: self._set(topic, name, value))

    async def _set(self, topic: str, name: str, value: str) -> bool:
        action = self._history.begin_admin("configure", topic, name, value)
        return await self.act(action, self._ask_to_configure(topic, name, value))

    async def _ask_to_configure(self, topic: str, name: str, value: str) -> None:
        resource = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=topic,
            configs=[AlterableConfig(name=name, config_operation=SET, value=value)],
        )
        answer = await self._caller.ask(
            self._caller.any_address(),
            Api.INCREMENTAL_ALTER_CONFIGS,
            IncrementalAlterConfigsRequest(resources=[resource]),
            IncrementalAlterConfigsResponse,
            purpose="admin",
        )
        check(answer.responses[0].error_code, answer.responses[0].error_message)
