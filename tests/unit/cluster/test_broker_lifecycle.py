"""A broker's standing: registration, heartbeats, the lease they are, and taking leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from penstock.cluster.broker_lifecycle import (
    LEAVE_TIMEOUT_S,
    NO_CONTROLLER_S,
    READ_TIMEOUT_S,
    UNFENCE_TIMEOUT_S,
    BrokerLifecycle,
)
from penstock.cluster.controller_access import ControllerAccess
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import BrokerChanged, BrokerRegistered
from penstock.core.metadata.requests import HeartbeatAnswer, Registration
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.sim.broker import broker_config
from penstock.sim.machine.clock import SimClock
from penstock.sim.machine.world import SimWorld
from penstock.wire_client.requests.errors import BrokerUnreachable

NODE = 1
SESSION_S = 2.0
HEARTBEAT_S = 0.5
NO_CONTROLLER = ApiError(ErrorCode.NOT_CONTROLLER)


class Controller:
    """The controller as its broker reaches it: what it answers is the test's."""

    def __init__(self, clock: SimClock, image: MetadataImage) -> None:
        self._clock = clock
        self._image = image
        self.broker_epoch = -1
        self.refusal: ApiError | None = None
        self.answer = HeartbeatAnswer(True, False, False)
        self.delay_s = 0.0
        self.registrations = 0
        self.heard_s: list[float] = []
        self.wanted_out = False
        self.is_image_current = True

    async def register(self, registration: Registration) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.registrations += 1
        if self.is_image_current:
            self.tell()
        return 10 * self.registrations

    def tell(self) -> None:
        epoch, endpoints = 10 * self.registrations, {"PLAINTEXT": ("h", 1)}
        self._image.replay(BrokerRegistered(NODE, epoch, "00" * 16, endpoints, None, is_fenced=False))

    async def heartbeat(self, offset: int, *, want_fence: bool, want_shut_down: bool) -> HeartbeatAnswer:
        self.heard_s.append(self._clock.monotonic())
        self.wanted_out = want_shut_down
        await asyncio.sleep(self.delay_s)
        if self.refusal is not None:
            raise self.refusal
        return self.answer

    def leader_changed(self) -> None:
        """There is no connection."""

    def close(self) -> None:
        """Likewise."""


class Quorum:
    last_index = 7
    applied_index = 7
    leader_id: int | None = 2
    failure: Exception | None = None


class Broker:
    """To be made inside `world.run`."""

    def __init__(self, world: SimWorld, **settings: str) -> None:
        self.clock = SimClock(world.loop.time)
        self.image = MetadataImage()
        self.controller = Controller(self.clock, self.image)
        self.quorum = Quorum()
        self.leases_over: list[bool] = []
        """What `may_lead` said whenever it was told that the lease is over."""
        given = {
            "controller.quorum.voters": "1@a:9092,2@b:9092",
            "broker.session.timeout.ms": str(int(SESSION_S * 1000)),
            "broker.heartbeat.interval.ms": str(int(HEARTBEAT_S * 1000)),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.lifecycle = BrokerLifecycle(
            asyncio.get_running_loop(),
            broker_config("node-1", NODE, given),
            cast(ControllerAccess, self.controller),
            self.quorum,
            self.image,
            self.clock,
            Registration(NODE, "", bytes(16), {"PLAINTEXT": ("h", 1)}),
        )

    async def join(self) -> None:
        await self.lifecycle.register()
        self.lifecycle.start(lambda: self.leases_over.append(self.lifecycle.may_lead()))
        await self.lifecycle.unfenced()


def play(story: Callable[[Broker], Coroutine[Any, Any, None]], **settings: str) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            broker = Broker(world, **settings)
            await story(broker)
            await broker.lifecycle.stop()

        world.run(main(), timeout_s=600)


def unanswered() -> ApiError:
    error = ApiError(ErrorCode.NOT_CONTROLLER)
    error.__cause__ = BrokerUnreachable("no connection to h:1: refused")
    return error


def test_a_registration_that_reaches_nobody_names_whom_it_tried(caplog: pytest.LogCaptureFixture) -> None:
    async def story(broker: Broker) -> None:
        broker.controller.refusal = unanswered()
        registering = asyncio.ensure_future(broker.lifecycle.register())
        await asyncio.sleep(12)
        broker.controller.refusal = None
        await registering

    play(story)
    assert "no majority of the voters can be reached (no connection to h:1: refused)" in caplog.text


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ErrorCode.NOT_CONTROLLER, "no majority of the voters can be reached"),
        (ErrorCode.DUPLICATE_BROKER_REGISTRATION, "another broker with this node.id is running"),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "INCONSISTENT_CLUSTER_ID"),
    ],
)
def test_registration_goes_on_asking_and_says_why_it_waits(
    caplog: pytest.LogCaptureFixture, code: ErrorCode, reason: str
) -> None:
    async def story(broker: Broker) -> None:
        broker.controller.refusal = ApiError(code)
        registering = asyncio.ensure_future(broker.lifecycle.register())
        await asyncio.sleep(12)
        assert not registering.done()
        broker.controller.refusal = None
        await registering
        assert broker.lifecycle.epoch == 10

    play(story)
    waits = [record.getMessage() for record in caplog.records if "still waiting to join" in record.getMessage()]
    assert len(waits) == 2, "one sentence in five seconds"
    assert reason in waits[0]


