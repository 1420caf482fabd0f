"""A follower's log is cut by a worker, and everything else that may happen to it meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from penstock.core.metadata.image import PartitionState
from penstock.core.metadata.records import ConfigChanged, TopicCreated, TopicDeleted
from penstock.model.errors import ApiError, ErrorCode, LogBusy, LogOffline, StorageError
from penstock.records.batch import iterate_headers, read_header
from penstock.records.builder import Record, build_batch
from penstock.replica import divergence
from penstock.replica.divergence import Recovering
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import NEED_A_DESCRIPTOR, SimCrash
from penstock.storage import checkpoints
from penstock.storage.log import Log
from support.worlds.hosted import HeldFlusher, HostedWorld, Workers
from support.worlds.hosts import Listening

T = TypeVar("T")
SHARED = bytes([9] * 16)
LEADER = 2
COUNT = 20
CUT = 7


class HeldWorkers(Workers):
    """Work waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        if not self.is_held:
            return super().run(work)

        async def later() -> T:
            self.asked.set()
            await self.go_on.wait()
            return work()

        return later()


class World(HostedWorld):
    """A follower of broker 2 with twenty records in small segments, from epoch 1."""

    def __init__(self, **settings: str) -> None:
        super().__init__({})
        self.roles: list[tuple[bool, bool, int]] = []
        self.settings = {"internal.segment.bytes": "300", **settings}
        self.held = HeldWorkers()
        self.recovering = Recovering(asyncio.get_running_loop(), self.hosted, self.held)

        def note(one: Partition) -> None:
            self.roles.append((one.is_leader, one.is_deleted, one.leader_epoch))

        self.hosted.host.events = Listening(role_changed=note)
        self.partition = self.make()
        self.fill(self.partition)
        self.follow()
        self.roles.clear()

    def make(self) -> Partition:
        self.image.replay(TopicCreated("shared", SHARED.hex(), ((self.me, LEADER),)))
        self.image.replay(ConfigChanged(2, "shared", self.settings))
        self.hosted.topic_created(self.image.topics["shared"])
        return self.hosted.get("shared", 0)

    def fill(self, partition: Partition) -> None:
        for number in range(COUNT):
            data = build_batch(
                [Record(b"k", b"v%d" % number, (), self.clock.ms)],
                producer_id=7,
                producer_epoch=0,
                base_sequence=number,
            )
            partition.append(read_header(data), data, self.clock.ms)

    @property
    def me(self) -> int:
        return self.hosted.host.node_id

    def follow(self, leader: int = LEADER, replicas: Sequence[int] | None = None) -> Awaitable[None] | None:
        topic = self.image.topics["shared"]
        old = topic.partitions[0]
        members = tuple(replicas or (self.me, LEADER))
        state = PartitionState(0, members, leader, old.leader_epoch + 1, members, old.partition_epoch + 1)
        topic.partitions[0] = state
        return self.hosted.partition_changed(topic, state)

    async def begin(self) -> asyncio.Task[None]:
        """Up to where the worker has the files and has not touched them."""
        self.held.is_held = True
        task = asyncio.ensure_future(self.recovering.cut_at(self.partition, CUT))
        await self.held.asked.wait()
        assert self.partition.log.is_being_cut
        return task

    async def end(self, task: asyncio.Task[None]) -> None:
        self.held.go_on.set()
        await task


def values(log: Log) -> list[int]:
    found: list[int] = []
    at = log.log_start_offset
    while (piece := log.reader.read(at, 1 << 20)) is not None:
        found += [header.base_offset for _, header in iterate_headers(piece.read(), "")]
        at = piece.next_offset
    return found


def fetched(offset: int, epoch: int) -> bytes:
    return build_batch([Record(b"k", b"of the leader", (), 1)], base_offset=offset, leader_epoch=epoch)


async def test_the_loop_touches_no_file_of_a_log_that_is_cut() -> None:
    world = World()
    log = world.partition.log
    world.partition.high_watermark = COUNT
    await world.hosted.housekeeping.checkpoint()
    task = await world.begin()
    changes = world.disk.changes
    assert (log.log_end_offset, log.stable_offset, log.persisted_recovery_point) == (CUT, CUT, CUT)
    assert world.partition.high_watermark == CUT
    assert world.partition.claimed_offset() == CUT
    await asyncio.sleep(0)
    assert world.disk.changes == changes
    await world.end(task)
    assert world.disk.changes > changes
    assert values(log) == list(range(CUT))
    again = build_batch([Record(b"k", b"v", (), 1)], producer_id=7, producer_epoch=0, base_sequence=CUT)
    assert log.producers.check(read_header(again)) is None
    world.partition.append_fetched(fetched(CUT, 1), 1, CUT, 0, 0)
    assert values(log) == list(range(CUT + 1))


