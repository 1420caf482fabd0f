"""The controller: registrations, heartbeats, leaving, and what it counts. Fencing is in `test_broker_watch`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypedDict

import pytest

from penstock.cluster.topic_decisions import UNCLEAN
from penstock.core.metadata.image import NO_LEADER, RESOURCE_BROKER, RESOURCE_TOPIC
from penstock.core.metadata.requests import ElectionKind, IsrChange, ReplicaEpoch
from penstock.core.raft.exchange import Change
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.model.new_topic import NewTopic
from support.worlds.controller import CLUSTER_ID, ControllerWorld, play


class Now(TypedDict):
    validate_only: bool


NOW: Final[Now] = {"validate_only": False}
FLUSHES: Final = {"log.flush.interval.messages": "1"}


async def refused(work: Awaitable[object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value.code


def test_a_new_cluster_gets_its_id_and_one_minimum_for_all() -> None:
    async def story(there: ControllerWorld) -> None:
        assert there.image.cluster_id == CLUSTER_ID
        assert there.image.configs[RESOURCE_BROKER, ""] == {"min.insync.replicas": "2", **FLUSHES}

    play(story)


def test_a_broker_is_fenced_until_it_has_heard_of_its_registration() -> None:
    async def story(there: ControllerWorld) -> None:
        epoch = await there.register(4)
        assert there.is_fenced(4)
        assert there.controller.brokers == [1, 2, 3]
        answer = await there.heartbeat(4, offset=there.quorum.index - 1)
        assert (answer.is_caught_up, answer.is_fenced) == (False, True)
        answer = await there.heartbeat(4)
        assert (answer.is_caught_up, answer.is_fenced) == (True, False)
        assert there.controller.brokers == [1, 2, 3, 4]
        assert there.image.brokers[4].epoch == epoch

    play(story)


def test_a_broker_that_is_no_voter_becomes_an_observer() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.join(4)
        await asyncio.sleep(0.1)
        assert there.quorum.changes == [(Change.ADD_OBSERVER, 4)]
        there.fall_silent(4)
        await asyncio.sleep(12)
        await there.controller.registry.unregister_broker(4)
        assert there.quorum.changes[-1] == (Change.REMOVE_OBSERVER, 4)
        assert 4 not in there.image.brokers

    play(story)


@pytest.mark.parametrize("broker", [1, 2])
def test_a_broker_that_runs_is_not_forgotten(broker: int) -> None:
    """It would register again at once as a new one, and nobody could lead what it alone holds."""

    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.create_topic(NewTopic("t", assignments={0: [broker]}))
        with pytest.raises(ApiError, match=f"broker {broker} is running: stop it first") as caught:
            await there.controller.registry.unregister_broker(broker)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert there.image.topics["t"].partitions[0].leader == broker
        assert broker in there.image.brokers

    play(story)


def test_who_was_never_there_cannot_be_forgotten() -> None:
    async def story(there: ControllerWorld) -> None:
        assert await refused(there.controller.registry.unregister_broker(7)) is ErrorCode.BROKER_ID_NOT_REGISTERED

    play(story)


def test_an_observer_with_another_disk_begins_anew() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.register(4, directory_id="A" * 22)
        await asyncio.sleep(0.1)
        await there.register(4, b"second", directory_id="A" * 22)
        assert there.quorum.changes == [(Change.ADD_OBSERVER, 4)]
        await there.register(4, b"third", directory_id="B" * 22)
        await asyncio.sleep(0.1)
        assert there.quorum.changes[1:] == [(Change.REMOVE_OBSERVER, 4), (Change.ADD_OBSERVER, 4)]

    play(story)


def test_a_broker_of_another_cluster_is_refused() -> None:
    async def story(there: ControllerWorld) -> None:
        code = await refused(there.register(4, cluster_id="o" * 22))
        assert code is ErrorCode.INCONSISTENT_CLUSTER_ID
        await there.register(5, cluster_id="")  # it does not know of any yet
        assert 5 in there.image.brokers

    play(story)


def test_two_running_brokers_of_one_id_are_refused() -> None:
    async def story(there: ControllerWorld) -> None:
        before = there.image.brokers[2].epoch
        assert await refused(there.register(2, b"second")) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert there.image.brokers[2].epoch == before
        assert await there.register(2) == before, "the same life asks again: its answer was lost"

    play(story)


def test_a_broker_that_is_back_at_once_is_let_in() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.create_topic(NewTopic("t", assignments={0: [2, 1, 3]}))
        there.fall_silent(2)
        there.break_link(2)
        there.mend_link(2)  # another process listens there now, well within the grace
        before = there.image.brokers[2].epoch
        assert await there.register(2, b"second") > before
        state = there.image.topics["t"].partitions[0]
        assert state.leader in (1, 3), "what it led in its last life is taken from it"
        assert 2 not in state.isr

    play(story)


def test_a_heartbeat_of_an_earlier_life_changes_nothing() -> None:
    async def story(there: ControllerWorld) -> None:
        there.fall_silent(2)
        old = there.epochs[2]
        there.break_link(2)
        await asyncio.sleep(1)
        assert there.is_fenced(2)
        there.quorum.may_commit.clear()
        registering = asyncio.ensure_future(there.register(2, b"second"))
        await asyncio.sleep(0.1)
        # It passes the first check, and waits for its turn behind the registration.
        late = asyncio.ensure_future(there.controller.registry.heartbeat(2, old, 1 << 40, False, False))
        await asyncio.sleep(0.1)
        there.quorum.may_commit.set()
        await registering
        assert await refused(late) is ErrorCode.STALE_BROKER_EPOCH
        assert there.is_fenced(2), "the new life is not caught up"

    play(story)


def test_leaders_move_before_a_broker_goes() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.create_topic(NewTopic("t", assignments={0: [2, 1, 3], 1: [3, 2, 1]}))
        answer = await there.heartbeat(2, wants_out=True)
        assert answer.should_shut_down
        assert there.image.brokers[2].in_controlled_shutdown
        assert [state.leader for state in there.image.topics["t"].partitions] == [1, 3]
        assert there.controller.elections == 1
        assert there.controller.unclean_elections == 0

    play(story)


def test_the_last_in_sync_replica_may_go_too() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.create_topic(NewTopic("t", assignments={0: [2]}))
        assert (await there.heartbeat(2, wants_out=True)).should_shut_down, "there is nobody to wait for"
        assert there.image.topics["t"].partitions[0].leader == 2

    play(story)


def test_unclean_elections_are_counted() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.create_topic(
            NewTopic("t", assignments={0: [2, 3]}, configs={"min.insync.replicas": "1"})
        )
        topic = there.image.topics["t"]
        change = IsrChange(topic.topic_id, 0, 0, 0, (ReplicaEpoch(2, there.epochs[2]),))
        [answer] = await there.controller.partitions.alter_partitions(2, there.epochs[2], [change])
        assert (answer.code, answer.isr) == (ErrorCode.NONE, (2,))
        there.fall_silent(2)
        there.break_link(2)
        await asyncio.sleep(1)
        assert topic.partitions[0].leader == NO_LEADER
        assert there.controller.elections == 0
        await there.controller.topics.change_config(
            RESOURCE_TOPIC, "t", lambda _: {UNCLEAN: "true"}, validate_only=False
        )
        assert topic.partitions[0].leader == 3
        assert (there.controller.elections, there.controller.unclean_elections) == (1, 1)

    play(story)


def test_the_next_controller_elects_where_the_one_before_had_only_allowed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.create_topic(
            NewTopic("t", assignments={0: [2, 3]}, configs={"min.insync.replicas": "1"})
        )
        topic = there.image.topics["t"]
        change = IsrChange(topic.topic_id, 0, 0, 0, (ReplicaEpoch(2, there.epochs[2]),))
        await there.controller.partitions.alter_partitions(2, there.epochs[2], [change])
        there.fall_silent(2)
        there.break_link(2)
        await asyncio.sleep(1)
        agree = there.quorum.propose

        async def agree_and_lose_leadership(data: bytes) -> int:
            index = await agree(data)
            there.quorum.is_active = False
            return index

        monkeypatch.setattr(there.quorum, "propose", agree_and_lose_leadership)
        allowing = there.controller.topics.change_config(RESOURCE_TOPIC, "t", lambda _: {UNCLEAN: "true"}, **NOW)
        assert await refused(allowing) is ErrorCode.NOT_CONTROLLER
        there.controller.deactivated()
        monkeypatch.undo()
        assert topic.partitions[0].leader == NO_LEADER
        there.quorum.is_active = True
        there.controller.activated()
        await asyncio.sleep(0.1)
        assert topic.partitions[0].leader == 3

    play(story)


def test_every_method_refuses_where_the_controller_is_not() -> None:
    async def story(there: ControllerWorld) -> None:
        controller = there.controller
        there.quorum.is_active = False
        controller.deactivated()
        for work in (
            controller.topics.create_topic(NewTopic("t", 1, 1)),
            controller.topics.create_partitions("t", 2, None, validate_only=True),
            controller.topics.delete_topic(bytes(16)),
            controller.topics.change_config(2, "t", dict, validate_only=True),
            controller.topics.alter_scram_credentials([]),
            controller.topics.allocate_producer_ids(1, 0),
            there.register(2),
            there.heartbeat(2),
            controller.registry.unregister_broker(2),
            controller.partitions.alter_partitions(1, 0, []),
            controller.partitions.elect_leaders(ElectionKind.PREFERRED, None),
            controller.partitions.alter_reassignments([]),
            controller.registry.update_features([], True),
            controller.voters.add_voter(4, b"", "h", 1),
            controller.voters.remove_voter(2, b""),
            controller.partitions.move_leaders_back(),
        ):
            assert await refused(work) is ErrorCode.NOT_CONTROLLER
        with pytest.raises(ApiError):
            controller.partitions.list_reassignments(None)

    play(story)


def test_producer_ids_are_for_registered_brokers_and_never_given_twice() -> None:
    async def story(there: ControllerWorld) -> None:
        first = await there.controller.topics.allocate_producer_ids(2, there.epochs[2])
        second = await there.controller.topics.allocate_producer_ids(3, there.epochs[3])
        assert second.first == first.first + first.length
        code = await refused(there.controller.topics.allocate_producer_ids(2, there.epochs[2] - 1))
        assert code is ErrorCode.STALE_BROKER_EPOCH

    play(story)


def test_a_new_minimum_changes_who_is_eligible_in_the_same_entry() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.create_topic(
            NewTopic("t", assignments={0: [2, 1, 3]}, configs={"min.insync.replicas": "3"})
        )
        there.fall_silent(3)
        there.break_link(3)
        await asyncio.sleep(1)
        state = there.image.topics["t"].partitions[0]
        assert (state.isr, state.elr) == ((2, 1), (3,))
        before = there.quorum.index
        await there.controller.topics.change_config(
            RESOURCE_TOPIC, "t", lambda _: {"min.insync.replicas": "2"}, validate_only=False
        )
        assert there.quorum.index == before + 1
        assert there.image.topics["t"].partitions[0].elr == (), "the high watermark moves on without it from now on"

    play(story)


@pytest.mark.parametrize("is_for_all", [False, True])
def test_who_is_away_when_flushes_begin_is_eligible_no_more_in_the_same_entry(is_for_all: bool) -> None:
    async def story(there: ControllerWorld) -> None:
        own = {} if is_for_all else {"flush.messages": "1000"}
        await there.controller.topics.create_topic(
            NewTopic("t", assignments={0: [2, 1, 3]}, configs={"min.insync.replicas": "3", **own})
        )
        there.fall_silent(3)
        there.break_link(3)
        await asyncio.sleep(1)
        topic = there.image.topics["t"]
        assert (topic.partitions[0].isr, topic.partitions[0].elr) == ((2, 1), (3,))
        before = there.quorum.index
        if is_for_all:
            cluster_wide = {"min.insync.replicas": "2", **FLUSHES}
            await there.controller.topics.change_config(RESOURCE_BROKER, "", lambda _: cluster_wide, **NOW)
        else:
            await there.controller.topics.change_config(
                RESOURCE_TOPIC, "t", lambda _: {"min.insync.replicas": "3"}, **NOW
            )
        assert there.quorum.index == before + 1
        assert topic.partitions[0].elr == ()
        there.running.refresh()
        there.mend_link(3)
        await there.register(3, b"second")  # from a crash
        assert topic.partitions[0].elr == ()

    play(story, log_flush_interval_messages="1000" if is_for_all else "1")


@pytest.mark.parametrize("is_known", [False, True])
def test_who_cannot_be_given_a_vote_is_no_observer_either(is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a broker that follows the metadata anyway."""

    async def story(there: ControllerWorld) -> None:
        if is_known:
            await there.register(4)
            await asyncio.sleep(1)
        change = there.quorum.change_membership

        async def refuse_votes(wanted: Change, node: int) -> None:
            if wanted is Change.ADD_VOTER:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "it has not caught up")
            await change(wanted, node)

        monkeypatch.setattr(there.quorum, "change_membership", refuse_votes)
        assert await refused(there.controller.voters.add_voter(4, b"", "node-4", 9092)) is ErrorCode.REQUEST_TIMED_OUT
        await asyncio.sleep(1)
        assert there.quorum.observers == ((4,) if is_known else ())

    play(story)


