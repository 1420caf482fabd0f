"""A shard on its partition: when replies leave, and what happens when the disk says no."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar, cast

import pytest

from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.coordination import hosted_shard
from penstock.coordination.groups import GroupKind
from penstock.coordination.hosted_shard import HostedShard
from penstock.coordination.shard_host import ControllerSide, Surroundings
from penstock.core.group.classic import ClassicMember
from penstock.core.group.exchange import (
    CommitReply,
    CommitRequest,
    FetchOffsetsRequest,
    HeartbeatRequest,
    JoinRequest,
    OffsetToCommit,
    SyncRequest,
)
from penstock.core.group.records import OffsetCommit
from penstock.core.group.shard import GroupShard
from penstock.core.metadata.image import MetadataImage, PartitionState
from penstock.core.metadata.records import TopicCreated, TopicDeleted
from penstock.core.shard.exchange import Outcome
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.ports.disk import File
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import SimDisk
from penstock.storage.group_commit import GroupCommit
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.segments.lookups import Lookup
from support.worlds.hosts import Listening, lone_host

NOW_MS = 1_700_000_000_000
SETTINGS = {"log.dirs": "/data", "group.initial.rebalance.delay.ms": "0", "penstock.group.rebalance.settle.ms": "0"}
A = TypeVar("A")
T = TypeVar("T")


class HeldFlusher:
    """Flushes when told to."""

    def __init__(self) -> None:
        self.held: list[tuple[Sequence[File], Callable[[OSError | None], None]]] = []

    def flush(
        self, files: Sequence[File], directories: Sequence[str], on_stable: Callable[[OSError | None], None]
    ) -> None:
        self.held.append((files, on_stable))

    def let_go(self, failure: OSError | None = None) -> None:
        while self.held:
            files, on_stable = self.held.pop(0)
            for file in files:
                file.sync()
            on_stable(failure)


class NowWorkers:
    """Work is done when it is asked for."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(work())
        return future

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        return map(work, items)


class FakeClock:
    def __init__(self) -> None:
        self.wall_ms = NOW_MS
        self.moment_ms = 5_000_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.moment_ms / 1000

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.moment_ms += ms


class Controller:
    def __init__(self, image: MetadataImage) -> None:
        self.image = image


class World:
    def __init__(self) -> None:
        self.disk = SimDisk(Random(1))
        self.disk.make_directory("/data")
        self.flusher = HeldFlusher()
        self.image = MetadataImage()
        self.image.replay(TopicCreated("t", (b"t" * 16).hex(), ((1,),)))
        self.clock = FakeClock()
        config = BrokerConfig.load(None, SETTINGS)[0]
        self.around = Surroundings(
            asyncio.get_running_loop(),
            RunningConfig(config, self.image),
            cast(ControllerSide, Controller(self.image)),
            cast(HostedPartitions, None),
            NowWorkers(),
            self.clock,
        )
        self.open()

    def open(self) -> None:
        settings = LogConfig(compact=True, delete=False)
        log = Log.open(self.disk, "/data/o-0", settings, now_ms=NOW_MS)
        config = TopicConfig.resolve({}, self.around.running.current)
        commit = GroupCommit(lambda callback: callback(), self.flusher)
        self.partition = Partition("o", b"o" * 16, 0, log, config, commit, lone_host(1, self.clock))
        self.partition.apply_state(PartitionState(0, (1,), 1, 0, (1,)))
        self.host()

    def host(self) -> None:
        self.hosted = HostedShard(
            self.around.loop, self.partition, GroupKind(self.around), self.around.workers, self.clock
        )
        self.hosted.start()

    async def loaded(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        assert self.hosted.is_ready

    def commit(self, offset: int) -> asyncio.Future[Any]:
        request = CommitRequest("g", "", None, -1, (OffsetToCommit("t", 0, offset, -1, ""),))
        return self.hosted.call(lambda shard, token, now_ms: shard.commit_offsets(request, token, now_ms))

    def committed(self) -> asyncio.Future[Any]:
        request = FetchOffsetsRequest("g", {"t": (0,)})
        return self.hosted.call(lambda shard, token, now_ms: shard.fetch_offsets(request, token, now_ms))

    async def offset(self) -> int | None:
        reply = await self.committed()
        found = reply.topics["t"][0]
        return None if found is None else int(found.offset)

    def join(self, member: str = "m") -> asyncio.Future[Any]:
        """As versions did that took a new member in at once."""
        protocols = (("range", b""),)
        request = JoinRequest("g", "", None, "c", "/h", 10_000, 10_000, "consumer", protocols, member)
        request = request._replace(requires_known_member_id=False)
        return self.hosted.call(lambda shard, token, now_ms: shard.join(request, token, now_ms))

    def sync(self) -> asyncio.Future[Any]:
        request = SyncRequest("g", "m", None, 1, None, None, {"m": b"mine"})
        return self.hosted.call(lambda shard, token, now_ms: shard.sync(request, token, now_ms))

    def heartbeat(self) -> asyncio.Future[Any]:
        request = HeartbeatRequest("g", "m", None, 1)
        return self.hosted.call(lambda shard, token, now_ms: shard.heartbeat(request, token, now_ms))

    def fail_next_write(self) -> None:
        """The disk is full, once."""
        real = self.partition.log.append

        def full(*arguments: Any) -> int:
            self.partition.log.append = real  # type: ignore[method-assign]
            raise StorageError("no space left")

        self.partition.log.append = full  # type: ignore[method-assign]


async def test_a_commit_is_answered_when_it_is_stable_and_not_shown_before() -> None:
    world = World()
    committing, asking = world.commit(5), world.committed()
    await asyncio.sleep(0)
    assert not committing.done()
    assert not asking.done(), "nobody is told of a commit that a crash could take back"
    world.flusher.let_go()
    assert await committing == CommitReply(ErrorCode.NONE, (ErrorCode.NONE,))
    assert (await asking).topics["t"][0].offset == 5


async def test_a_commit_that_cannot_be_written_never_happened() -> None:
    world = World()
    world.commit(5)
    world.flusher.let_go()
    world.fail_next_write()
    with pytest.raises(ApiError) as refused:
        await world.commit(6)
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert await world.offset() == 5
    second = world.commit(7)
    world.flusher.let_go()
    await second
    assert await world.offset() == 7


async def test_a_group_that_cannot_be_written_is_loaded_anew() -> None:
    world = World()
    assert (await world.join()).generation == 1
    world.fail_next_write()
    with pytest.raises(ApiError) as refused:
        await world.sync()
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    # What the members hear is what the log says: there is no such group.
    assert (await world.heartbeat()).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await world.join()).generation == 1
    synced = world.sync()
    world.flusher.let_go()
    assert (await synced).assignment == b"mine"


