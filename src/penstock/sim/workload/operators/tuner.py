"""An operator who changes settings of topics and brokers under load: any dynamic one, to one of a few values.

Settings that could prevent a history from ending (refused records, throttled replicas, too many required replicas) are
restored at its end. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.history import History, Outcome, Place
from penstock.sim.tuning import CLEANUP_POLICY, CLUSTER_WIDE_ONLY, Tuning, Values
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.operators.admin import SEGMENT_BYTES, Operator
from penstock.wire.apis import Api
from penstock.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from penstock.wire_client.requests.configs import BROKER, TOPIC, alter_configs_request, check_altered

BROKERS = "broker:"
"""Prefix of a broker's number, or alone for all brokers, in the names of a history."""
BROKER_CHANCE = 0.35
TURN_CHANCE = 0.3
COMPACT, DELETE = "compact", "delete"
LEAST_BYTES, MOST_BYTES = "1000", "1048576"
CLEANER_BACKOFF, CLEANED_EVERY_MS = "log.cleaner.backoff.ms", "200"
COMPACTED_S = 1.5
COPIED_S = 0.3
FIRST_CHANCE = 0.3
DELETE_CHANCE = 0.15
RETRY_S = 0.1
DECIDED_AGAINST = frozenset((ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))


class SettingChange(NamedTuple):
    resource: str
    """A topic, or BROKERS with a number or nothing."""
    name: str
    value: str | None
    """None: unset."""


class Tuner:
    def __init__(
        self,
        caller: Caller,
        history: History,
        tuning: Tuning,
        brokers: Mapping[int, Address],
        mover: Operator,
        compacted: Place | None,
    ) -> None:
        """`mover` moves the replicas of the `compacted` topic; no other client does."""
        self._mover = mover
        self._compacted = compacted
        self._has_turned = False
        self._caller = caller
        self._history = history
        self._tuning = tuning
        self._brokers = dict(brokers)
        self._changed: dict[tuple[str, str], None] = {}

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        while not is_over():
            await self._caller.pause(pause_s)
            if self._compacted is not None and not self._has_turned and self._caller.random.random() < TURN_CHANCE:
                self._has_turned = True
                await self._turn(self._compacted, is_over)
            else:
                change = self._draw()
                if change.name != CLEANUP_POLICY or not self._has_turned:
                    await self.change(change)
        await self.put_back()

    async def _turn(self, place: Place, is_over: Callable[[], bool]) -> None:
        """Change the policy from compact to delete, after a replica was added that only copied compacted data."""
        steps: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: self.change(SettingChange(place.topic, SEGMENT_BYTES, LEAST_BYTES)),
            lambda: self.change(SettingChange(BROKERS, CLEANER_BACKOFF, CLEANED_EVERY_MS)),
            lambda: self.change(SettingChange(place.topic, CLEANUP_POLICY, COMPACT)),
            lambda: self._caller.pause(COMPACTED_S),
            lambda: self._mover.move(place, 1),
            lambda: self.change(SettingChange(place.topic, SEGMENT_BYTES, MOST_BYTES)),
            lambda: self._mover.move(place, 3),
            lambda: self._caller.pause(COPIED_S),
            lambda: self.change(SettingChange(place.topic, CLEANUP_POLICY, DELETE)),
            lambda: self._caller.pause(COPIED_S),
        )
        for step in steps:
            if is_over():
                return
            await step()

    async def put_back(self) -> None:
        """Repeat until each is acknowledged."""
        for resource, name in list(self._changed):
            if name == CLEANUP_POLICY and self._has_turned:
                continue  # a compacted log has gaps, so another rule applies from now on
            planned = self._tuning.planned.get(resource, {}).get(name)
            if resource.startswith(BROKERS) and name in CLUSTER_WIDE_ONLY:
                planned = self._tuning.planned[BROKERS][name]  # this setting must not be removed
            while await self.change(SettingChange(resource, name, planned)) is Outcome.UNKNOWN:
                await self._caller.pause(RETRY_S)

    def _draw(self) -> SettingChange:
        random = self._caller.random
        if random.random() < BROKER_CHANCE:
            name, value = self._drawn(self._tuning.brokers)
            number = (
                "" if name in CLUSTER_WIDE_ONLY or random.random() < 0.5 else str(random.choice(list(self._brokers)))
            )
            resource = BROKERS + number
        else:
            topics = self._tuning.topics
            if random.random() < FIRST_CHANCE:
                name = random.choice(
                    [name for name in self._tuning.first if any(name in topics[one] for one in topics)]
                )
                resource = random.choice([topic for topic in topics if name in topics[topic]])
                value = random.choice(topics[resource][name])
            else:
                resource = random.choice(list(topics))
                name, value = self._drawn(topics[resource])
        may_delete = name not in self._tuning.planned.get(resource, {}) and name not in CLUSTER_WIDE_ONLY
        return SettingChange(resource, name, None if may_delete and random.random() < DELETE_CHANCE else value)

    def _drawn(self, values: Mapping[str, Values]) -> tuple[str, str]:
        name = self._caller.random.choice(list(values))
        return name, self._caller.random.choice(values[name])

    async def change(self, change: SettingChange) -> Outcome:
        self._changed[change.resource, change.name] = None
        action = self._history.begin_admin("configure", change.resource, change.name, change.value or "")
        try:
            await self._ask(change)
        except TROUBLE as error:
            self._caller.note(error)
            is_refused = isinstance(error, ApiError) and error.code in DECIDED_AGAINST
            self._history.end_admin(action, Outcome.REFUSED if is_refused else Outcome.UNKNOWN, str(error))
        else:
            self._history.end_admin(action, Outcome.ACKNOWLEDGED)
        return action.outcome

    async def _ask(self, change: SettingChange) -> None:
        is_broker = change.resource.startswith(BROKERS)
        number = change.resource.removeprefix(BROKERS) if is_broker else ""
        kind, name = (BROKER, number) if is_broker else (TOPIC, change.resource)
        if change.value is None:
            request = alter_configs_request(kind, name, {}, [change.name])
        else:
            request = alter_configs_request(kind, name, {change.name: change.value})
        answer = await self._caller.ask(
            self._brokers[int(number)] if number else self._caller.any_address(),  # only this broker knows its own file
            Api.INCREMENTAL_ALTER_CONFIGS,
            request,
            IncrementalAlterConfigsResponse,
            purpose="tune",
        )
        check_altered(answer)