def test_voters_are_added_and_removed_once() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.voters.add_voter(4, b"", "node-4", 9092)
        assert there.quorum.changes == [(Change.ADD_OBSERVER, 4), (Change.ADD_VOTER, 4)]
        assert there.image.peers[4] == ("node-4", 9092)
        assert await refused(there.controller.voters.add_voter(4, b"", "h", 1)) is ErrorCode.DUPLICATE_VOTER
        await there.controller.voters.remove_voter(4, b"")
        assert 4 not in there.image.peers, "where it is reached as an observer is its registration's business"
        assert await refused(there.controller.voters.remove_voter(4, b"")) is ErrorCode.VOTER_NOT_FOUND

    play(story)


def test_a_full_disk_is_said_and_nothing_has_changed() -> None:
    async def story(there: ControllerWorld) -> None:
        there.quorum.failure = StorageError("the disk is full")
        with pytest.raises(StorageError, match="full"):
            await there.controller.topics.create_topic(NewTopic("t", 1))
        there.quorum.failure = None
        assert "t" not in there.image.topics
        await there.controller.topics.create_topic(NewTopic("t", 1))
        assert "t" in there.image.topics

    play(story)


ALONE = {"controller_quorum_voters": "1@node-1:9092"}


def test_a_broker_that_stood_alone_agrees_on_one_minimum_with_the_second() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.controller.topics.change_config(
            RESOURCE_BROKER, "", lambda _: {"log.flush.interval.ms": "7"}, **NOW
        )
        before = there.quorum.index
        await there.register(2)
        assert there.quorum.index == before + 1, "one entry: no moment without it"
        assert there.image.configs[RESOURCE_BROKER, ""] == {
            "log.flush.interval.ms": "7",
            "min.insync.replicas": "2",
            **FLUSHES,
        }
        since = {"min.insync.replicas": "1", "log.flush.interval.messages": "500"}
        await there.controller.topics.change_config(RESOURCE_BROKER, "", lambda _: since, **NOW)
        await there.register(3)
        assert there.image.configs[RESOURCE_BROKER, ""] == since, "what was set since stays"

    play(story, brokers=1, **ALONE)


