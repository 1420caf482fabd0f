"""Markers on their way to the leaders of their partitions: tried until they are there, or are no longer wanted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from penstock.broker_link.peer_requests import PeerRequests
from penstock.coordination import markers
from penstock.coordination.markers import MARKERS_PER_REQUEST, MarkerSender, MarkerTask
from penstock.core.metadata.image import NO_LEADER, MetadataImage
from penstock.core.metadata.records import TopicCreated, TopicDeleted
from penstock.core.txn.exchange import MarkersDue
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

HERE, THERE, FURTHER = 1, 2, 3
T0, T1, T2, U0 = ("t", 0), ("t", 1), ("t", 2), ("u", 0)
Answer = Callable[[Place], ErrorCode]


class Told(asyncio.Event):
    """The coordinator: it hears which partitions have their marker."""

    def __init__(self, *places: Place) -> None:
        super().__init__()
        self.wanted = set(places)
        self.places: list[Place] = []

    def __call__(self, places: frozenset[Place]) -> None:
        self.places += places
        if self.wanted <= set(self.places):
            self.set()

    async def all(self) -> None:
        await asyncio.wait_for(self.wait(), 5)


class Leaders:
    """Brokers 1 (here), 2 and 3: what each is sent, and what it answers to each partition."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[tuple[int, int, bool, int, int, frozenset[Place]]]]] = []
        self.answers: dict[int, list[Answer | Exception]] = {}
        self.gate: asyncio.Event | None = None
        self.in_flight = 0
        self.most_in_flight = 0

    def next_answer(self, broker: int) -> Answer:
        """The last one goes on for ever."""
        given = self.answers.get(broker, [])
        answer = given.pop(0) if len(given) > 1 else (given[0] if given else (lambda place: ErrorCode.NONE))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _wait(self) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self.gate is not None:
            await self.gate.wait()
        else:
            await asyncio.sleep(0)
        self.in_flight -= 1

    # -- LocalPartitions
    async def write(self, due: MarkersDue, coordinator_epoch: int, places: frozenset[Place]) -> dict[Place, ErrorCode]:
        self.sent.append((HERE, [(due.producer_id, due.epoch, due.is_commit, coordinator_epoch, due.version, places)]))
        await self._wait()
        answer = self.next_answer(HERE)
        return {place: answer(place) for place in places}

    # -- PeerRequests
    async def ask(self, broker: int, key: Api, request: WriteTxnMarkersRequest, kind: type, timeout_s: float) -> Any:
        assert (key, kind) == (Api.WRITE_TXN_MARKERS, WriteTxnMarkersResponse)
        asked = [
            (
                one.producer_id,
                one.producer_epoch,
                one.transaction_result,
                one.coordinator_epoch,
                one.transaction_version,
                frozenset((topic.name, index) for topic in one.topics for index in topic.partition_indexes),
            )
            for one in request.markers
        ]
        self.sent.append((broker, asked))
        await self._wait()
        answer = self.next_answer(broker)
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=one.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=answer((topic.name, index))
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in one.topics
                    ],
                )
                for one in request.markers
            ]
        )

    def places_sent_to(self, broker: int) -> list[set[Place]]:
        return [{place for one in asked for place in one[-1]} for to, asked in self.sent if to == broker]


class World:
    def __init__(self) -> None:
        self.image = MetadataImage()
        self.image.replay(TopicCreated("t", (b"t" * 16).hex(), ((HERE,), (THERE,), (FURTHER,))))
        self.image.replay(TopicCreated("u", (b"u" * 16).hex(), ((THERE,),)))
        self.leaders = Leaders()
        self.life = 1
        self.sender = MarkerSender(
            asyncio.get_running_loop(), HERE, self.image, self.leaders, cast(PeerRequests, self.leaders)
        )

    def lead(self, place: Place, leader: int) -> None:
        partitions = self.image.topics[place[0]].partitions
        partitions[place[1]] = replace(partitions[place[1]], leader=leader)

    def send(self, *places: Place, producer_id: int = 7, told: Told | None = None) -> Told:
        told = told or Told(*places)
        due = MarkersDue("id", producer_id, 5, True, 2, frozenset(places))
        life = self.life
        self.sender.send(MarkerTask(due, 11, lambda: self.life == life, told))
        return told


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "RETRY_S", 0.001)
    monkeypatch.setattr(markers, "LONGEST_RETRY_S", 0.004)


