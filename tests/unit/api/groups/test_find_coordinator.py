"""FindCoordinator in a cluster: the leader of the group's partition, at the address for whoever asks."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.handlers.find_coordinator import FindCoordinatorHandler, KeyType
from penstock.api.turns import Pace, Turns
from penstock.coordination.groups import GroupCoordinator
from penstock.coordination.transactions import TransactionCoordinator
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse


class Leaders:
    """The coordinator of each group, or transactional id, by name."""

    def __init__(self, leaders: dict[str, int]) -> None:
        self._leaders = leaders
        self.refusal: ApiError | None = None

    async def ensure_topic(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def leader_of(self, group_id: str) -> int | None:
        return self._leaders.get(group_id)


class Addresses:
    def endpoint_of(self, broker_id: int, ctx: RequestContext) -> tuple[str, int] | None:
        return None if broker_id == 9 else (f"broker-{broker_id}", 9092)


class Context:
    def __init__(self, version: int) -> None:
        self.version = version
        self.pace = Pace(Turns())


async def ask(leaders: Leaders, version: int, *keys: str, key_type: KeyType = KeyType.GROUP) -> FindCoordinatorResponse:
    """Only the coordinator of this type knows anybody."""
    known = {KeyType.GROUP: Leaders({}), KeyType.TRANSACTION: Leaders({}), key_type: leaders}
    handler = FindCoordinatorHandler(
        cast(ClusterView, Addresses()),
        cast(GroupCoordinator, known[KeyType.GROUP]),
        cast(TransactionCoordinator, known[KeyType.TRANSACTION]),
    )
    request = FindCoordinatorRequest(key=keys[0], coordinator_keys=list(keys), key_type=key_type)
    return await handler.handle(cast(RequestContext, Context(version)), request)


@pytest.mark.parametrize("key_type", [KeyType.GROUP, KeyType.TRANSACTION])
async def test_each_key_has_its_own_coordinator(key_type: KeyType) -> None:
    answer = await ask(Leaders({"a": 1, "b": 3, "far": 9}), 6, "a", "b", "far", "orphan", key_type=key_type)
    assert [(one.key, one.node_id, one.host, one.error_code) for one in answer.coordinators] == [
        ("a", 1, "broker-1", ErrorCode.NONE),
        ("b", 3, "broker-3", ErrorCode.NONE),
        ("far", -1, "", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("orphan", -1, "", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]


async def test_before_many_keys_the_answer_is_about_one() -> None:
    answer = await ask(Leaders({"b": 3}), 3, "b")
    assert (answer.node_id, answer.host, answer.port, answer.error_code) == (3, "broker-3", 9092, ErrorCode.NONE)
    answer = await ask(Leaders({}), 3, "b")
    assert (answer.node_id, answer.error_code) == (-1, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert answer.error_message


@pytest.mark.parametrize(("key_type", "noun"), [(KeyType.GROUP, "group"), (KeyType.TRANSACTION, "transactional id")])
async def test_the_reason_names_what_was_asked_for(key_type: KeyType, noun: str) -> None:
    answer = await ask(Leaders({"far": 9}), 6, "far", "orphan", key_type=key_type)
    assert [one.error_message for one in answer.coordinators] == [
        f"The partition of this {noun} is led by broker 9, which is not up.",
        f"The partition of this {noun} has no leader.",
    ]


@pytest.mark.parametrize("key_type", [KeyType.GROUP, KeyType.TRANSACTION])
async def test_a_topic_that_cannot_be_created_yet_is_a_reason_to_come_back(key_type: KeyType) -> None:
    leaders = Leaders({})
    leaders.refusal = ApiError(ErrorCode.NOT_CONTROLLER, "no controller is known")
    with pytest.raises(ApiError) as refused:
        await ask(leaders, 6, "a", key_type=key_type)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