@pytest.mark.parametrize("fails_at", ["deciding", "encoding"])
async def test_after_a_defect_everybody_is_answered_and_the_log_counts(fails_at: str) -> None:
    world = World()
    world.commit(5)
    world.flusher.let_go()
    assert (await world.join()).generation == 1
    parked = world.join("another")

    def broken(shard: GroupShard, token: int, now_ms: int) -> Outcome:
        out = Outcome()
        for member in shard.groups["g"].members.values():
            assert isinstance(member, ClassicMember)
            member.join_token = None  # taken, as by whoever is about to answer it
        if fails_at == "deciding":
            raise KeyError("a defect")
        out.records.append(OffsetCommit("m" * 40_000, "t", 0, 1, -1, "", now_ms))
        out.reply(token, None)
        return out

    with pytest.raises(ApiError) as refused:
        await world.hosted.call(broken)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(ApiError) as refused:
        await parked
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    await world.loaded()
    assert await world.offset() == 5
    assert (await world.join()).generation == 1
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)


async def test_after_a_defect_in_a_timer_the_shard_is_loaded_anew() -> None:
    world = World()
    assert (await world.join()).generation == 1
    parked = world.join("another")

    def broken(now_ms: int) -> Outcome:
        raise KeyError("a defect")

    world.hosted.shard.tick = broken  # type: ignore[method-assign]
    world.clock.pass_ms(60_000)
    world.hosted._tick()
    with pytest.raises(ApiError) as refused:
        await parked
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert (await world.join()).generation == 1
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)


async def test_what_is_stored_has_the_time_of_day_and_deadlines_do_not() -> None:
    world = World()
    world.clock.wall_ms = 1_000  # nobody has set it yet
    assert (await world.join()).generation == 1
    synced = world.sync()
    world.flusher.let_go()
    await synced
    world.clock.wall_ms = NOW_MS
    world.hosted._tick()
    assert (await world.heartbeat()).error is ErrorCode.NONE, "no session ends because the clock was set"
    request = CommitRequest("g", "m", None, 1, (OffsetToCommit("t", 0, 5, -1, ""),))
    committing = world.hosted.call(lambda shard, token, now_ms: shard.commit_offsets(request, token, now_ms))
    world.flusher.let_go()
    await committing
    assert (await world.committed()).topics["t"][0].commit_timestamp_ms == NOW_MS
    piece = world.partition.log.reader.read(1, 1 << 20)
    assert piece is not None
    assert read_header(piece.read()).max_timestamp == NOW_MS
    assert world.hosted.shard.story("g")[-1].at_ms == 1_000
    world.clock.pass_ms(10_001)
    world.hosted._tick()
    world.flusher.let_go()
    assert (await world.heartbeat()).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.hosted.shard.story("g")[-1].at_ms == NOW_MS + 10_001
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)