async def test_nobody_else_uses_a_log_that_is_being_cut() -> None:
    world = World(**{"retention.bytes": "1", "cleanup.policy": "delete"})
    partition, log = world.partition, world.partition.log
    task = await world.begin()
    files = sorted(world.disk.list_directory(log.directory))
    for use in (
        lambda: partition.read(0, 1000),
        lambda: partition.read_to_end(0, 1000),
        lambda: partition.lookup(0, 1000),
        lambda: partition.append_fetched(fetched(CUT, 1), 1, CUT, 0, 0),
        lambda: log.reader.time_lookup(None),
        lambda: log.tail_from(0),
        lambda: log.begin_cut(1),
        lambda: log.roll(0),
    ):
        with pytest.raises(LogBusy) as refused:
            use()
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER, "clients ask again"
    assert log.begin_flush() is None
    assert not log.has_deleted_files
    world.held.is_held = False
    assert await world.hosted.housekeeping.apply_retention() == 0
    await world.hosted.housekeeping.checkpoint()
    await world.hosted.housekeeping.remove_deleted_files()
    assert sorted(world.disk.list_directory(log.directory)) == files
    points = checkpoints.read_offsets(world.disk, f"/data/{checkpoints.RECOVERY_POINTS}")
    assert points["shared", 0] <= CUT
    await world.end(task)
    assert values(log) == list(range(CUT))


async def test_who_is_elected_while_his_log_is_cut_leads_after_the_cut() -> None:
    world = World()
    partition = world.partition
    task = await world.begin()
    assert world.follow(leader=world.me) is None
    assert not partition.is_leader
    assert not world.roles, "nobody hears of it before"
    data = build_batch([Record(b"k", b"v", (), 1)])
    with pytest.raises(ApiError) as refused:
        partition.append(read_header(data), data, 0)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await world.end(task)
    assert partition.is_leader
    assert world.roles == [(True, False, 2)]
    assert partition.epoch_start_offset == CUT
    assert partition.append(read_header(data), data, 0) == CUT
    assert values(partition.log) == list(range(CUT + 1))


async def test_all_that_was_said_meanwhile_is_heard_in_its_order() -> None:
    world = World()
    task = await world.begin()
    world.follow(leader=world.me)
    world.follow(leader=LEADER)
    world.follow(leader=3, replicas=(world.me, LEADER, 3))
    await world.end(task)
    assert (world.partition.leader, world.partition.leader_epoch, world.partition.is_leader) == (3, 4, False)
    assert world.roles == [(False, False, 4)]


@pytest.mark.parametrize("is_reassigned", [False, True])
async def test_a_log_deleted_while_it_is_cut_leaves_the_next_of_its_name_alone(is_reassigned: bool) -> None:
    world = World()
    old = world.partition
    task = await world.begin()
    if is_reassigned:
        removal = world.follow(replicas=(LEADER, 3))
        world.follow(replicas=(world.me, LEADER))
        world.follow(leader=world.me)
    else:
        removal = world.hosted.topic_deleted("shared", SHARED)
        world.image.replay(TopicDeleted(SHARED.hex()))
        world.make()
    fresh = world.hosted.get("shared", 0)
    assert fresh is not old
    world.fill(fresh)
    before = {name: world.disk.peek(f"/data/shared-0/{name}", 0, 1 << 20) for name in names(world)}
    await world.end(task)
    assert removal is not None
    await removal
    assert {name: world.disk.peek(f"/data/shared-0/{name}", 0, 1 << 20) for name in names(world)} == before
    assert values(fresh.log) == list(range(COUNT))
    assert not [name for name in world.disk.list_directory("/data") if name.endswith("-delete")]


def names(world: World) -> list[str]:
    return [name for name in world.disk.list_directory("/data/shared-0") if not name.endswith(".index")]


async def test_a_flush_that_ends_while_a_log_is_cut_says_nothing_of_what_is_left() -> None:
    world = World(**{"flush.messages": "1000", "internal.segment.bytes": "100000"})
    partition, log = world.partition, world.partition.log
    flusher = HeldFlusher(world.disk)
    partition._commit._flusher = flusher
    partition._commit.request(partition)
    assert flusher.held
    task = await world.begin()
    flusher.let_go()
    assert log.stable_offset <= CUT
    partition._commit.request(partition)
    assert not flusher.held, "none begins meanwhile"
    stable = log.stable_offset
    assert stable < CUT
    world.partition.is_durable = True  # by a change of the topic's settings
    await world.end(task)
    assert log.stable_offset == stable
    flusher.let_go()
    assert log.stable_offset == CUT, "asked for again at the end of the cut"