def always(code: ErrorCode) -> Answer:
    return lambda place: code


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_each_leader_gets_the_markers_of_its_partitions() -> None:
    world = World()
    told = world.send(T0, T1, T2, U0)
    await told.all()
    marker = (7, 5, True, 11, 2)
    assert sorted(world.leaders.sent) == [
        (HERE, [(*marker, frozenset((T0,)))]),
        (THERE, [(*marker, frozenset((T1, U0)))]),
        (FURTHER, [(*marker, frozenset((T2,)))]),
    ]
    assert sorted(told.places) == [T0, T1, T2, U0]
    await turns()
    assert world.sender.waiting == 0


async def test_markers_for_one_broker_travel_together_and_no_request_overtakes_another() -> None:
    world = World()
    world.leaders.gate = asyncio.Event()
    told = Told(T1, U0)
    world.send(T1, producer_id=1, told=told)
    await turns()
    for producer_id in range(2, 6):
        world.send(T1, U0, producer_id=producer_id, told=told)
    await turns()
    assert len(world.leaders.sent) == 1
    assert world.sender.waiting == 4
    world.leaders.gate.set()
    await told.all()
    await turns()
    assert [[one[0] for one in asked] for _, asked in world.leaders.sent] == [[1], [2, 3, 4, 5]]
    assert len(told.places) == 9
    assert world.leaders.most_in_flight == 1


async def test_one_request_has_so_many_and_no_more() -> None:
    world = World()
    world.leaders.gate = asyncio.Event()
    told = Told()
    for producer_id in range(MARKERS_PER_REQUEST + 3):
        world.send(U0, producer_id=producer_id, told=told)
    world.leaders.gate.set()
    while len(told.places) < MARKERS_PER_REQUEST + 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert [len(asked) for _, asked in world.leaders.sent] == [MARKERS_PER_REQUEST, 3]


@pytest.mark.parametrize(
    "failure",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        BrokerUnreachable("refused"),
        ConnectionLost("reset"),
        RequestTimedOut("no answer"),
    ],
)
async def test_what_was_not_written_is_sent_again(failure: ErrorCode | Exception) -> None:
    world = World()
    refusal = always(failure) if isinstance(failure, ErrorCode) else failure
    world.leaders.answers[THERE] = [refusal] * 3 + [always(ErrorCode.NONE)]
    told = world.send(T0, T1, U0)
    await told.all()
    assert world.leaders.places_sent_to(THERE) == [{T1, U0}] * 4
    assert world.leaders.places_sent_to(HERE) == [{T0}], "what is written is not sent again"
    assert sorted(told.places) == [T0, T1, U0], "and told once"


async def test_of_many_partitions_only_those_that_failed_are_sent_again() -> None:
    world = World()
    world.leaders.answers[THERE] = [
        lambda place: ErrorCode.NOT_ENOUGH_REPLICAS if place == U0 else ErrorCode.NONE,
        always(ErrorCode.NONE),
    ]
    told = world.send(T1, U0)
    await told.all()
    assert world.leaders.places_sent_to(THERE) == [{T1, U0}, {U0}]


async def test_a_partition_that_an_answer_leaves_out_is_sent_again() -> None:
    world = World()
    asked = world.leaders.ask
    answers = iter([WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7)])])

    async def forgetful(*arguments: Any) -> Any:
        complete = await asked(*arguments)
        return next(answers, complete)

    world.leaders.ask = forgetful  # type: ignore[method-assign]
    await world.send(T1).all()
    assert world.leaders.places_sent_to(THERE) == [{T1}, {T1}]