async def test_a_failed_flush_ends_the_shard() -> None:
    world = World()
    committing, parked = world.commit(5), world.committed()
    world.flusher.let_go(OSError(errno.EIO, "broken"))
    for future in (committing, parked):
        with pytest.raises(ApiError) as refused:
            await future
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(ApiError):
        world.commit(6)


async def test_loading_takes_a_moment_and_says_so() -> None:
    world = World()
    await world.join()
    synced, committing = world.sync(), world.commit(0)
    world.flusher.let_go()
    await synced
    assert (await committing).error is ErrorCode.UNKNOWN_MEMBER_ID
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)
    world.open()
    with pytest.raises(ApiError) as refused:
        world.heartbeat()
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await world.loaded()
    assert (await world.heartbeat()).error is ErrorCode.NONE
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)


async def test_damage_in_its_log_is_reported_so_that_another_replica_may_lead() -> None:
    world = World()
    committing = world.commit(5)
    world.flusher.let_go()
    await committing
    segment = world.partition.log.segments[0].path
    world.disk.flip_bit(segment, 70)
    damaged: list[tuple[Partition, str | None]] = []
    world.partition.host.events = Listening(damage_found=lambda partition, path: damaged.append((partition, path)))
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)
    world.host()
    for _ in range(100):
        await asyncio.sleep(0)
    assert damaged == [(world.partition, segment)]
    with pytest.raises(ApiError) as refused:
        world.commit(6)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_log_that_could_not_be_opened_is_not_taken_for_an_empty_one() -> None:
    world = World()
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)
    world.partition.log.offline = OSError(errno.EIO, "it ends before its recovery point")
    world.host()
    for _ in range(100):
        await asyncio.sleep(0)
    for ask in (world.committed, lambda: world.commit(6)):
        with pytest.raises(ApiError) as refused:
            ask()
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_loading_that_failed_for_a_while_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_shard, "RELOAD_S", 0.0)
    world = World()
    committing = world.commit(5)
    world.flusher.let_go()
    await committing
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)
    failures = [OSError(errno.EMFILE, "too many open files"), OSError(errno.EMFILE, "too many open files")]
    run = Lookup.run

    def read(lookup: Lookup) -> object:
        if failures:
            raise failures.pop()
        return run(lookup)

    monkeypatch.setattr(Lookup, "run", read)
    world.host()
    for _ in range(100):
        await asyncio.sleep(0)
    assert failures == []
    await world.loaded()
    assert await world.offset() == 5
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)


async def test_when_a_beginning_of_many_records_is_in_the_log_the_log_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_shard, "MAX_BATCH_BYTES", 1)
    world = World()
    offsets = tuple(OffsetToCommit("t", partition, 5, -1, "") for partition in range(2))
    request = CommitRequest("g", "", None, -1, offsets)
    append = world.partition.log.append
    written: list[int] = []

    def full_after_one(*arguments: Any) -> int:
        if written:
            raise StorageError("no space left")
        written.append(append(*arguments))
        return written[0]

    monkeypatch.setattr(world.partition.log, "append", full_after_one)
    refused = world.hosted.call(lambda shard, token, now_ms: shard.commit_offsets(request, token, now_ms))
    with pytest.raises(ApiError):
        await refused
    world.flusher.let_go()
    await world.loaded()
    assert await world.offset() == 5  # as the next coordinator will have it
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)


async def test_what_somebody_else_wrote_is_passed_over() -> None:
    world = World()
    world.commit(5)
    for key in (b"\0\1nonsense", b"", b"\x7fwhatever", None):
        data = build_batch([Record(key, b"value", timestamp_ms=NOW_MS)])
        world.partition.append(read_header(data), data, NOW_MS)
    world.flusher.let_go()
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)
    world.open()
    await world.loaded()
    assert await world.offset() == 5
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)


async def test_offsets_of_a_topic_that_was_deleted_meanwhile_are_not_loaded() -> None:
    world = World()
    world.commit(5)
    world.flusher.let_go()
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)
    world.image.replay(TopicDeleted((b"t" * 16).hex()))
    world.open()
    await world.loaded()
    world.flusher.let_go()
    assert await world.offset() is None
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)


async def test_stopping_answers_everybody() -> None:
    world = World()
    await world.join()
    parked = world.join("another")
    world.hosted.stop(ErrorCode.NOT_COORDINATOR)
    with pytest.raises(ApiError) as refused:
        await parked
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
