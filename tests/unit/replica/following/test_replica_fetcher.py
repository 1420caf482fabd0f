"""Following one leader: appends, acknowledgements, truncation, errors, lost connections, idle partitions."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from penstock.config.topic import TopicConfig
from penstock.model.errors import ErrorCode, StorageError
from penstock.sim.machine.threads import DiskTimes
from penstock.sim.machine.world import SimWorld
from penstock.wire.messages.fetch import EpochEndOffset, FetchPartition, FetchRequest, FetchResponse
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from support.scripted.leader import (
    LEADER,
    SESSION,
    TOPIC_ID,
    FollowingBroker,
    batch,
    batches,
    ends_at,
    says,
    stored,
    until,
)

LAZY = {"flush.messages": "1000000"}


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(11) as made:
        yield made


def run(world: SimWorld, work: Coroutine[Any, Any, None], timeout_s: float = 600) -> None:
    world.run(work, timeout_s=timeout_s)


def asked(request: FetchRequest) -> list[FetchPartition]:
    return [partition for topic in request.topics for partition in topic.partitions]


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


# -- appending ----------------------------------------------------------------------------------------------------


def test_what_the_leader_sends_is_appended_and_the_next_fetch_says_so(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        broker.leader.answers += [
            says(records=batches(0, 3, epoch=1), high_watermark=1),
            says(records=batches(3, 2, epoch=1), high_watermark=4),
        ]
        await broker.follow()
        partition = broker.partitions[0]
        await until(lambda: len(broker.leader.fetches) == 3)
        assert stored(partition) == [(n, 1) for n in range(5)]
        assert partition.high_watermark == 4
        first, second, third = broker.leader.fetches
        assert [(one.fetch_offset, one.last_fetched_epoch) for one in asked(first)] == [(0, -1)]
        assert first.replica_state is not None
        assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 40)
        assert [(one.fetch_offset, one.last_fetched_epoch) for one in asked(second)] == [(3, 1)]
        assert [one.fetch_offset for one in asked(third)] == [5]
        assert [request.session_epoch for request in broker.leader.fetches] == [0, 1, 2]
        assert [request.session_id for request in broker.leader.fetches] == [0, SESSION, SESSION]
        assert broker.leader.acknowledged == []  # nothing durable is promised here
        assert broker.fetchers.bytes_fetched == len(batches(0, 5, epoch=1))

    run(world, main())


def test_an_idle_follower_asks_once_per_wait_and_names_nothing(world: SimWorld) -> None:
    count = 3000
    broker = FollowingBroker(world, count, settings=LAZY)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 1)
        assert len(asked(broker.leader.fetches[0])) == count
        await asyncio.sleep(10)
        assert 18 <= len(broker.leader.fetches) <= 22  # replica.fetch.wait.max.ms is 500
        assert all(not asked(request) and not request.forgotten_topics_data for request in broker.leader.fetches[1:])
        broker.leader.answers.append(says(index=1234, records=batch(0, 1)))
        broker.leader.release()
        await until(ends_at(broker.partitions[1234], 1))
        await until(lambda: asked(broker.leader.fetches[-1]) != [])
        assert [one.partition for one in asked(broker.leader.fetches[-1])] == [1234]
        assert broker.leader.wakes == 0

    run(world, main())


def test_the_log_start_follows_the_leaders(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        broker.leader.answers += [
            says(records=batches(0, 5, epoch=1), high_watermark=5),
            says(high_watermark=5, log_start_offset=3),
        ]
        await broker.follow()
        await until(lambda: broker.partitions[0].log.log_start_offset == 3)
        await until(lambda: len(broker.leader.fetches) == 3)
        assert [one.log_start_offset for one in asked(broker.leader.fetches[2])] == [3]  # whoever deletes waits for it

    run(world, main())


# -- acknowledging ------------------------------------------------------------------------------------------------


def test_what_is_stable_is_acknowledged_while_the_leader_holds_the_fetch(world: SimWorld) -> None:
    broker = FollowingBroker(world)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 2)  # the first one is not held: it tells whether logs agree
        assert [request.max_wait_ms for request in broker.leader.fetches] == [0, 500]
        broker.leader.answers.append(says(records=batches(0, 3, epoch=1)))
        broker.leader.release()
        await until(lambda: len(broker.leader.fetches) == 3)
        before = world.loop.time()
        await until(lambda: bool(broker.leader.acknowledged) and broker.leader.acknowledged[-1].offset == 3)
        assert world.loop.time() - before < 0.4  # the fetch would be held for longer
        assert broker.leader.acknowledged[-1].leader_epoch == 1
        assert len(broker.leader.fetches) == 3
        assert broker.leader.wakes == 0
        assert [one.fetch_offset for one in asked(broker.leader.fetches[2])] == [3]

    run(world, main())


def test_a_slow_flush_holds_up_neither_its_own_partition_nor_another(world: SimWorld) -> None:
    broker = FollowingBroker(world, 2)
    broker.machine.disk_times = DiskTimes(sync_s=5.0, slow_chance=0)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 2)
        for offset in range(3):
            broker.leader.answers += [says(index, records=batch(offset, 1)) for index in (0, 1)]
            broker.leader.release()
            await until(lambda: not broker.leader.answers)
        await until(ends_at(broker.partitions[1], 3))
        await until(ends_at(broker.partitions[0], 3))
        assert all(entry.offset == 0 for entry in broker.leader.acknowledged)
        offsets = [one.fetch_offset for request in broker.leader.fetches for one in asked(request)]
        assert sorted(offsets) == [0, 0, 1, 1, 2, 2, 3, 3]  # nothing is asked for twice
        await until(
            lambda: {entry.partition for entry in broker.leader.acknowledged if entry.offset == 3} == {0, 1}, 60
        )

    run(world, main())


def test_a_flush_that_ends_after_flushing_was_left_to_the_system_is_acknowledged(world: SimWorld) -> None:
    broker = FollowingBroker(world)
    broker.machine.disk_times = DiskTimes(sync_s=5.0, slow_chance=0)

    async def leave_to_the_system() -> None:
        broker.partitions[0].apply_config(TopicConfig.resolve(LAZY))

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 2)
        broker.leader.answers.append(says(records=batches(0, 3, epoch=1)))
        broker.leader.release()
        await until(ends_at(broker.partitions[0], 3))
        await broker.machine.run(leave_to_the_system())
        await until(lambda: broker.leader.acknowledged[-1].offset == 3)

    run(world, main())


def test_flushes_that_end_together_are_acknowledged_together(world: SimWorld) -> None:
    broker = FollowingBroker(world, 40)
    broker.machine.disk_times = DiskTimes(sync_s=0, slow_chance=0)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: {entry.partition for entry in broker.leader.acknowledged} == set(range(40)))
        assert broker.leader.acknowledging_frames == 1  # all of them matched with one answer
        assert all(entry.offset == 0 for entry in broker.leader.acknowledged)

    run(world, main())


def test_nothing_is_acknowledged_before_the_logs_are_known_to_agree(world: SimWorld) -> None:
    broker = FollowingBroker(world)

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        await broker.follow(epoch=1, leader=-1)
        broker.write_own(partition, batches(0, 5, epoch=1))  # of which the leader of epoch 2 has but three
        broker.leader.answers.append(says(diverging_epoch=EpochEndOffset(epoch=1, end_offset=3)))
        await broker.follow(epoch=2)
        await until(lambda: bool(broker.leader.acknowledged))
        assert {entry.offset for entry in broker.leader.acknowledged} <= {0, 3}
        assert {entry.leader_epoch for entry in broker.leader.acknowledged} == {2}
        assert partition.log.log_end_offset == 3

    run(world, main())


# -- truncation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "diverging", "end"),
    [
        ([(0, 4, 1)], (1, 2), 2),  # the leader has less of the same epoch
        ([(0, 2, 1), (2, 3, 3)], (1, 2), 2),  # and nothing of our last one
        ([(0, 2, 1), (2, 2, 2), (4, 2, 4)], (2, 3), 3),  # two epochs back
        (
            [(0, 2, 1), (2, 2, 3), (4, 2, 5)],
            (4, 9),
            4,
        ),  # an epoch of its own that we never saw: ours before it ends at 4
        ([(0, 3, 2)], (1, 1), 0),  # nothing in common
    ],
)
def test_a_log_that_parts_from_the_leaders_is_cut_where_it_does(
    world: SimWorld, own: list[tuple[int, int, int]], diverging: tuple[int, int], end: int
) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        await broker.follow(epoch=1, leader=-1)
        for offset, count, epoch in own:
            broker.write_own(partition, batches(offset, count, epoch))
        partition.log.persisted_recovery_point = partition.log.log_end_offset
        broker.leader.answers += [
            says(diverging_epoch=EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])),
            says(records=batches(end, 2, epoch=7)),
        ]
        await broker.follow(epoch=7)
        await until(lambda: partition.log.epochs.latest == 7)
        kept = [(offset + n, epoch) for offset, count, epoch in own for n in range(count) if offset + n < end]
        assert stored(partition) == [*kept, (end, 7), (end + 1, 7)]
        assert broker.lowered == [(partition, end)]  # before the cut

    run(world, main())


def test_a_cut_that_comes_too_late_for_its_epoch_is_left_to_the_new_role(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        await broker.follow(epoch=1, leader=-1)
        broker.write_own(partition, batches(0, 4, epoch=1))
        partition.log.persisted_recovery_point = 4
        broker.lowering = broker.follow(epoch=3, leader=2)  # elected while its recovery point is being written
        broker.leader.answers.append(says(diverging_epoch=EpochEndOffset(epoch=1, end_offset=2)))
        await broker.follow(epoch=2)
        await until(lambda: partition.is_leader)
        await asyncio.sleep(1)
        assert partition.log.log_end_offset == 4

    run(world, main())


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), StorageError("no room")])
def test_a_cut_that_fails_is_tried_again(world: SimWorld, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    def respond(request: FetchRequest) -> FetchResponse | None:
        offsets = [one.fetch_offset for one in asked(request)]
        return says(diverging_epoch=EpochEndOffset(epoch=1, end_offset=2)) if offsets == [4] else None

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        await broker.follow(epoch=1, leader=-1)
        broker.write_own(partition, batches(0, 4, epoch=1))
        broker.lowering = fail(error)
        broker.leader.respond = respond
        await broker.follow(epoch=2)
        await until(lambda: str(error) in caplog.text)
        assert broker.leader.disowned[-1].leader_epoch == 2  # nobody waits for this one
        broker.lowering = None
        await until(ends_at(partition, 2))

    run(world, main())


def test_damage_that_is_met_on_the_way_to_a_cut_is_mended(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)
    size = len(batch(0, 1))

    def respond(request: FetchRequest) -> FetchResponse | None:
        for one in asked(request):
            if one.fetch_offset > 2:
                return says(diverging_epoch=EpochEndOffset(epoch=1, end_offset=2))
            if one.fetch_offset < 2:
                return says(records=batches(one.fetch_offset, 2 - one.fetch_offset, epoch=1))
        return None

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        await broker.follow(epoch=1, leader=-1)
        broker.write_own(partition, batches(0, 4, epoch=1))
        broker.machine.disk.flip_bit(partition.log.segments[0].path, size + 10)  # a length: what follows is not found
        broker.leader.respond = respond
        await broker.follow(epoch=2)
        await until(ends_at(partition, 2))
        assert broker.fetchers.repairs.repaired == 1
        assert stored(partition) == [(0, 1), (1, 1)]

    run(world, main())


def test_below_the_leaders_log_start_everything_begins_anew_there(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        await broker.follow(epoch=1, leader=-1)
        broker.write_own(partition, batches(0, 4, epoch=1))
        broker.leader.answers.append(says(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        broker.leader.other_answers += [bound(120), bound(100)]
        await broker.follow(epoch=2)
        await until(lambda: partition.log.log_start_offset == 100)
        assert partition.log.log_end_offset == partition.high_watermark == 100
        assert [which(request) for request in broker.leader.others] == [-1, -2]
        broker.leader.answers.append(says(records=batches(100, 20, epoch=2), log_start_offset=100))
        broker.leader.release()
        await until(ends_at(partition, 120))

    run(world, main())


def test_a_log_that_starts_in_the_middle_of_a_batch_has_the_batch_from_its_beginning(world: SimWorld) -> None:
    """Records were deleted up to there. The leader sends no batch in part, and none to who asks below its start."""
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        broker.leader.answers.append(says(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        broker.leader.other_answers += [bound(107), bound(103)]
        await broker.follow(epoch=2)
        await until(lambda: partition.log.log_start_offset == 103)
        damaged = bytearray(batch(100, 2, count=5))
        damaged[-1] ^= 1
        sent = [bytes(damaged), batch(100, 3, count=5), batch(100, 2, count=5) + batches(105, 1, epoch=2)]
        for data in sent:
            broker.leader.answers.append(says(records=data, high_watermark=106, log_start_offset=103))
        broker.leader.release()
        await until(ends_at(partition, 105))
        assert broker.persisted == 1, "the two that are damaged begin nothing"
        assert partition.log.log_start_offset == partition.high_watermark == 103
        assert partition.log.segment_bases == [100]
        broker.leader.answers.append(says(records=batches(105, 2, epoch=2), high_watermark=106, log_start_offset=103))
        broker.leader.release()
        await until(ends_at(partition, 107))
        assert (partition.log.log_start_offset, partition.high_watermark) == (103, 106)
        assert stored(partition) == [(100, 2), (105, 2), (106, 2)]

    run(world, main())


def test_an_offset_that_is_refused_although_the_leader_has_it_is_asked_for_now_and_then(
    world: SimWorld, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        await broker.follow(epoch=1, leader=-1)
        broker.write_own(partition, batches(0, 4, epoch=1))
        refused = says(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        broker.leader.respond = lambda request: refused if request.topics else None
        broker.leader.other_answers += [bound(9), bound(0)] * 1000
        await broker.follow(epoch=2)
        await asyncio.sleep(10)
        assert 2 * 2 <= len(broker.leader.others) <= 2 * 12  # once a second, by replica.fetch.backoff.ms
        assert partition.log.log_end_offset == 4

    run(world, main())
    told = [record for record in caplog.records if "one of the two logs may be damaged" in record.getMessage()]
    assert len(told) == 1


def test_beyond_the_leaders_end_the_rest_is_cut(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        partition = broker.partitions[0]
        await broker.follow(epoch=1, leader=-1)
        broker.write_own(partition, batches(0, 9, epoch=1))
        broker.leader.answers.append(says(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        broker.leader.other_answers += [bound(6), bound(0)]
        await broker.follow(epoch=2)
        await until(ends_at(partition, 6))
        await until(lambda: [one.fetch_offset for one in asked(broker.leader.fetches[-1])] == [6])

    run(world, main())


def bound(offset: int) -> ListOffsetsResponse:
    found = ListOffsetsPartitionResponse(partition_index=0, offset=offset, timestamp=-1, leader_epoch=2)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="topic", partitions=[found])])


def which(request: object) -> int:
    assert isinstance(request, ListOffsetsRequest)
    assert request.replica_id == 2
    return request.topics[0].partitions[0].timestamp


# -- errors -------------------------------------------------------------------------------------------------------


def test_damaged_batches_are_refused_and_asked_for_again_later(
    world: SimWorld, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FollowingBroker(world, 2, settings=LAZY)
    damaged = bytearray(batches(0, 2, epoch=1))
    damaged[-1] ^= 1

    async def main() -> None:
        await broker.start()
        sick = says(0, records=bytes(damaged))
        sick.responses[0].partitions += says(1, records=batch(0, 1)).responses[0].partitions
        broker.leader.answers.append(sick)
        await broker.follow()
        await until(ends_at(broker.partitions[1], 1))
        assert broker.partitions[0].log.log_end_offset == 0
        await until(lambda: len(broker.leader.fetches) == 2)
        assert forgotten(broker.leader.fetches[1]) == [0]
        retried = broker.leader.arrivals_s[1] + 1.0  # replica.fetch.backoff.ms
        await until(lambda: any(one.partition == 0 for one in asked(broker.leader.fetches[-1])))
        assert broker.leader.arrivals_s[-1] >= retried - 0.01
        broker.leader.answers.append(says(0, records=batches(0, 2, epoch=1)))
        broker.leader.release()
        await until(ends_at(broker.partitions[0], 2))
        assert broker.fetchers.errors == 1

    run(world, main())
    assert "checksum does not match" in caplog.text


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_leader_that_has_not_heard_yet_is_asked_again_soon(world: SimWorld, code: ErrorCode) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        broker.leader.answers += [says(error_code=code), says(error_code=code), says(records=batch(0, 1))]
        await broker.follow()
        await until(ends_at(broker.partitions[0], 1))
        assert broker.leader.arrivals_s[2] - broker.leader.arrivals_s[0] < 0.2

    run(world, main())


def test_a_new_epoch_is_asked_for_at_once_although_the_leader_holds_a_fetch(world: SimWorld) -> None:
    broker = FollowingBroker(world, 2, settings=LAZY)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 1)
        await asyncio.sleep(0.05)
        before = world.loop.time()
        await broker.follow(epoch=2)
        await until(lambda: len(broker.leader.fetches) == 2)
        assert world.loop.time() - before < 0.3
        assert broker.leader.wakes == 1  # for both partitions
        assert [one.current_leader_epoch for one in asked(broker.leader.fetches[1])] == [2, 2]

    run(world, main())


def test_other_replicas_that_come_and_go_are_nothing_to_tell_the_leader(world: SimWorld) -> None:
    broker = FollowingBroker(world)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 2)
        await broker.follow(epoch=1, isr=(LEADER, 3))
        await asyncio.sleep(0.2)
        assert len(broker.leader.fetches) == 2
        assert broker.leader.wakes == 0
        broker.leader.answers.append(says(records=batch(0, 1)))
        broker.leader.release()
        await until(lambda: [entry.offset for entry in broker.leader.acknowledged] == [0, 1])

    run(world, main())


def test_an_answer_for_an_epoch_that_is_over_is_not_appended(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        await broker.follow(epoch=1)
        await until(lambda: len(broker.leader.fetches) == 1)
        broker.leader.answers.append(says(records=batch(0, 1)))
        broker.leader.release()
        await broker.follow(epoch=2)  # before the answer is there
        assert broker.partitions[0].log.log_end_offset == 0
        await until(lambda: len(broker.leader.fetches) == 2)
        assert broker.partitions[0].log.log_end_offset == 0
        assert [one.fetch_offset for one in asked(broker.leader.fetches[1])] == [0]

    run(world, main())


def test_a_lost_session_begins_anew(world: SimWorld) -> None:
    broker = FollowingBroker(world, 3, settings=LAZY)

    async def main() -> None:
        await broker.start()
        broker.leader.answers += [
            says(records=batch(0, 1)),
            FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ]
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 3)
        third = broker.leader.fetches[2]
        assert (third.session_id, third.session_epoch) == (0, 0)
        assert [one.fetch_offset for one in asked(third)] == [1, 0, 0]

    run(world, main())


@pytest.mark.parametrize("settings", [LAZY, {}])
def test_a_broker_that_registers_anew_says_everything_again(world: SimWorld, settings: dict[str, str]) -> None:
    """Records of its earlier life no longer count, and without writes there is no other occasion to say so."""
    broker = FollowingBroker(world, 2, settings=settings)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await asyncio.sleep(2)
        before = len(broker.leader.fetches)
        broker.leader.acknowledged.clear()
        broker.broker_epoch = 41
        await asyncio.sleep(2)
        again = [request for request in broker.leader.fetches[before:] if asked(request)]
        assert [one.partition for one in asked(again[0])] == [0, 1]
        assert [request.replica_state and request.replica_state.replica_epoch for request in again] == [41]
        assert (again[0].session_id, again[0].session_epoch) == (0, 0)
        assert {entry.partition for entry in broker.leader.acknowledged} == (set() if settings else {0, 1})

    run(world, main())


def test_a_leader_without_room_for_sessions_is_told_everything_each_time(world: SimWorld) -> None:
    broker = FollowingBroker(world, 3, settings=LAZY)

    async def main() -> None:
        await broker.start()
        broker.leader.answers += [FetchResponse(session_id=0)] * 3
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 4)
        assert [len(asked(request)) for request in broker.leader.fetches] == [3, 3, 3, 3]
        assert {request.session_epoch for request in broker.leader.fetches} == {0}

    run(world, main())


# -- connections and roles ----------------------------------------------------------------------------------------


def test_a_lost_connection_is_made_anew_and_everything_is_said_again(world: SimWorld) -> None:
    broker = FollowingBroker(world)

    async def main() -> None:
        await broker.start()
        broker.leader.answers.append(says(records=batches(0, 3, epoch=1)))
        await broker.follow()
        await until(lambda: bool(broker.leader.acknowledged) and broker.leader.acknowledged[-1].offset == 3)
        known = len(broker.leader.fetches)
        broker.leader.acknowledged.clear()
        broker.leader.hang_up()
        await until(lambda: len(broker.leader.fetches) > known)
        again = broker.leader.fetches[known]
        assert (again.session_id, again.session_epoch) == (0, 0)
        assert [one.fetch_offset for one in asked(again)] == [3]
        await until(lambda: [entry.offset for entry in broker.leader.acknowledged] == [3])
        assert broker.leader.connections == 2

    run(world, main())


def test_a_leader_that_is_away_is_tried_again_until_it_is_back(
    world: SimWorld, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 1)
        broker.leader_machine.kill()
        await asyncio.sleep(20)
        await broker.leader_machine.start(broker.leader.serve)
        broker.leader.answers.append(says(records=batch(0, 1)))
        await until(ends_at(broker.partitions[0], 1), 5)

    run(world, main())
    assert caplog.text.count("cannot fetch from broker 1") == 1


def test_a_leader_that_hangs_up_on_every_fetch_is_tried_ever_less_often(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    def hang_up(_: FetchRequest) -> None:
        broker.leader.hang_up()

    async def main() -> None:
        await broker.start()
        broker.leader.respond = hang_up
        await broker.follow()
        await asyncio.sleep(20)
        assert 20 <= broker.leader.connections <= 30  # soon at first, then once a second
        broker.leader.respond = lambda _: (
            says(records=batch(0, 1)) if not broker.partitions[0].log.log_end_offset else None
        )
        await until(ends_at(broker.partitions[0], 1), 5)

    run(world, main())


def test_a_leader_that_has_fallen_silent_is_connected_to_anew(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 1)
        world.network.hang("leader", "follower")
        await until(lambda: broker.leader.connections == 2, 120)
        await until(lambda: broker.leader.fetches[-1].session_epoch == 1)

    run(world, main())


def test_silence_counts_from_the_last_fetch_and_is_not_waited_for_twice(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await asyncio.sleep(10)  # fetches come and go
        world.network.hang("leader", "follower")
        config = broker.running.current
        limit_s = (config.replica_socket_timeout_ms + config.replica_fetch_wait_max_ms) / 1000
        await until(lambda: broker.leader.connections == 2, limit_s + 2)

    run(world, main())


def test_who_follows_nobody_here_any_more_lets_go_of_the_connection(world: SimWorld) -> None:
    broker = FollowingBroker(world, 2, settings=LAZY)

    async def main() -> None:
        await broker.start()
        broker.leader.answers.append(says(records=batch(0, 1)))
        await broker.follow()
        await until(ends_at(broker.partitions[0], 1))
        await broker.follow(epoch=2, leader=3)  # whose address is not known
        await asyncio.sleep(5)
        assert list(broker.fetchers.by_leader) == [3]
        count = len(broker.leader.fetches)
        await asyncio.sleep(5)
        assert len(broker.leader.fetches) == count
        await broker.follow(epoch=3, leader=-1)
        await asyncio.sleep(1)
        assert not broker.fetchers.by_leader
        assert broker.fetchers.bytes_fetched == len(batch(0, 1))  # what was counted stays counted

    run(world, main())


def test_a_stopped_broker_asks_for_nothing(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 1)
        await broker.machine.run(broker.fetchers.stop())
        await asyncio.sleep(5)
        assert len(broker.leader.fetches) == 1
        assert broker.leader.connections == 1

    run(world, main())


# -- throttling ---------------------------------------------------------------------------------------------------


def test_a_throttled_replica_catches_up_at_its_rate(world: SimWorld) -> None:
    broker = FollowingBroker(world, 2, settings={**LAZY, "follower.replication.throttled.replicas": "0:2"})
    broker.running.current = broker.running.current._replace(follower_replication_throttled_rate=100_000)
    large = batch(0, 1, value=b"x" * 50_000)

    def answer(request: FetchRequest) -> FetchResponse | None:
        for one in asked(request):
            if one.partition == 0:
                data = batch(one.fetch_offset, 1, value=b"x" * 50_000)
                return says(0, records=data, high_watermark=20)
        return None

    async def main() -> None:
        await broker.start()
        broker.leader.respond = answer
        begun = world.loop.time()
        await broker.follow()
        await until(ends_at(broker.partitions[0], 20), 60)
        taken = world.loop.time() - begun
        assert 0.8 * 19 * len(large) / 100_000 < taken < 1.3 * 20 * len(large) / 100_000
        assert broker.fetchers.by_leader[LEADER].fetches < 100  # it waits, it does not poll

    run(world, main())


def test_a_replica_in_sync_is_not_throttled(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings={**LAZY, "follower.replication.throttled.replicas": "*"})
    broker.running.current = broker.running.current._replace(follower_replication_throttled_rate=1)

    async def main() -> None:
        await broker.start()
        broker.leader.answers += [says(records=batch(n, 1)) for n in range(10)]
        await broker.follow(isr=(LEADER, 2))
        await until(ends_at(broker.partitions[0], 10), 1)

    run(world, main())


def test_the_topic_id_tells_one_topic_from_its_namesake(world: SimWorld) -> None:
    broker = FollowingBroker(world, settings=LAZY)

    async def main() -> None:
        await broker.start()
        broker.leader.answers.append(says(topic_id=b"\x07" * 16, records=batch(0, 1)))
        await broker.follow()
        await until(lambda: len(broker.leader.fetches) == 2)
        assert broker.partitions[0].log.log_end_offset == 0
        assert broker.leader.fetches[0].topics[0].topic_id == TOPIC_ID

    run(world, main())
