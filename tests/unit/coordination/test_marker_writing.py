"""Markers into partitions that are led here: answered when they are committed, each once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from penstock.coordination.groups import OFFSETS_TOPIC, GroupCoordinator
from penstock.coordination.marker_writing import MarkerWriter
from penstock.core.metadata.records import ConfigChanged, TopicCreated
from penstock.core.shard.exchange import Marker
from penstock.core.txn.exchange import MarkersDue
from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import TRANSACTIONAL_BIT, BatchHeader, iterate_headers, read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.partition import Partition
from support.worlds.hosted import NOW_MS, HostedWorld, follow_nobody

PRODUCER = 7
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
PARTITION = (OFFSETS_TOPIC, 4)


class Groups:
    def __init__(self) -> None:
        self.ended: list[tuple[int, Marker]] = []
        self.refusal: ApiError | None = None

    async def end_transaction(self, index: int, marker: Marker) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.ended.append((index, marker))


class World(HostedWorld):
    """Broker 1 leads t-0 and u-0 alone; t-1 has a second replica that has not fetched yet."""

    def __init__(self) -> None:
        super().__init__({})
        self.hosted.host.node_id = 1
        for name, topic_id, partitions in (("t", b"t" * 16, ((1,), (1, 2))), ("u", b"u" * 16, ((1,),))):
            self.image.replay(TopicCreated(name, topic_id.hex(), partitions))
            self.image.replay(ConfigChanged(2, name, {"flush.messages": str(2**63 - 1)}))
            self.hosted.topic_created(self.image.topics[name])
        self.groups = Groups()
        self.writer = MarkerWriter(
            asyncio.get_running_loop(), self.hosted, cast(GroupCoordinator, self.groups), self.clock
        )

    def produce(self, partition: Partition, sequence: int = 0, epoch: int = 0) -> None:
        data = build_batch(
            [Record(b"k", b"v", (), NOW_MS)],
            producer_id=PRODUCER,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT,
        )
        guard = partition.log.producers.begin_verification(PRODUCER, sequence, epoch)
        partition.append_transactional(read_header(data), data, NOW_MS, guard)

    def replicate(self, partition: Partition) -> None:
        partition.follower_fetched(2, partition.log.log_end_offset, 0, self.hosted.host.now_ms())


def marker(epoch: int = 0, *, commit: bool = True, coordinator_epoch: int = 0, version: int = 0) -> Marker:
    return Marker(PRODUCER, epoch, commit, coordinator_epoch, version)


def headers(partition: Partition) -> list[BatchHeader]:
    piece = partition.log.reader.read(0, 1 << 20)
    assert piece is not None
    return [header for _, header in iterate_headers(piece.read(), "log")]


async def test_markers_end_the_transaction_in_each_partition() -> None:
    world = World()
    partitions = [world.hosted.get("t", 0), world.hosted.get("u", 0)]
    for partition in partitions:
        world.produce(partition)
        assert partition.last_stable_offset == 0
    due = MarkersDue("id", PRODUCER, 0, True, 0, frozenset((T0, U0)))
    codes = await world.writer.write(due, 5, due.partitions)
    assert codes == {T0: ErrorCode.NONE, U0: ErrorCode.NONE}
    for partition in partitions:
        assert partition.last_stable_offset == 2
        assert [header.is_control for header in headers(partition)] == [False, True]
        producer = partition.log.producers.get(PRODUCER)
        assert producer is not None
        assert (producer.epoch, producer.coordinator_epoch) == (0, 5)


async def test_the_answer_waits_until_the_marker_is_committed() -> None:
    world = World()
    partition = world.hosted.get("t", 1)
    world.produce(partition)
    writing = asyncio.ensure_future(world.writer.write_all(marker(), frozenset((T1, T0))))
    await asyncio.sleep(0.01)
    assert not writing.done(), "the other replica has no marker yet"
    assert world.hosted.get("t", 0).log.log_end_offset == 1, "and holds up nobody else's"
    world.replicate(partition)
    assert await writing == {T0: ErrorCode.NONE, T1: ErrorCode.NONE}


async def test_a_marker_that_is_there_already_is_not_written_again() -> None:
    """Version 2. Its answer waits for the one that is there."""
    world = World()
    partition = world.hosted.get("t", 1)
    world.produce(partition)
    twice = [asyncio.ensure_future(world.writer.write_all(marker(1, version=2), frozenset((T1,)))) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(one.done() for one in twice)
    assert len(headers(partition)) == 2
    world.replicate(partition)
    assert await asyncio.gather(*twice) == [{T1: ErrorCode.NONE}] * 2
    assert await world.writer.write_all(marker(1, version=2), frozenset((T1,))) == {T1: ErrorCode.NONE}
    assert len(headers(partition)) == 2


async def test_a_marker_that_comes_again_does_not_end_the_next_transaction() -> None:
    world = World()
    partition = world.hosted.get("t", 0)
    world.produce(partition)
    await world.writer.write_all(marker(1, version=2), frozenset((T0,)))
    world.produce(partition, epoch=1)
    assert await world.writer.write_all(marker(1, version=2), frozenset((T0,))) == {T0: ErrorCode.NONE}
    assert partition.last_stable_offset == 2
    assert len(headers(partition)) == 3


async def test_each_partition_has_its_own_answer() -> None:
    world = World()
    world.produce(world.hosted.get("u", 0), epoch=3)
    follow_nobody(world.hosted.get("t", 1))
    nowhere = ("nothing", 0)
    codes = await world.writer.write_all(marker(), frozenset((T0, T1, U0, nowhere)))
    assert codes == {
        T0: ErrorCode.NONE,
        T1: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        U0: ErrorCode.INVALID_PRODUCER_EPOCH,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_a_marker_of_an_earlier_coordinator_is_fenced() -> None:
    world = World()
    await world.writer.write_all(marker(coordinator_epoch=5), frozenset((T0,)))
    code = (await world.writer.write_all(marker(coordinator_epoch=4), frozenset((T0,))))[T0]
    assert code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


async def test_too_few_replicas_refuse_a_marker() -> None:
    world = World()
    partition = world.hosted.get("t", 1)
    world.image.replay(ConfigChanged(2, "t", {"min.insync.replicas": "2"}))
    world.hosted.config_changed("t")
    known = partition.metadata
    partition.apply_state(replace(known, isr=(1,), partition_epoch=known.partition_epoch + 1))
    codes = await world.writer.write_all(marker(), frozenset((T1,)))
    assert codes == {T1: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert partition.log.log_end_offset == 0


async def test_leadership_that_is_lost_before_the_commit_is_told() -> None:
    world = World()
    partition = world.hosted.get("t", 1)
    writing = asyncio.ensure_future(world.writer.write_all(marker(), frozenset((T1,))))
    await asyncio.sleep(0)
    follow_nobody(partition)
    assert await asyncio.wait_for(writing, 5) == {T1: ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_markers_for_committed_offsets_are_written_by_the_group_coordinator() -> None:
    world = World()
    codes = await world.writer.write_all(marker(), frozenset((PARTITION, T0)))
    assert codes == {PARTITION: ErrorCode.NONE, T0: ErrorCode.NONE}
    assert world.groups.ended == [(4, marker())]
    world.groups.refusal = ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert await world.writer.write_all(marker(), frozenset((PARTITION,))) == {
        PARTITION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    }
