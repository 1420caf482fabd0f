"""One fetch session and the partitions that it follows."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock.config.broker import BrokerConfig
from penstock.core.metadata.image import PartitionState
from penstock.core.partition.following import DELAYED_STATES, HOLDS, LETS_GO, MOVES, Input, State
from penstock.replica.following import NO_SESSION, FollowerSession
from penstock.replica.throttle import ReplicationQuota
from penstock.wire.messages.fetch import FetchResponse
from support.worlds.hosted import HostedWorld


def test_work_for_a_partition_that_is_gone_says_nothing_of_the_one_in_its_place() -> None:
    """A truncation may end after its partition was removed and opened anew: the next request names only the new one."""
    world = HostedWorld({"orders": {}})
    hosted, topic = world.hosted, world.image.topics["orders"]
    session = FollowerSession(hosted.host.node_id, ReplicationQuota())
    before = session.follow(hosted.get("orders", 0))
    session.meet(before, Input.DIVERGES)
    removal = hosted.partition_changed(topic, PartitionState(0, (2,), 2, 1, (2,), 1))
    assert removal is not None

    async def removed() -> None:
        await removal

    asyncio.run(removed())
    hosted.partition_changed(topic, PartitionState(0, (2, 1), 2, 2, (2,), 3, adding=(1,)))
    session.follow(hosted.get("orders", 0))
    assert _named(session, hosted.broker) == [(0, 2)]
    session.answered(FetchResponse(session_id=7))
    session.meet(before, Input.FITTED)
    assert not session.has_changes
    session.follow(hosted.get("orders", 0))
    assert _named(session, hosted.broker) == []


def test_one_that_comes_back_and_is_held_at_once_leaves_the_leaders_session() -> None:
    """Else the leader would answer for it at once, again and again."""
    world = HostedWorld({"orders": {}})
    session = FollowerSession(world.hosted.host.node_id, ReplicationQuota())
    partition = world.hosted.get("orders", 0)
    session.follow(partition)
    assert _named(session, world.hosted.broker) == [(0, 0)]
    session.answered(FetchResponse(session_id=7))
    session.unfollow(partition.topic_id, 0)
    session.meet(session.follow(partition), Input.WITHDRAWN)
    session.follow(HostedWorld({"other": {}, "more": {}}).hosted.get("more", 0))
    request = session.next_request(world.hosted.broker, broker_epoch=1, now_s=0.0)
    assert request is not None
    assert [topic.topic_id for topic in request.forgotten_topics_data] == [partition.topic_id]


PAUSES = {Input.REFUSED, Input.METADATA_IS_COMING, Input.NOT_APPENDED, Input.NOT_FITTED}
# In an order of their own: that of a set is another one in each process.
MET = sorted((Input.RECORDS, Input.NOTHING_NEW, Input.OUTDATED, *HOLDS, *LETS_GO, *PAUSES), key=lambda met: met.name)


@pytest.mark.parametrize("seed", range(8))
def test_the_leaders_session_has_what_may_be_asked_for(seed: int) -> None:
    """Anything may happen between two fetches: a leader that remembers requests knows all that is not held or delayed,
    and nothing else."""
    random = Random(seed)
    names, now_s = [f"topic-{number}" for number in range(6)], 0.0
    world = HostedWorld({name: {} for name in names})
    session = FollowerSession(world.hosted.host.node_id, ReplicationQuota())
    epochs = dict.fromkeys(names, 0)

    def lead_elsewhere(name: str) -> None:
        epochs[name] += 1
        state = PartitionState(0, (2, 1), 2, epochs[name], (2, 1), epochs[name])
        world.hosted.partition_changed(world.image.topics[name], state)

    for name in names:
        lead_elsewhere(name)
    remembered: set[bytes] = set()
    seen = set()

    def meet_something() -> None:
        name = random.choice(names)
        partition = world.hosted.get(name, 0)
        followed = session.followed.get((partition.topic_id, partition.index))
        if followed is None or random.random() < 0.1:
            if random.random() < 0.5:
                lead_elsewhere(name)
            session.follow(partition)
        elif random.random() < 0.05:
            session.unfollow(partition.topic_id, partition.index)
        elif (followed.state, met := random.choice(MET)) in MOVES:
            seen.add((followed.state, met))
            if met in PAUSES:
                session.delay(followed, met, now_s + random.choice((1.0, 5.0)))
            else:
                session.meet(followed, met)

    for _ in range(400):
        for _ in range(random.randrange(4)):
            meet_something()
        now_s += 1.0
        request = session.next_request(world.hosted.broker, broker_epoch=1, now_s=now_s)
        followed_now = session.followed.values()
        if request is None:
            assert all(one.is_waiting for one in followed_now)
            continue
        if request.session_id == NO_SESSION:
            remembered.clear()
        remembered.difference_update(forgotten.topic_id for forgotten in request.forgotten_topics_data)
        remembered.update(topic.topic_id for topic in request.topics)
        assert remembered == {one.partition.topic_id for one in followed_now if not one.is_waiting}
        due_s = session.next_wakeup_s()
        assert (due_s is not None and due_s > now_s) is any(one.state in DELAYED_STATES for one in followed_now)
        for _ in range(random.randrange(4)):
            meet_something()
        if random.random() < 0.9:
            matching = {one for one in followed_now if one.state is State.MATCHING}
            session.answered(FetchResponse(session_id=7))
            assert {*session.take_matched()} == matching
            assert all(one.is_matched for one in matching)
        else:
            session.reset()
            assert not any(one.is_matched for one in followed_now)
    assert len(seen) > 40, "most of the table"


def _named(session: FollowerSession, config: BrokerConfig) -> list[tuple[int, int]]:
    """(partition, leader epoch) of the next request."""
    request = session.next_request(config, broker_epoch=1, now_s=0.0)
    assert request is not None
    return [(one.partition, one.current_leader_epoch) for topic in request.topics for one in topic.partitions]