def test_a_broker_is_registered_when_its_own_metadata_says_so() -> None:
    async def story(broker: Broker) -> None:
        broker.controller.is_image_current = False
        registering = asyncio.ensure_future(broker.lifecycle.register())
        await asyncio.sleep(1)
        assert not registering.done()
        broker.controller.tell()
        await registering

    play(story)


def test_a_registration_that_never_shows_is_made_again() -> None:
    async def story(broker: Broker) -> None:
        broker.controller.is_image_current = False  # somebody unregistered it before it could read of itself
        registering = asyncio.ensure_future(broker.lifecycle.register())
        await asyncio.sleep(READ_TIMEOUT_S + 0.1)
        assert broker.controller.registrations == 2
        broker.controller.tell()
        await registering
        assert broker.lifecycle.epoch == 20

    play(story)


@pytest.mark.parametrize(
    ("last_index", "leader_id", "reason"),
    [
        (0, 2, "it is registered, but this node receives no metadata. A voter whose disk is lost has"),
        (7, None, "it is registered, but this node receives no metadata: the other nodes cannot reach it at h:1."),
        (7, 2, "this node has not received its registration in the metadata"),
    ],
)
def test_a_broker_that_does_not_hear_of_its_registration_says_so(
    caplog: pytest.LogCaptureFixture, last_index: int, leader_id: int | None, reason: str
) -> None:
    """An emptied voter, say: its leader goes on from where the lost disk had been."""

    async def story(broker: Broker) -> None:
        broker.quorum.last_index, broker.quorum.leader_id = last_index, leader_id
        broker.controller.is_image_current = False
        registering = asyncio.ensure_future(broker.lifecycle.register())
        await asyncio.sleep(6.5 * READ_TIMEOUT_S)
        assert not registering.done()
        broker.controller.tell()
        await registering

    play(story)
    waits = [record.getMessage() for record in caplog.records if "still waiting to join" in record.getMessage()]
    assert len(waits) == 6
    assert waits[0].startswith(f"still waiting to join the cluster: {reason}")


def test_heartbeats_hurry_until_the_broker_is_in() -> None:
    async def story(broker: Broker) -> None:
        broker.controller.answer = HeartbeatAnswer(False, True, False)
        joining = asyncio.ensure_future(broker.join())
        await asyncio.sleep(1)
        assert len(broker.controller.heard_s) >= 9
        assert not joining.done()
        broker.controller.answer = HeartbeatAnswer(True, False, False)
        await joining
        assert not broker.lifecycle.is_fenced
        before = len(broker.controller.heard_s)
        await asyncio.sleep(4 * HEARTBEAT_S)
        assert len(broker.controller.heard_s) - before <= 5

    play(story)


def test_a_broker_that_is_not_let_in_serves_what_it_may_and_goes_on_asking() -> None:
    async def story(broker: Broker) -> None:
        broker.controller.answer = HeartbeatAnswer(False, True, False)
        began_s = broker.clock.monotonic()
        await broker.join()
        assert broker.clock.monotonic() - began_s >= UNFENCE_TIMEOUT_S
        assert broker.lifecycle.is_fenced

    play(story)


def test_without_answers_for_a_session_it_must_not_lead() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        await asyncio.sleep(10)
        assert broker.lifecycle.may_lead()
        broker.controller.refusal = NO_CONTROLLER
        await asyncio.sleep(SESSION_S - HEARTBEAT_S - 0.1)
        assert broker.lifecycle.may_lead()
        await asyncio.sleep(HEARTBEAT_S + 0.2)
        assert not broker.lifecycle.may_lead()
        assert broker.lifecycle.unanswered_s >= SESSION_S
        broker.controller.refusal = None
        await asyncio.sleep(0.3)
        assert broker.lifecycle.may_lead()
        assert broker.lifecycle.heartbeats_failed > 0

    play(story)


