"""How a broker reaches its controller: in this process, over the wire, through others, and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

import pytest

from penstock.cluster import controller_access
from penstock.cluster.controller import Controller
from penstock.cluster.controller_access import CHANGE_TIMEOUT_S, ControllerAccess
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.requests import HeartbeatAnswer, IsrAnswer, IsrChange, ProducerIdBlock, Registration
from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.model.new_topic import NewTopic
from penstock.sim.machine.world import SimWorld
from penstock.wire.apis import Api
from penstock.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse
from penstock.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from penstock.wire.messages.update_raft_voter import UpdateRaftVoterResponse
from penstock.wire.primitives import Message
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost
from support.worlds.peers import identity

NODE = 1
OTHERS = {2: ("node-2", 9092), 3: ("node-3", 9092)}


class Here:
    """The controller of this process, and all its parts."""

    def __init__(self) -> None:
        self.topics = self.partitions = self.voters = self.registry = self
        self.image = MetadataImage()
        self.is_active = False
        self.failure: Exception | None = None
        self.created: list[str] = []
        self._next = 0

    async def _decide(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def create_topic(self, topic: NewTopic) -> bytes:
        await self._decide()
        self.created.append(topic.name)
        return bytes(16)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        await self._decide()
        self._next += 2
        return ProducerIdBlock(self._next - 2, 2)

    async def alter_partitions(self, *_: object) -> list[IsrAnswer]:
        await self._decide()
        return []

    async def register_broker(self, registration: Registration) -> int:
        await self._decide()
        return 5

    async def heartbeat(self, *_: object) -> HeartbeatAnswer:
        await self._decide()
        return HeartbeatAnswer(True, False, False)


class Quorum:
    leader_id: int | None = None


class Wire:
    """The peer at each address; stands for `broker_link.peer_connection`."""

    def __init__(self) -> None:
        self.answers: dict[Address, Message] = {}
        self.asked: list[tuple[Address, Api]] = []
        self.lines: list[Line] = []

    async def open_to_peer(self, address: tuple[str, int], *_: object) -> Line:
        host, port = address
        await asyncio.sleep(0.001)
        if (host, port) not in self.answers:
            raise BrokerUnreachable(f"{host}:{port}")
        self.lines.append(Line(self, (host, port)))
        return self.lines[-1]


class Line:
    is_usable = True

    def __init__(self, wire: Wire, address: Address) -> None:
        self._wire, self._address = wire, address

    async def call(self, key: Api, request: Message, kind: type[Message], timeout_s: float) -> Message:
        self._wire.asked.append((self._address, key))
        await asyncio.sleep(0.001)
        if self._address not in self._wire.answers:
            self.is_usable = False
            raise ConnectionLost("gone")
        return self._wire.answers[self._address]

    def close(self) -> None:
        self.is_usable = False


class Place:
    def __init__(self, wire: Wire, addresses: Mapping[int, Address], bootstrap: Sequence[Address]) -> None:
        self.here, self.quorum, self.wire = Here(), Quorum(), wire
        self.access = ControllerAccess(
            identity(NODE), self.quorum, cast(Controller, self.here), addresses.get, bootstrap
        )


def play(
    story: Callable[[Place], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    addresses: Mapping[int, Address] = OTHERS,
    bootstrap: Sequence[Address] = (),
) -> None:
    wire = Wire()
    monkeypatch.setattr(controller_access, "open_to_peer", wire.open_to_peer)
    with SimWorld(1) as world:

        async def main() -> None:
            await story(Place(wire, addresses, bootstrap))

        world.run(main(), timeout_s=600)


def created(code: ErrorCode = ErrorCode.NONE) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=code)])


async def create(place: Place) -> None:
    await place.access.create_topic(NewTopic("t", 1, 1))


async def refused(work: Coroutine[Any, Any, object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value


def test_a_controller_in_this_process_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.here.is_active = True
        await create(place)
        assert place.here.created == ["t"]
        assert place.wire.asked == []

    play(story, monkeypatch)


def test_one_elsewhere_is_asked_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.quorum.leader_id = 2
        place.wire.answers[OTHERS[2]] = created()
        await create(place)
        await create(place)
        assert place.wire.asked == [(OTHERS[2], Api.CREATE_TOPICS)] * 2

    play(story, monkeypatch)


def test_a_broken_connection_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.quorum.leader_id = 2
        place.wire.answers[OTHERS[2]] = created()
        await create(place)
        del place.wire.answers[OTHERS[2]]
        asking = asyncio.ensure_future(create(place))
        await asyncio.sleep(1)
        assert not asking.done()
        place.wire.answers[OTHERS[2]] = created()
        await asking

    play(story, monkeypatch)


def test_the_next_controller_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.quorum.leader_id = 2
        asking = asyncio.ensure_future(create(place))
        await asyncio.sleep(1)
        place.quorum.leader_id = 3
        place.wire.answers[OTHERS[3]] = created()
        await asking
        assert place.wire.asked[-1] == (OTHERS[3], Api.CREATE_TOPICS)

    play(story, monkeypatch)


def test_this_node_may_become_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.quorum.leader_id = 2
        asking = asyncio.ensure_future(create(place))
        await asyncio.sleep(1)
        place.quorum.leader_id = NODE
        await asyncio.sleep(0.2)  # elected, and not active yet
        place.here.is_active = True
        await asking
        assert place.here.created == ["t"]

    play(story, monkeypatch)


def test_this_node_may_cease_to_be_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.here.is_active = True
        place.here.failure = ApiError(ErrorCode.NOT_CONTROLLER)
        asking = asyncio.ensure_future(create(place))
        await asyncio.sleep(0.2)
        place.here.is_active = False
        place.quorum.leader_id = 3
        place.wire.answers[OTHERS[3]] = created()
        await asking

    play(story, monkeypatch)


def test_it_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        began_s = asyncio.get_running_loop().time()
        assert (await refused(create(place))).code is ErrorCode.NOT_CONTROLLER
        assert asyncio.get_running_loop().time() - began_s >= CHANGE_TIMEOUT_S

    play(story, monkeypatch)


def test_other_refusals_are_passed_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.quorum.leader_id = 2
        place.wire.answers[OTHERS[2]] = created(ErrorCode.TOPIC_ALREADY_EXISTS)
        assert (await refused(create(place))).code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert len(place.wire.asked) == 1

    play(story, monkeypatch)


@pytest.mark.parametrize("leader", [None, 7])
def test_a_node_that_knows_too_little_asks_those_it_was_told_of(
    monkeypatch: pytest.MonkeyPatch, leader: int | None
) -> None:
    """In turn, as one of them may be down. 7: a leader whose address is not known yet."""

    async def story(place: Place) -> None:
        place.quorum.leader_id = leader
        place.wire.answers[OTHERS[3]] = created()
        await create(place)
        assert place.wire.asked == [(OTHERS[3], Api.CREATE_TOPICS)]

    play(story, monkeypatch, {}, list(OTHERS.values()))


def test_a_full_disk_under_the_controller_is_an_answer_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.here.is_active = True
        place.here.failure = StorageError("the disk is full")
        access = place.access
        registration = Registration(NODE, "", bytes(16), {})
        change = IsrChange(bytes(16), 0, 0, 0, ())
        for work in (
            create(place),
            access.allocate_producer_id(),
            access.alter_partitions([change]),
            access.register(registration),
            access.heartbeat(0, want_fence=False, want_shut_down=False),
        ):
            error = await refused(cast(Coroutine[Any, Any, object], work))
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "the disk is full" in str(error)

    play(story, monkeypatch)


def test_producer_ids_come_out_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(place: Place) -> None:
        place.here.is_active = True
        assert [await place.access.allocate_producer_id() for _ in range(3)] == [0, 1, 2]
        place.here.is_active = False
        place.quorum.leader_id = 2
        place.wire.answers[OTHERS[2]] = AllocateProducerIdsResponse(producer_id_start=100, producer_id_len=10)
        assert [await place.access.allocate_producer_id() for _ in range(3)] == [3, 100, 101]
        assert len(place.wire.asked) == 1

    play(story, monkeypatch)


def test_a_voter_says_where_it_is_over_a_connection_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller looks for it at several addresses meanwhile, and answers nothing else on that connection."""

    async def story(place: Place) -> None:
        place.quorum.leader_id = 2
        place.wire.answers[OTHERS[2]] = created()
        await create(place)
        place.wire.answers[OTHERS[2]] = UpdateRaftVoterResponse()
        await place.access.update_voter("", [("here", 1)])
        (first, second) = place.wire.lines
        assert (first.is_usable, second.is_usable) == (True, False)
        place.wire.answers[OTHERS[2]] = UpdateRaftVoterResponse(error_code=ErrorCode.INVALID_REQUEST)
        assert (await refused(place.access.update_voter("", [("here", 1)]))).code is ErrorCode.INVALID_REQUEST
        del place.wire.answers[OTHERS[2]]
        assert (await refused(place.access.update_voter("", [("here", 1)]))).code is ErrorCode.NOT_CONTROLLER
        assert [line.is_usable for line in place.wire.lines] == [True, False, False], "heartbeats go on"

    play(story, monkeypatch)


