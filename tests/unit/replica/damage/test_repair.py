"""A damaged replica: it stops counting, is cut before the damage, and takes the rest again from its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.model.errors import ErrorCode
from penstock.replica.partition import Partition
from penstock.replica.repair import Expected, scan
from penstock.sim.machine.world import SimWorld
from penstock.wire.messages.fetch import FetchRequest, FetchResponse
from support.scripted.leader import FOLLOWER, LEADER, FollowingBroker, batch, batches, ends_at, says, stored, until

LAZY = {"flush.messages": "1000000"}
IN_SYNC = (LEADER, FOLLOWER)


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(3) as made:
        yield made


def run(world: SimWorld, work: Coroutine[Any, Any, None]) -> None:
    world.run(work, timeout_s=600)


def serve(count: int) -> Any:
    """A leader with so many one-record batches of epoch 1."""

    def respond(request: FetchRequest) -> FetchResponse | None:
        for topic in request.topics:
            for one in topic.partitions:
                if one.fetch_offset < count:
                    data = batches(one.fetch_offset, count - one.fetch_offset, epoch=1)
                    return says(one.partition, records=data, high_watermark=count)
        return None

    return respond


async def follow_to(broker: FollowingBroker, count: int, isr: tuple[int, ...] = IN_SYNC) -> Partition:
    await broker.start()
    broker.leader.respond = serve(count)
    await broker.follow(isr=isr)
    await until(ends_at(broker.partitions[0], count))
    return broker.partitions[0]


def damage(broker: FollowingBroker, partition: Partition, offset: int, byte: int = 65) -> str:
    size = len(batch(0, 1))
    segment = partition.log.segments[0]
    broker.machine.disk.flip_bit(segment.path, offset * size + byte)
    return segment.path


async def report(broker: FollowingBroker, path: str | None) -> None:
    async def found() -> None:
        broker.fetchers.repairs.found(broker.partitions[0], path)

    await broker.machine.run(found())


async def tell(partition: Partition, path: str) -> None:
    """As whoever reads it does, knowing no more than the partition."""
    partition.report_damage(path)


async def shrink(broker: FollowingBroker, epoch: int = 1) -> None:
    await broker.follow(epoch=epoch, isr=(LEADER,))


def is_sound(partition: Partition) -> bool:
    segment, owner = partition.log.segments[0], partition.log
    expected = Expected(range(owner.log_end_offset), False, owner.epochs, partition.leader_epoch)
    found = scan(segment.file(), segment.path, segment.size, expected)
    return not found.is_damaged


# In the records, the length, the offset, the offset a little, the leader epoch a little and much.
@pytest.mark.parametrize("byte", [65, 10, 2, 7, 15, 13])
@pytest.mark.parametrize("offset", [0, 1, 7, 19])
def test_a_replica_that_does_not_count_is_mended(world: SimWorld, offset: int, byte: int) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        path = damage(broker, partition, offset, byte)
        assert not is_sound(partition)
        await report(broker, path)
        await until(lambda: broker.fetchers.repairs.repaired == 1)
        await until(ends_at(partition, 20))
        assert is_sound(partition)
        assert stored(partition) == [(n, 1) for n in range(20)]
        assert broker.lowered[-1][1] in (max(0, offset - 1), max(0, offset - 2))  # durably before the damage
        assert broker.fetchers.repairs.under_way == []

    run(world, main())


def test_a_compacted_replica_is_fetched_anew_as_a_whole(world: SimWorld) -> None:
    """Tombstones that it had may be gone at the leader: behind the damage they would be missing."""
    broker = FollowingBroker(world, settings={**LAZY, "cleanup.policy": "compact"})

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        await report(broker, damage(broker, partition, 7))
        await until(ends_at(partition, 0))
        await until(lambda: broker.fetchers.repairs.repaired == 1)
        await until(ends_at(partition, 20))
        assert is_sound(partition)
        assert stored(partition) == [(n, 1) for n in range(20)]
        assert broker.lowered[-1][1] == 0

    run(world, main())


def test_a_replica_that_does_not_count_is_not_cut_before_its_leader_could_withdraw_its_return(world: SimWorld) -> None:
    """The leader may have asked the controller to take it back, as one that had caught up."""
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        await report(broker, damage(broker, partition, 7))
        await until(lambda: bool(broker.leader.disowned))
        assert {(entry.offset, entry.leader_epoch) for entry in broker.leader.disowned} == {(6, 1)}
        assert partition.log.log_end_offset == 20
        await broker.follow(isr=IN_SYNC)  # it was decided before the leader heard
        await asyncio.sleep(20)
        assert partition.log.log_end_offset == 20
        await shrink(broker)
        await until(lambda: broker.fetchers.repairs.repaired == 1)
        await until(ends_at(partition, 20))

    run(world, main())


def test_a_replica_that_is_in_sync_after_its_cut_leaves_before_it_goes_on(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        broker.lowering = broker.follow(isr=IN_SYNC)  # decided while the recovery point is being written
        await report(broker, damage(broker, partition, 7))
        await until(ends_at(partition, 6))
        broker.leader.disowned.clear()
        await asyncio.sleep(12)
        assert partition.log.log_end_offset == 6
        assert {entry.offset for entry in broker.leader.disowned} == {6}
        await shrink(broker)
        await until(ends_at(partition, 20))
        assert is_sound(partition)

    run(world, main())


def test_a_replica_in_sync_leaves_the_in_sync_replicas_before_it_is_cut(world: SimWorld) -> None:
    broker = FollowingBroker(world)

    async def main() -> None:
        partition = await follow_to(broker, 20)
        path = damage(broker, partition, 7)
        await report(broker, path)
        await until(lambda: bool(broker.leader.disowned))
        assert [(entry.offset, entry.leader_epoch) for entry in broker.leader.disowned] == [(6, 1)]
        broker.leader.acknowledged.clear()
        await asyncio.sleep(20)
        assert partition.log.log_end_offset == 20  # all that is sound stays until it does not count any more
        assert broker.leader.acknowledged == []
        await shrink(broker)
        await until(lambda: broker.fetchers.repairs.repaired == 1)
        await until(ends_at(partition, 20))
        assert is_sound(partition)
        await until(lambda: any(entry.offset == 20 for entry in broker.leader.acknowledged))

    run(world, main())


def test_a_new_leader_is_told_too(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 5)
        await report(broker, damage(broker, partition, 2))
        await until(lambda: len(broker.leader.disowned) == 1)
        await broker.follow(epoch=2, isr=IN_SYNC)
        await until(lambda: len(broker.leader.disowned) == 2)
        assert broker.leader.disowned[-1].leader_epoch == 2
        await shrink(broker, epoch=2)
        await until(lambda: is_sound(partition) and partition.log.log_end_offset == 5)

    run(world, main())


def test_a_damaged_leader_asks_to_be_relieved_and_is_mended_as_follower(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        await broker.follow(epoch=2, leader=FOLLOWER, isr=IN_SYNC)
        await broker.machine.run(tell(partition, damage(broker, partition, 4)))
        await until(lambda: partition.followers is not None and partition.followers.pending_isr == (LEADER,))
        await asyncio.sleep(20)
        assert partition.log.log_end_offset == 9
        await broker.follow(epoch=3, leader=LEADER, isr=(LEADER,))
        await until(lambda: is_sound(partition) and partition.log.log_end_offset == 9)

    run(world, main())


def test_the_only_replica_in_sync_keeps_what_it_has(world: SimWorld, caplog: pytest.LogCaptureFixture) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        await broker.follow(epoch=2, leader=FOLLOWER, isr=(FOLLOWER,))
        await report(broker, damage(broker, partition, 4))
        await until(lambda: "is damaged but needed" in caplog.text)
        assert partition.followers is not None
        assert partition.followers.pending_isr is None
        assert partition.log.log_end_offset == 9

    run(world, main())


def test_a_replica_without_which_too_few_are_in_sync_stays_until_there_are_more(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings={"min.insync.replicas": "2"})

    async def main() -> None:
        partition = await follow_to(broker, 9)
        await report(broker, damage(broker, partition, 4))
        broker.leader.respond = serve(12)
        broker.leader.release()
        await until(ends_at(partition, 12))  # it goes on
        assert broker.leader.disowned == []
        await broker.follow(epoch=1, isr=(LEADER, FOLLOWER, 3))
        await until(lambda: len(broker.leader.disowned) == 1)
        await broker.follow(epoch=1, isr=(LEADER,))  # another one has left: it is needed again
        await asyncio.sleep(5)
        assert partition.log.log_end_offset == 12
        await broker.follow(epoch=1, isr=(LEADER, 3))
        await until(lambda: is_sound(partition) and partition.log.log_end_offset == 12)

    run(world, main())


def _answer_with(answer: FetchResponse, request: FetchRequest) -> FetchResponse:
    return answer


def _is_told(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


def test_an_epoch_that_no_leader_had_yet_is_damage(world: SimWorld, caplog: pytest.LogCaptureFixture) -> None:
    """As after a crash: what is not in the checkpoint of epochs was taken from the batches."""
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        damage(broker, partition, 8, byte=13)
        partition.log.epochs.assign(1 | 1 << 16, 8)
        await broker.follow(epoch=2, isr=(LEADER,))
        await until(lambda: broker.fetchers.repairs.repaired == 1)
        await until(lambda: is_sound(partition) and partition.log.log_end_offset == 9)
        assert partition.log.epochs.latest == 1

    run(world, main())


def test_batches_of_impossible_epochs_are_not_taken(world: SimWorld, caplog: pytest.LogCaptureFixture) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        await broker.follow(epoch=3, isr=(LEADER,))
        for epoch in (0, 4):
            answer = says(records=batch(9, epoch), high_watermark=10)
            broker.leader.respond = partial(_answer_with, answer)
            broker.leader.release()
            await until(partial(_is_told, caplog, f"leader epoch {epoch}, expected 1 to 3"))
        assert partition.log.log_end_offset == 9
        broker.leader.respond = lambda request: says(records=batch(9, 3), high_watermark=10)
        await until(ends_at(partition, 10))

    run(world, main())


def test_damage_that_is_not_there_changes_nothing(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        await report(broker, None)
        await until(lambda: not broker.fetchers.repairs.under_way)
        assert partition.log.log_end_offset == 9
        assert broker.leader.disowned == []
        assert broker.fetchers.repairs.repaired == 0

    run(world, main())


def test_a_log_that_grows_while_it_is_looked_at_is_not_taken_for_damaged(world: SimWorld) -> None:
    size = len(batch(0, 1))
    broker = FollowingBroker(world, settings={**LAZY, "internal.segment.bytes": str(15 * size)})

    async def main() -> None:
        await broker.start()
        broker.leader.answers += [says(records=batch(n, 1), high_watermark=n) for n in range(20)]
        await broker.follow(isr=(LEADER,))
        partition = broker.partitions[0]
        await until(ends_at(partition, 20))
        assert len(partition.log.segments) == 2
        await report(broker, None)
        assert broker.fetchers.repairs.under_way == [partition]
        data = batches(20, 3, epoch=1)
        await broker.machine.run(append_fetched(partition, data))
        await until(lambda: not broker.fetchers.repairs.under_way)
        assert partition.log.log_end_offset == 23
        assert broker.fetchers.repairs.repaired == 0

    run(world, main())


async def append_fetched(partition: Partition, data: bytes) -> None:
    partition.append_fetched(data, 1, 20, 0, 0)


def test_damage_somewhere_is_found_in_any_segment(world: SimWorld) -> None:
    size = len(batch(0, 1))
    broker = FollowingBroker(world, settings={**LAZY, "internal.segment.bytes": str(5 * size)})

    async def main() -> None:
        await broker.start()
        broker.leader.answers += [says(records=batch(n, 1), high_watermark=n) for n in range(20)]
        await broker.follow(isr=(LEADER,))
        partition = broker.partitions[0]
        await until(ends_at(partition, 20))
        assert len(partition.log.segments) > 2
        damaged = partition.log.segments[-2]
        broker.leader.respond = serve(20)
        broker.machine.disk.flip_bit(damaged.path, 65)
        await report(broker, None)
        await until(lambda: broker.fetchers.repairs.repaired == 1)
        assert broker.lowered[-1] == (partition, damaged.base_offset - 1)  # the batch before the damaged segment
        await until(ends_at(partition, 20))

    run(world, main())


# -- the word of one reader is not enough -----------------------------------------------------------------------------


def with_gaps(request: FetchRequest) -> FetchResponse | None:
    """A leader that has compacted."""
    kept = [0, 3, 7, 8, 12]
    for one in (one for topic in request.topics for one in topic.partitions):
        data = b"".join(batch(offset, 1) for offset in kept if offset >= one.fetch_offset)
        return says(one.partition, records=data, high_watermark=13) if data else None
    return None


def aside(broker: FollowingBroker) -> list[str]:
    return [name for name in broker.machine.disk.list_directory("/data") if "-damaged" in name]


def test_a_replica_is_not_cut_where_its_leader_has_the_same_bytes(
    world: SimWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader may be wrong about all replicas alike, as here about gaps."""
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        broker.leader.respond = with_gaps
        await broker.follow(isr=IN_SYNC)
        partition = broker.partitions[0]
        await until(ends_at(partition, 13))
        before = stored(partition)
        partition.log.gaps.is_contiguous = True  # the reader's mistake
        await report(broker, partition.log.segments[0].path)
        await until(lambda: broker.fetchers.repairs.refused == 1)
        assert "so nothing is damaged" in caplog.text
        await report(broker, partition.log.segments[0].path)
        await asyncio.sleep(20)
        assert broker.fetchers.repairs.refused == 1, "it is trusted for a while"
        assert stored(partition) == before
        assert broker.leader.disowned == [], "it need not even leave the in-sync replicas"
        assert broker.fetchers.repairs.repaired == 0
        assert aside(broker) == []

    run(world, main())


