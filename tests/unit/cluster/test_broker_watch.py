"""Which brokers are given up, and when: silence, lost connections, and what comes in between."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.core.metadata.requests import IsrChange, ReplicaEpoch
from penstock.model.new_topic import NewTopic
from support.worlds.controller import GRACE_S, SESSION_S, ControllerWorld, play

LOOK_S = 0.5


def test_those_that_send_heartbeats_stay() -> None:
    async def story(there: ControllerWorld) -> None:
        await asyncio.sleep(5 * SESSION_S)
        assert there.controller.brokers == [1, 2, 3]

    play(story)


def test_silence_is_fenced_after_the_session() -> None:
    async def story(there: ControllerWorld) -> None:
        there.fall_silent(2)
        await there.heartbeat(2)
        await asyncio.sleep(SESSION_S - 0.1)
        assert not there.is_fenced(2)
        await asyncio.sleep(0.1 + LOOK_S + 0.1)
        assert there.is_fenced(2)
        assert there.controller.brokers == [1, 3]
        assert not (await there.heartbeat(2)).is_fenced, "a heartbeat brings it back"

    play(story)


def test_one_that_was_fenced_comes_back_when_it_has_read_of_that() -> None:
    """Until then it takes itself for the leader of what others lead."""

    async def story(there: ControllerWorld) -> None:
        there.fall_silent(2)
        known = there.quorum.index
        await asyncio.sleep(SESSION_S + LOOK_S + 0.1)
        assert there.is_fenced(2)
        answer = await there.heartbeat(2, offset=known)
        assert (answer.is_caught_up, answer.is_fenced) == (False, True)
        answer = await there.heartbeat(2)
        assert (answer.is_caught_up, answer.is_fenced) == (True, False)

    play(story)


def test_one_that_speaks_and_does_not_hear_of_decisions_is_fenced() -> None:
    async def story(there: ControllerWorld) -> None:
        there.fall_silent(2)
        await there.heartbeat(2)
        deaf = there.quorum.index
        await there.join(4)  # something is decided
        assert (await there.heartbeat(2, offset=deaf)).is_caught_up, "it may be under way"
        for _ in range(int(SESSION_S + LOOK_S) + 1):
            await asyncio.sleep(1.0)
            answer = await there.heartbeat(2, offset=deaf)
            assert not answer.is_caught_up
        assert there.is_fenced(2)
        assert not (await there.heartbeat(2)).is_fenced, "it hears again"

    play(story)


def test_a_lost_connection_is_fenced_after_the_grace() -> None:
    async def story(there: ControllerWorld) -> None:
        there.fall_silent(3)
        there.break_link(3)
        await asyncio.sleep(GRACE_S - 0.05)
        assert not there.is_fenced(3)
        await asyncio.sleep(0.1)
        assert there.is_fenced(3)

    play(story)


def test_one_that_stopped_of_its_own_accord_is_no_cause_for_alarm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.cluster.broker_registry")

    async def story(there: ControllerWorld) -> None:
        await there.heartbeat(3, wants_out=True)
        there.fall_silent(3)
        there.break_link(3)
        there.fall_silent(2)
        there.break_link(2)
        await asyncio.sleep(GRACE_S + LOOK_S)
        assert there.is_fenced(3)
        assert there.is_fenced(2)

    play(story)
    told = {record.getMessage(): record.levelname for record in caplog.records}
    assert told["broker 3 has stopped"] == "INFO"
    assert told["broker 2 is fenced: its connections broke and did not come back"] == "WARNING"
    assert not any(line.startswith("broker 3 is fenced") for line in told)


def test_a_connection_that_comes_back_within_the_grace_is_no_loss() -> None:
    async def story(there: ControllerWorld) -> None:
        there.break_link(3)
        await asyncio.sleep(GRACE_S / 2)
        there.mend_link(3)
        await asyncio.sleep(5)
        assert not there.is_fenced(3)

    play(story)


def test_a_heartbeat_after_the_loss_outweighs_it() -> None:
    async def story(there: ControllerWorld) -> None:
        there.break_link(3)
        await asyncio.sleep(GRACE_S / 2)
        await there.heartbeat(3)
        await asyncio.sleep(2 * SESSION_S)  # the link stays down, heartbeats come all the same
        assert not there.is_fenced(3)

    play(story)


def test_a_heartbeat_that_is_read_after_the_end_of_its_sender_does_not_save_it() -> None:
    async def story(there: ControllerWorld) -> None:
        there.fall_silent(3)
        there.break_link(3)
        await asyncio.sleep(0.01)
        await there.heartbeat(3)  # was under way on another connection
        await asyncio.sleep(0.01)
        for _ in range(4):
            there.watch.peer_lost(3)  # nobody listens there
            await asyncio.sleep(GRACE_S / 2)
        assert there.is_fenced(3)

    play(story)


def test_what_was_heard_while_fencing_waited_its_turn_counts() -> None:
    async def story(there: ControllerWorld) -> None:
        there.quorum.may_commit.clear()
        slow = asyncio.ensure_future(there.controller.topics.create_topic(NewTopic("t", 1)))
        await asyncio.sleep(0.1)
        there.break_link(3)
        await asyncio.sleep(GRACE_S + 0.1)  # fencing is due, and waits for the topic
        await there.heartbeat(3)
        there.quorum.may_commit.set()
        await slow
        await asyncio.sleep(0.1)
        assert not there.is_fenced(3)

    play(story)


def test_a_new_controller_counts_silence_from_its_beginning() -> None:
    async def story(there: ControllerWorld) -> None:
        there.fall_silent(2)
        there.controller.deactivated()
        await asyncio.sleep(3 * SESSION_S)
        there.controller.activated()
        await asyncio.sleep(SESSION_S - 0.1)
        assert not there.is_fenced(2)
        await asyncio.sleep(0.1 + LOOK_S + 0.1)
        assert there.is_fenced(2)

    play(story)


def test_the_controller_that_was_is_given_up_by_the_next_one_at_once() -> None:
    async def story(there: ControllerWorld) -> None:
        there.controller.deactivated()
        there.fall_silent(2)
        there.break_link(2)  # it was the controller, and died; nobody fenced it
        await asyncio.sleep(1.0)
        there.controller.activated()
        await asyncio.sleep(0.05)
        assert there.is_fenced(2)

    play(story)


def test_a_controller_that_has_just_begun_gives_up_nobody_that_it_has_not_reached_yet() -> None:
    """It is the only voter and was restarted: its connections are not up yet, and the brokers are."""

    async def story(there: ControllerWorld) -> None:
        there.controller.deactivated()
        there.lost[2] = there.lost[3] = there.clock.monotonic()
        there.controller.activated()
        there.fall_silent(2)
        there.fall_silent(3)
        await asyncio.sleep(SESSION_S - 0.1)
        assert not there.is_fenced(2)
        there.watch.peer_lost(3)  # nobody listens there
        await asyncio.sleep(GRACE_S + 0.05)
        assert there.is_fenced(3)

    play(story)


def test_nobody_is_fenced_by_one_that_is_not_the_controller() -> None:
    async def story(there: ControllerWorld) -> None:
        there.quorum.is_active = False
        there.controller.deactivated()
        there.break_link(3)
        await asyncio.sleep(2 * SESSION_S)
        assert there.image.live_brokers() == [1, 2, 3]
        assert there.watch.silences_s() == {}

    async def without_heartbeats(there: ControllerWorld) -> None:
        for broker in (1, 2, 3):
            there.fall_silent(broker)
        await story(there)

    play(without_heartbeats)


def test_fencing_that_fails_is_tried_again() -> None:
    async def story(there: ControllerWorld) -> None:
        there.fall_silent(3)
        there.break_link(3)
        there.quorum.is_active = False  # leadership is being lost, or was for a moment
        await asyncio.sleep(2)
        assert not there.is_fenced(3)
        there.quorum.is_active = True
        await asyncio.sleep(LOOK_S + 0.1)
        assert there.is_fenced(3)

    async def without_heartbeats(there: ControllerWorld) -> None:
        for broker in (1, 2):
            there.fall_silent(broker)
        await story(there)

    play(without_heartbeats)


def test_a_broker_alone_has_no_timer() -> None:
    async def story(there: ControllerWorld) -> None:
        loop = asyncio.get_running_loop()
        assert there.controller.brokers == [1]
        there.fall_silent(1)
        steps = loop.steps  # type: ignore[attr-defined]
        await asyncio.sleep(60)
        assert loop.steps - steps < 20  # type: ignore[attr-defined]
        assert there.controller.brokers == [1]

    play(story, 1, controller_quorum_voters="")


def test_leaders_move_back_when_they_are_looked_for() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.create_topic(NewTopic("t", assignments={0: [2, 1, 3]}))
        topic = there.image.topics["t"]
        there.fall_silent(2)
        there.break_link(2)
        await asyncio.sleep(1)
        assert topic.partitions[0].leader == 1
        there.mend_link(2)
        await there.heartbeat(2)
        there.beat(2)
        await alter_isr(there, (1, 2, 3))
        await asyncio.sleep(11)
        assert topic.partitions[0].leader == 2

    async def alter_isr(there: ControllerWorld, isr: tuple[int, ...]) -> None:
        topic = there.image.topics["t"]
        state = topic.partitions[0]
        members = tuple(ReplicaEpoch(one, there.epochs[one]) for one in isr)
        change = IsrChange(topic.topic_id, 0, state.leader_epoch, state.partition_epoch, members)
        [answer] = await there.controller.partitions.alter_partitions(1, there.epochs[1], [change])
        assert answer.isr == isr

    play(story, leader_imbalance_check_interval_seconds="10")


def test_an_unregistered_broker_is_not_heard_of() -> None:
    async def story(there: ControllerWorld) -> None:
        assert there.watch.is_heard_of(2)
        there.watch.forget(2)
        assert not there.watch.is_heard_of(2)
        assert not there.watch.is_heard_of(7)

    play(story)