def test_a_connection_to_who_is_controller_no_more_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine may be without power: whoever waits for an answer would wait for its whole time."""

    async def story(place: Place) -> None:
        place.quorum.leader_id = 2
        place.wire.answers = dict.fromkeys(OTHERS.values(), created())
        await create(place)
        (line,) = place.wire.lines
        place.access.leader_changed()
        assert line.is_usable, "it is still the same"
        place.quorum.leader_id = None
        place.access.leader_changed()
        assert line.is_usable, "nobody is known to be better"
        place.quorum.leader_id = 3
        place.access.leader_changed()
        assert not line.is_usable
        await create(place)
        assert place.wire.asked == [(OTHERS[2], Api.CREATE_TOPICS), (OTHERS[3], Api.CREATE_TOPICS)]

    play(story, monkeypatch)


def test_isr_changes_and_heartbeats_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node knows more by the next time."""

    async def story(place: Place) -> None:
        began_s = asyncio.get_running_loop().time()
        place.quorum.leader_id = 2
        for work in (
            place.access.alter_partitions([IsrChange(bytes(16), 0, 0, 0, ())]),
            place.access.heartbeat(0, want_fence=False, want_shut_down=False),
        ):
            error = await refused(cast(Coroutine[Any, Any, object], work))
            assert error.code is ErrorCode.NOT_CONTROLLER
        assert asyncio.get_running_loop().time() - began_s < 1

    play(story, monkeypatch)
