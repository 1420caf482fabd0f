"""Decisions that nobody waits for any more, and those made after them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.metadata.requests import ElectionKind, IsrChange, Reassignment, ReplicaEpoch
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.model.new_topic import NewTopic
from support.raft.cluster import cluster
from support.worlds.controller import ControllerWorld, play


def test_a_decision_whose_asker_has_gone_counts_for_the_next() -> None:
    """A topic deleted twice would be an entry at which every node fails, now and at every start."""

    async def story(there: ControllerWorld) -> None:
        topic_id = await there.controller.topics.create_topic(NewTopic("t", 1))
        there.quorum.may_commit.clear()
        asker = asyncio.ensure_future(there.controller.topics.delete_topic(topic_id))
        await asyncio.sleep(0.1)
        asker.cancel()
        again = asyncio.ensure_future(there.controller.topics.delete_topic(topic_id))
        await asyncio.sleep(0.1)
        there.quorum.may_commit.set()
        with pytest.raises(ApiError) as refused:
            await again
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID
        assert "t" not in there.image.topics

    play(story)


def test_a_partition_that_is_named_twice_is_decided_once() -> None:
    """Each decision is made on the image as it is before the request: two of them would make a third of the two."""

    async def story(there: ControllerWorld) -> None:
        await there.join(4)
        await there.controller.topics.create_topic(NewTopic("t", assignments={0: [1, 2, 3]}))
        answers = await there.controller.partitions.alter_reassignments(
            [Reassignment("t", 0, (2, 3, 4)), Reassignment("t", 0, (2, 3))]
        )
        assert [answer.error and answer.error.code for answer in answers] == [None, ErrorCode.INVALID_REQUEST]
        state = there.image.topics["t"].partitions[0]
        assert (state.replicas, state.adding, state.removing) == ((2, 3, 4, 1), (4,), (1,))
        epochs = tuple(ReplicaEpoch(broker, there.epochs[broker]) for broker in (1, 2))
        change = IsrChange(there.image.topics["t"].topic_id, 0, state.leader_epoch, state.partition_epoch, epochs)
        codes = await there.controller.partitions.alter_partitions(1, there.epochs[1], [change, change])
        assert [answer.code for answer in codes] == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
        state = there.image.topics["t"].partitions[0]
        assert state.partition_epoch == change.partition_epoch + 1
        answers = await there.controller.partitions.elect_leaders(ElectionKind.PREFERRED, [("t", 0), ("t", 0)])
        assert len(answers) == 1
        state = there.image.topics["t"].partitions[0]
        assert state.leader == 2
        assert state.leader_epoch == change.leader_epoch + 1

    play(story)


@pytest.mark.parametrize("seed", range(3))
def test_what_a_full_disk_held_up_is_applied_before_anything_is_decided(seed: int) -> None:
    with cluster(seed, voters=[1]) as servers:

        async def main() -> None:
            await servers.start()
            await servers.until_active()
            quorum = servers.servers[1].quorum
            await servers.propose(1, b"before")
            disk = servers.machine(1).disk
            disk.capacity = 0
            disk.capacity = -disk.free_bytes()
            with pytest.raises(StorageError):
                await servers.propose(1, b"late")
            with pytest.raises(StorageError, match="is full, or the process has no free file"):
                await servers.call(1, quorum.settled())
            disk.capacity = None
            while True:
                try:
                    await servers.call(1, quorum.settled())
                    break
                except StorageError:
                    await asyncio.sleep(0.0005)
            assert servers.servers[1].history.data == [b"before", b"late"]

        servers.world.run(main())