def test_alone_it_goes_by_its_own_settings() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.register(1)
        assert (RESOURCE_BROKER, "") not in there.image.configs

    play(story, brokers=1, **ALONE)


def test_a_minimum_that_a_lone_broker_was_given_for_itself_becomes_that_of_all() -> None:
    async def story(there: ControllerWorld) -> None:
        own = {"min.insync.replicas": "3", "log.flush.interval.ms": "7"}
        await there.controller.topics.change_config(RESOURCE_BROKER, "", lambda _: {"min.insync.replicas": "1"}, **NOW)
        await there.controller.topics.change_config(RESOURCE_BROKER, "1", lambda _: own, **NOW)
        there.running.refresh()
        await there.register(2)
        assert there.image.configs[RESOURCE_BROKER, ""] == {"min.insync.replicas": "3", **FLUSHES}
        assert there.image.configs[RESOURCE_BROKER, "1"] == {"log.flush.interval.ms": "7"}

    play(story, brokers=1, **ALONE)


def test_settings_that_nobody_could_apply_are_refused_whoever_asks() -> None:
    async def story(there: ControllerWorld) -> None:
        for configs in ({"segment.bytes": "2048"}, {"no.such.setting": "1"}):
            creation = there.controller.topics.create_topic(NewTopic("t", assignments={0: [2]}, configs=configs))
            assert await refused(creation) is ErrorCode.INVALID_CONFIG
        assert "t" not in there.image.topics

    play(story)