def test_a_node_that_hears_of_no_metadata_must_not_lead_although_its_heartbeats_are_answered() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        broker.quorum.failure = StorageError("the disk of the metadata log has failed")
        assert not broker.lifecycle.may_lead()
        broker.lifecycle.quorum_failed()
        await asyncio.sleep(3)
        assert broker.leases_over == [False]
        assert not broker.lifecycle.may_lead()

    play(story)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (HeartbeatAnswer(is_caught_up=False, is_fenced=False, should_shut_down=False), "no metadata has arrived"),
        (HeartbeatAnswer(is_caught_up=True, is_fenced=True, should_shut_down=False), "this broker is fenced"),
    ],
)
def test_an_answer_that_it_does_not_count_is_no_lease(
    answer: HeartbeatAnswer, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        broker.controller.answer = answer
        await asyncio.sleep(SESSION_S - HEARTBEAT_S - 0.1)
        assert broker.lifecycle.may_lead()
        await asyncio.sleep(HEARTBEAT_S + 0.3)
        assert broker.leases_over == [False]
        broker.controller.answer = HeartbeatAnswer(True, False, False)
        await asyncio.sleep(0.2)
        assert broker.lifecycle.may_lead()

    play(story)
    assert f"{reason} for {SESSION_S * 1000:.0f} ms: other brokers may lead" in caplog.text


def test_the_lease_counts_from_the_question_not_from_the_answer() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        await asyncio.sleep(3)
        broker.controller.delay_s = SESSION_S + 0.1
        await asyncio.sleep(2 * SESSION_S)
        answered = len(broker.controller.heard_s)
        await asyncio.sleep(2 * SESSION_S)
        assert len(broker.controller.heard_s) > answered, "answers do come"
        assert not broker.lifecycle.may_lead(), "whoever watches it has given it up before each of them"

    play(story)


def test_a_broker_nobody_knows_any_more_registers_again() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        for code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            before = broker.controller.registrations
            broker.controller.refusal = ApiError(code)
            await asyncio.sleep(HEARTBEAT_S + 0.2)
            broker.controller.refusal = None
            await asyncio.sleep(1)
            assert broker.controller.registrations == before + 1
        assert broker.lifecycle.epoch == 30

    play(story)


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_heartbeats_outlive_a_controller_in_trouble(code: ErrorCode) -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        broker.controller.refusal = ApiError(code, "the disk is full")
        await asyncio.sleep(3)
        broker.controller.refusal = None
        await asyncio.sleep(1)
        assert broker.lifecycle.may_lead()

    play(story)


def test_a_new_controller_hears_of_the_broker_at_once() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        await asyncio.sleep(5 * HEARTBEAT_S + HEARTBEAT_S / 2)
        before = len(broker.controller.heard_s)
        broker.lifecycle.controller_changed()
        await asyncio.sleep(0.01)
        assert len(broker.controller.heard_s) == before + 1

    play(story)


def test_a_broker_that_reads_of_its_fencing_speaks_up_at_once() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        await asyncio.sleep(5 * HEARTBEAT_S + HEARTBEAT_S / 2)
        before = len(broker.controller.heard_s)
        broker.lifecycle.brokers_changed()
        await asyncio.sleep(0.01)
        assert len(broker.controller.heard_s) == before, "nothing has happened to it"
        broker.image.replay(BrokerChanged(NODE, is_fenced=True))
        broker.lifecycle.brokers_changed()
        await asyncio.sleep(0.01)
        assert len(broker.controller.heard_s) == before + 1

    play(story, broker_heartbeat_interval_ms="1500")


def test_leaving_waits_for_the_controller_to_agree() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        leaving = asyncio.ensure_future(broker.lifecycle.leave())
        await asyncio.sleep(1)
        assert broker.controller.wanted_out
        assert not leaving.done()
        broker.controller.answer = HeartbeatAnswer(True, False, True)
        await asyncio.sleep(0.3)
        assert not leaving.done(), "it has not heard yet who leads after it"
        broker.image.replay(BrokerChanged(NODE, in_controlled_shutdown=True))
        await asyncio.sleep(0.3)
        assert leaving.done()

    play(story)


def test_leaving_does_not_wait_for_ever() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        began_s = broker.clock.monotonic()
        await broker.lifecycle.leave()
        assert LEAVE_TIMEOUT_S <= broker.clock.monotonic() - began_s < LEAVE_TIMEOUT_S + 1

    play(story)


def test_leaving_when_there_is_no_controller() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        broker.controller.refusal = NO_CONTROLLER
        began_s = broker.clock.monotonic()
        await broker.lifecycle.leave()
        assert NO_CONTROLLER_S <= broker.clock.monotonic() - began_s < NO_CONTROLLER_S + 1

    play(story)


def test_a_broker_that_leaves_does_not_register_again() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        broker.controller.refusal = ApiError(ErrorCode.STALE_BROKER_EPOCH)
        await broker.lifecycle.leave()
        assert broker.controller.registrations == 1

    play(story)


def test_leaving_without_controlled_shutdown_says_nothing() -> None:
    async def story(broker: Broker) -> None:
        await broker.join()
        began_s = broker.clock.monotonic()
        await broker.lifecycle.leave()
        assert broker.clock.monotonic() == began_s
        assert not broker.controller.wanted_out

    play(story, controlled_shutdown_enable="false")