def test_a_replica_is_not_cut_where_what_was_damaged_can_be_read_now(
    world: SimWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory was wrong, and not the disk. The leader of a compacted log has other bytes there in any case."""
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        compacted = b"".join(batch(offset, 1) for offset in (6, 9, 12, 19))
        broker.leader.show = lambda request: says(records=compacted, high_watermark=20)
        await report(broker, damage(broker, partition, 7))
        await until(lambda: bool(broker.leader.disowned))
        damage(broker, partition, 7)  # the bit flips back
        await until(lambda: "can be read now" in caplog.text)
        assert stored(partition) == [(n, 1) for n in range(20)]
        assert broker.fetchers.repairs.repaired == 0
        assert broker.fetchers.repairs.under_way == []
        assert aside(broker) == []

    run(world, main())


def test_a_replica_is_not_cut_while_its_leader_cannot_show_a_sound_copy(
    world: SimWorld, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        broker.leader.show = lambda request: says(error_code=int(ErrorCode.CORRUPT_MESSAGE))
        path = damage(broker, partition, 7)
        await report(broker, path)
        await until(lambda: "not truncated yet: broker 1 answers CORRUPT_MESSAGE" in caplog.text)
        rotten = bytearray(batches(6, 14, epoch=1))
        rotten[100] ^= 1
        broker.leader.show = lambda request: says(records=bytes(rotten), high_watermark=20)
        await until(lambda: "the copy of broker 1 is damaged there as well" in caplog.text)
        await asyncio.sleep(20)
        assert partition.log.log_end_offset == 20
        assert broker.fetchers.repairs.under_way == [partition]
        broker.leader.show = lambda request: serve(20)(request)
        await until(lambda: broker.fetchers.repairs.repaired == 1)
        await until(ends_at(partition, 20))
        assert is_sound(partition)

    run(world, main())


def test_damage_beyond_the_leaders_log_is_cut(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        broker.leader.show = lambda request: says(error_code=int(ErrorCode.OFFSET_OUT_OF_RANGE))
        await report(broker, damage(broker, partition, 7))
        await until(lambda: broker.fetchers.repairs.repaired == 1)

    run(world, main())


def test_what_is_cut_is_kept_until_the_replica_is_in_sync(world: SimWorld, caplog: pytest.LogCaptureFixture) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        path = damage(broker, partition, 7)
        disk = broker.machine.disk
        tail = disk.peek(path, len(batches(0, 6, 1)), 1 << 20)
        await report(broker, path)
        await until(lambda: broker.fetchers.repairs.repaired == 1)
        (name,) = aside(broker)
        assert f"kept in /data/{name} until" in caplog.text
        assert disk.peek(f"/data/{name}/{6:020d}.log", 0, 1 << 20) == tail
        await until(ends_at(partition, 20))
        await until(lambda: not broker.fetchers.repairs.under_way)
        assert aside(broker) == [name], "caught up is not in sync"
        await broker.follow(isr=IN_SYNC)
        await until(lambda: aside(broker) == [])
        assert broker.fetchers.repairs.set_aside_count == 0

    run(world, main())


def test_what_is_cut_again_before_it_is_in_sync_is_not_kept_twice(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 20, isr=(LEADER,))
        for count, offset in enumerate([7, 9, 3]):
            await report(broker, damage(broker, partition, offset))
            await until(lambda count=count: broker.fetchers.repairs.repaired == count + 1)  # type: ignore[misc]
            await until(ends_at(partition, 20))
            assert len(aside(broker)) == [1, 1, 2][count]

    run(world, main())


def test_a_damaged_leader_that_leads_again_does_not_resign_at_once(world: SimWorld) -> None:
    """Where a reader is wrong about every replica, leadership would go round as fast as messages do."""
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        partition = await follow_to(broker, 9)
        broker.leader.show = lambda request: says(error_code=int(ErrorCode.CORRUPT_MESSAGE))
        await broker.follow(epoch=2, leader=FOLLOWER, isr=IN_SYNC)
        await report(broker, damage(broker, partition, 4))
        await until(lambda: partition.followers is not None and partition.followers.pending_isr == (LEADER,))
        await broker.follow(epoch=3, leader=LEADER, isr=IN_SYNC)
        await asyncio.sleep(10)
        await broker.follow(epoch=4, leader=FOLLOWER, isr=IN_SYNC)
        await asyncio.sleep(20)
        assert partition.followers is not None
        assert partition.followers.pending_isr is None
        await asyncio.sleep(40)
        assert partition.followers.pending_isr == (LEADER,)

    run(world, main())
