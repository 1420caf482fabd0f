"""What one fetch session says of the partitions it follows."""

from __future__ import annotations

import asyncio

from hosted_world import HostedWorld
from penstock.config.broker import BrokerConfig
from penstock.core.metadata.image import PartitionState
from penstock.replica.following import FollowerSession
from penstock.replica.throttle import ReplicationQuota
from penstock.wire.messages.fetch import FetchResponse


def test_work_for_a_partition_that_is_gone_says_nothing_of_the_one_in_its_place() -> None:
    """A truncation may end after its partition was removed and opened anew: the next request names only the new one."""
    world = HostedWorld({"orders": {}})
    hosted, topic = world.hosted, world.image.topics["orders"]
    session = FollowerSession(hosted.host.node_id, ReplicationQuota())
    before = session.follow(hosted.get("orders", 0))
    session.hold(before)
    removal = hosted.partition_changed(topic, PartitionState(0, (2,), 2, 1, (2,), 1))
    assert removal is not None

    async def removed() -> None:
        await removal

    asyncio.run(removed())
    hosted.partition_changed(topic, PartitionState(0, (2, 1), 2, 2, (2,), 3, adding=(1,)))
    session.follow(hosted.get("orders", 0))
    assert _named(session, hosted.broker) == [(0, 2)]
    session.answered(FetchResponse(session_id=7))
    session.release(before)
    assert not session.has_changes
    session.follow(hosted.get("orders", 0))
    assert _named(session, hosted.broker) == []


def _named(session: FollowerSession, config: BrokerConfig) -> list[tuple[int, int]]:
    """(partition, leader epoch) of the next request."""
    request = session.next_request(config, broker_epoch=1, now_s=0.0)
    assert request is not None
    return [(one.partition, one.current_leader_epoch) for topic in request.topics for one in topic.partitions]