async def test_a_flush_that_fails_while_a_log_is_cut_leaves_it_offline() -> None:
    world = World(**{"flush.messages": "1000", "internal.segment.bytes": "100000"})
    partition, log = world.partition, world.partition.log
    flusher = HeldFlusher(world.disk)
    partition._commit._flusher = flusher
    partition._commit.request(partition)
    task = await world.begin()
    flusher.held[0][2](OSError(errno.EIO, "a bad sector"))
    with pytest.raises(LogOffline):
        await world.end(task)
    assert log.offline is not None
    assert not log.is_being_cut


@pytest.mark.parametrize("step", range(1, 6))
async def test_a_log_whose_cut_fails_is_offline_and_hears_what_the_metadata_says(step: int) -> None:
    world = World()
    log = world.partition.log
    task = await world.begin()
    world.follow(leader=world.me)
    left = [step]

    def fails(path: str) -> bool:
        left[0] -= 1
        return left[0] == 0

    world.disk.fail_sync = fails
    with pytest.raises(StorageError):
        await world.end(task)
    assert log.offline is not None
    assert not log.is_being_cut
    assert world.roles == [(True, False, 2)]
    world.disk.fail_sync = None
    world.disk.crash()
    world.open()
    log = world.hosted.get("shared", 0).log
    assert values(log) == list(range(log.log_end_offset))
    assert log.log_end_offset >= CUT


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("step", range(1, 9))
async def test_a_cut_waits_for_a_descriptor_and_goes_on(
    step: int, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever none is left: nothing is offline, and nothing that was cut comes back after a crash."""
    monkeypatch.setattr(divergence, "RETRY_S", 0)
    world = World()
    log, calls, failed = world.partition.log, 0, 0

    def no_descriptor(call: str, path: str) -> int | None:
        nonlocal calls, failed
        if call in NEED_A_DESCRIPTOR and log.is_being_cut:
            calls += 1
            if step <= calls < step + 3:
                failed += 1
                return errno.EMFILE
        return None

    world.disk.fail_call = no_descriptor
    if is_whole:
        await world.recovering.start_anew(world.partition, COUNT + 5)
    else:
        await world.recovering.cut_at(world.partition, CUT)
    assert failed == 3 or (is_whole and calls < step)
    assert log.offline is None
    assert not log.is_being_cut
    assert values(log) == ([] if is_whole else list(range(CUT)))
    world.disk.fail_call = None
    world.disk.crash()
    world.open()
    log = world.hosted.get("shared", 0).log
    assert (log.offline, log.log_end_offset) == (None, COUNT + 5 if is_whole else CUT)
    assert values(log) == ([] if is_whole else list(range(CUT)))


async def test_a_stop_waits_for_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    log = world.partition.log
    world.disk.fail_call = lambda call, path: errno.EMFILE if call in NEED_A_DESCRIPTOR and log.is_being_cut else None
    monkeypatch.setattr(divergence, "RETRY_S", 0)
    task = asyncio.ensure_future(world.recovering.cut_at(world.partition, CUT))
    await asyncio.sleep(0.01)
    assert not task.done()
    await world.recovering.settled()
    with pytest.raises(LogOffline):
        await task


async def test_a_cut_ends_also_if_who_asked_for_it_does_not_wait() -> None:
    world = World()
    task = await world.begin()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert world.partition.log.is_being_cut
    world.held.go_on.set()
    await world.recovering.settled()
    assert not world.partition.log.is_being_cut
    assert values(world.partition.log) == list(range(CUT))


async def test_the_next_cut_waits_for_the_one_under_way() -> None:
    world = World()
    task = await world.begin()
    further = asyncio.ensure_future(world.recovering.cut_at(world.partition, 3))
    anew = asyncio.ensure_future(world.recovering.start_anew(world.partition, 40))
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.partition.log.log_end_offset == CUT
    await world.end(task)
    await asyncio.gather(further, anew)
    log = world.partition.log
    assert (log.log_start_offset, log.log_end_offset, world.partition.high_watermark) == (40, 40, 40)
    assert world.recovering.truncations == 3


async def test_a_log_begun_anew_is_empty_where_it_was_until_its_files_are_gone() -> None:
    world = World()
    log = world.partition.log
    world.held.is_held = True
    task = asyncio.ensure_future(world.recovering.start_anew(world.partition, 100))
    await world.held.asked.wait()
    assert (log.log_start_offset, log.log_end_offset, world.partition.high_watermark) == (0, 0, 0)
    world.held.is_held = False
    await world.hosted.housekeeping.persist_offsets()
    starts = checkpoints.read_offsets(world.disk, f"/data/{checkpoints.LOG_START_OFFSETS}")
    assert "shared" not in {topic for topic, _ in starts}
    await world.end(task)
    assert (log.log_start_offset, log.log_end_offset, log.stable_offset, world.partition.high_watermark) == (100,) * 4


FIRST, START, END = 40, 43, 45


async def starting_inside_a_batch() -> tuple[World, bytes]:
    """An empty log, and the leader's batch in the middle of which it starts."""
    world = World()
    await world.recovering.start_anew(world.partition, START)
    records = [Record(b"k", b"of the leader", (), 1) for _ in range(END - FIRST)]
    return world, build_batch(records, base_offset=FIRST, leader_epoch=1)


async def test_a_log_begins_inside_a_batch_without_a_file_that_the_loop_touches() -> None:
    world, batch = await starting_inside_a_batch()
    partition, log = world.partition, world.partition.log
    world.held.is_held = True
    task = asyncio.ensure_future(world.recovering.begin_below(partition, batch, 0))
    await world.held.asked.wait()
    changes = world.disk.changes
    world.follow(leader=world.me)
    await asyncio.sleep(0)
    assert world.disk.changes == changes
    assert (log.log_start_offset, log.log_end_offset, partition.high_watermark) == (START, START, START)
    seen: list[tuple[int, int, int, bool]] = []

    class Parked:
        def notify(self, told: Any) -> None:
            seen.append((told.log.log_start_offset, told.high_watermark, told.log.log_end_offset, told.is_leader))

    partition.waiters[Parked()] = None
    await world.end(task)
    assert seen[0] == (START, START, END, False), "nobody hears of an earlier start"
    assert partition.is_leader
    assert partition.epoch_start_offset == END
    assert (log.log_start_offset, log.log_end_offset) == (START, END)
    assert values(log) == [FIRST]


async def test_a_batch_of_a_leader_that_was_replaced_begins_nothing() -> None:
    world, batch = await starting_inside_a_batch()
    world.workers.before = lambda: world.follow(leader=3, replicas=(world.me, LEADER, 3)) and None
    truncations = world.recovering.truncations
    await world.recovering.begin_below(world.partition, batch, 0)
    assert world.recovering.truncations == truncations
    assert (world.partition.log.log_start_offset, world.partition.log.log_end_offset) == (START, START)


async def test_a_log_whose_first_batch_cannot_be_written_is_offline_and_starts_where_it_did() -> None:
    world, batch = await starting_inside_a_batch()
    partition = world.partition
    world.disk.fail_write = lambda path: path.endswith(".log")
    with pytest.raises(LogOffline):
        await world.recovering.begin_below(partition, batch, 0)
    world.disk.fail_write = None
    assert partition.log.offline is not None
    assert partition.high_watermark == START
    fresh = await world.hosted.reopen(partition)
    assert (fresh.offline, fresh.log_start_offset, fresh.log_end_offset) == (None, START, START)
    partition.reopened(fresh)
    await world.recovering.begin_below(partition, batch, 0)
    assert (fresh.log_start_offset, fresh.log_end_offset, partition.high_watermark) == (START, END, START)


async def test_a_log_that_begins_inside_a_batch_starts_there_wherever_the_machine_stops() -> None:
    step, is_done = 0, False
    ends: set[int] = set()
    while not is_done:
        step += 1
        world, batch = await starting_inside_a_batch()
        world.disk.crash_after = world.disk.changes + step
        try:
            await world.recovering.begin_below(world.partition, batch, 0)
            await world.hosted.housekeeping.checkpoint()
            is_done = True
        except SimCrash:
            pass
        world.disk.crash_after = None
        world.disk.crash()
        world.open()
        log: Any = world.hosted.get("shared", 0).log
        assert log.offline is None, f"step {step}: {log.offline}"
        assert log.log_start_offset == START, f"step {step}"
        assert values(log) == ([FIRST] if log.log_end_offset == END else []), f"step {step}"
        ends.add(log.log_end_offset)
    assert step > 10, "there was something to stop in"
    assert ends == {START, END}


async def test_a_stop_while_a_log_is_cut_is_not_clean() -> None:
    world = World()
    task = await world.begin()
    world.close()
    assert checkpoints.CLEAN_SHUTDOWN not in world.disk.list_directory("/data")
    await world.end(task)
    world.disk.kill()
    world.open()
    log: Any = world.hosted.get("shared", 0).log
    assert log.offline is None
    assert values(log) == list(range(log.log_end_offset))
