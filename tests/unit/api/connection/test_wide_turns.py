"""Wide work a step a turn, and wide messages freed likewise."""

from __future__ import annotations

import asyncio
import weakref
from itertools import pairwise

import pytest

from penstock.api.turns import FREED_PER_TURN, Turns
from penstock.wire.codec import encode_response, response_steps
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse

ITEMS = 3 * FREED_PER_TURN + 1


class _Watched(FetchPartition):
    """One whose end can be seen. By identity: messages are compared by value."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


def _wide_request() -> tuple[FetchRequest, weakref.WeakSet[_Watched]]:
    partitions = [_Watched(partition=index) for index in range(ITEMS)]
    alive = weakref.WeakSet[_Watched]()
    alive.update(partitions)
    return FetchRequest(topics=[FetchTopic(topic="t", partitions=[*partitions])]), alive


async def test_a_wide_message_is_freed_some_items_a_turn() -> None:
    turns = Turns()
    request, alive = _wide_request()
    turns.let_go(request)
    del request
    left = [len(alive)]
    while left[-1]:
        await asyncio.sleep(0)
        left.append(len(alive))
    assert left[0] == ITEMS
    assert all(before - after <= FREED_PER_TURN for before, after in pairwise(left))


async def test_what_somebody_else_holds_stays_whole() -> None:
    turns = Turns()
    request, _ = _wide_request()
    kept = request.topics[0].partitions
    turns.let_go(request)
    del request
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(kept) == ITEMS


@pytest.mark.parametrize(("topics", "partitions"), [(2000, 5), (300, 100), (3, 3000)])
async def test_arrays_within_arrays_are_freed_some_items_a_turn(topics: int, partitions: int) -> None:
    turns = Turns()
    alive = weakref.WeakSet[_Watched]()
    request = FetchRequest(topics=[])
    for number in range(topics):
        watched = [_Watched(partition=index) for index in range(partitions)]
        alive.update(watched)
        request.topics.append(FetchTopic(topic=str(number), partitions=[*watched]))
    del watched
    turns.let_go(request)
    del request
    left = [len(alive)]
    while left[-1]:
        await asyncio.sleep(0)
        left.append(len(alive))
    assert left[0] == topics * partitions
    most = 2 * FREED_PER_TURN
    assert all(before - after <= most for before, after in pairwise(left))


async def test_a_small_item_that_somebody_holds_stays_whole() -> None:
    turns = Turns()
    request = FetchRequest(topics=[FetchTopic(topic=str(at), partitions=[FetchPartition()]) for at in range(500)])
    kept = request.topics[250]
    turns.let_go(request)
    del request
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(kept.partitions) == 1


async def test_a_message_without_arrays_takes_no_turn() -> None:
    turns = Turns()
    turns.let_go(FetchRequest())
    await asyncio.sleep(0)
    assert turns.taken == 0


def test_the_last_step_of_an_answer_has_little_left_to_join() -> None:
    """A hundred thousand parts that were joined at the end took milliseconds."""
    message = FindCoordinatorResponse(
        coordinators=[Coordinator(key=str(at), node_id=1, host="localhost", port=9092) for at in range(5000)]
    )
    steps = response_steps(10, 4, 1, message)
    most = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            parts = done.value[0]
            break
        assert steps.gi_frame is not None
        most = max(most, len(steps.gi_frame.f_locals["parts"]))
    assert most < 100
    assert b"".join(parts) == b"".join(encode_response(10, 4, 1, message)[0])  # type: ignore[arg-type]