async def test_a_marker_follows_the_leader() -> None:
    world = World()
    world.leaders.answers[THERE] = [always(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    told = world.send(T1)
    while not world.leaders.sent:  # noqa: ASYNC110
        await asyncio.sleep(0)
    world.lead(T1, FURTHER)
    await told.all()
    assert world.leaders.places_sent_to(FURTHER) == [{T1}]
    world.lead(T1, HERE)
    await world.send(T1).all()
    assert world.leaders.places_sent_to(HERE) == [{T1}]


async def test_a_partition_without_a_leader_gets_its_marker_when_it_has_one() -> None:
    world = World()
    world.lead(T1, NO_LEADER)
    told = world.send(T0, T1)
    await asyncio.sleep(0.01)
    assert (told.places, world.sender.waiting) == ([T0], 1)
    world.lead(T1, THERE)
    await told.all()


async def test_a_deleted_topic_needs_no_marker() -> None:
    world = World()
    told = world.send(("nothing", 0), ("t", 9))
    assert sorted(told.places) == [("nothing", 0), ("t", 9)]
    assert world.leaders.sent == []


async def test_a_topic_that_is_deleted_while_its_marker_is_tried_needs_none_any_more() -> None:
    world = World()
    world.leaders.answers[THERE] = [always(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    told = world.send(U0)
    while not world.leaders.sent:  # noqa: ASYNC110
        await asyncio.sleep(0)
    world.image.replay(TopicDeleted((b"u" * 16).hex()))
    await told.all()
    assert told.places == [U0]


@pytest.mark.parametrize("code", sorted(markers.OVER))
async def test_a_marker_that_another_coordinator_has_overtaken_is_let_go(
    code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.coordination.markers")
    world = World()
    world.leaders.answers[THERE] = [always(code)]
    told = world.send(T0, T1)
    await asyncio.sleep(0.02)
    assert told.places == [T0]
    assert (world.leaders.places_sent_to(THERE), world.sender.waiting) == ([{T1}], 0)
    assert [f"the marker for t-1 is refused ({code.name})" in one for one in caplog.messages] == [True]


async def test_nothing_is_sent_for_a_leadership_that_is_over() -> None:
    world = World()
    world.leaders.answers[THERE] = [always(ErrorCode.NOT_ENOUGH_REPLICAS)]
    told = world.send(T1)
    while not world.leaders.sent:  # noqa: ASYNC110
        await asyncio.sleep(0)
    world.life += 1
    sent = len(world.leaders.sent)
    await asyncio.sleep(0.02)
    assert (len(world.leaders.sent), told.places, world.sender.waiting) == (sent, [], 0)
    world.leaders.answers[THERE] = [always(ErrorCode.NONE)]
    await world.send(T1, producer_id=8).all()
    assert [one[0] for _, asked in world.leaders.sent[sent:] for one in asked] == [8]


async def test_what_waits_behind_a_request_is_looked_at_again_before_it_is_sent() -> None:
    world = World()
    world.leaders.gate = asyncio.Event()
    world.send(T1)
    await turns()
    world.send(U0, producer_id=8)
    world.life += 1
    told = world.send(T1, producer_id=9)
    world.leaders.gate.set()
    await told.all()
    assert [[one[0] for one in asked] for _, asked in world.leaders.sent] == [[7], [9]]


async def test_a_broker_that_is_slow_holds_up_no_other() -> None:
    world = World()
    world.leaders.answers[THERE] = [RequestTimedOut("no answer")]
    told = Told()
    for producer_id in range(5):
        world.send(T0, T1, T2, producer_id=producer_id, told=told)
    while len(told.places) < 10:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert set(told.places) == {T0, T2}
    world.leaders.answers[THERE] = [always(ErrorCode.NONE)]
    while len(told.places) < 15:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_after_a_stop_nothing_is_sent() -> None:
    world = World()
    world.leaders.answers[THERE] = [always(ErrorCode.NOT_ENOUGH_REPLICAS)]
    told = world.send(T1)
    while not world.leaders.sent:  # noqa: ASYNC110
        await asyncio.sleep(0)
    world.sender.stop()
    sent = len(world.leaders.sent)
    world.send(T0, U0)
    await asyncio.sleep(0.02)
    assert (len(world.leaders.sent), told.places) == (sent, [])
    assert world.sender.waiting == 0


@pytest.mark.parametrize("broker", [HERE, THERE])
async def test_a_defect_loses_no_marker(broker: int) -> None:
    world = World()
    world.leaders.answers[broker] = [KeyError("a defect"), always(ErrorCode.NONE)]
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    told = Told(T0, T1, U0)
    world.send(T0, producer_id=0, told=told)
    world.send(T1, producer_id=1, told=told)
    world.send(U0, producer_id=2, told=told)
    await told.all()
    assert sorted(told.places) == [T0, T1, U0]


async def test_an_answer_that_is_too_short_is_no_answer() -> None:
    """A marker that counted already would come again, perhaps into the next transaction."""
    world = World()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    ask, is_short = world.leaders.ask, True

    async def cut(*asked: Any) -> Any:
        nonlocal is_short
        answer = await ask(*asked)
        if is_short:
            is_short = False
            answer.markers.pop()
        return answer

    world.leaders.ask = cut  # type: ignore[method-assign]
    told = Told(T1, U0)
    world.send(T1, producer_id=1, told=told)
    world.send(U0, producer_id=2, told=told)
    await told.all()
    assert sorted(told.places) == [T1, U0]
