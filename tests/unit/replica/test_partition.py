"""A partition under the flush policies: what is acknowledged and visible before, after and instead of a flush."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import MetadataImage, PartitionState
from penstock.core.metadata.records import TopicCreated
from penstock.model.errors import ErrorCode, StorageError
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import SimDisk
from penstock.storage.group_commit import GroupCommit, flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from support.worlds.hosted import HeldFlusher
from support.worlds.hosts import ALONE, lone_host

NOW_MS = 1_700_000_000_000
NEVER = str(2**63 - 1)
A = TypeVar("A")
T = TypeVar("T")


class World:
    def __init__(self, overrides: dict[str, str] | None = None) -> None:
        self.disk = SimDisk(Random(1))
        self.disk.make_directory("/data")
        self.disk.sync_directory("")
        self.overrides = overrides or {}
        self.open()

    def open(self) -> None:
        self.flusher = HeldFlusher(self.disk)
        log = Log.open(
            self.disk,
            "/data/t-0",
            LogConfig(),
            now_ms=NOW_MS,
        )
        config = TopicConfig.resolve(self.overrides, BrokerConfig.load(None, {"log.dirs": "/data"})[0])
        commit = GroupCommit(lambda callback: callback(), self.flusher)
        self.partition = Partition("t", b"t" * 16, 0, log, config, commit, lone_host(1, FixedClock()))
        self.partition.apply_state(PartitionState(0, (1,), 1, 0, (1,)))
        self.told: list[ErrorCode] = []

    def append(self) -> int:
        data = build_batch([Record(None, b"v", (), NOW_MS)])
        offset = self.partition.append(read_header(data), data, NOW_MS)
        if offset + 1 > self.partition.high_watermark:
            self.partition.when_committed(offset + 1, self.told.append)
        return offset


def test_nothing_is_visible_or_committed_before_its_flush() -> None:
    world = World()
    world.append()
    assert world.partition.high_watermark == 0
    assert world.partition.read(0, 1000) is None
    assert world.told == []
    world.flusher.let_go()
    assert world.partition.high_watermark == 1
    assert world.partition.read(0, 1000) is not None
    assert world.told == [ErrorCode.NONE]


def test_what_arrives_during_a_flush_waits_for_the_next() -> None:
    world = World()
    world.append()
    world.append()
    world.flusher.let_go()
    assert world.partition.high_watermark == 1
    assert world.told == [ErrorCode.NONE]
    world.flusher.let_go()
    assert world.partition.high_watermark == 2
    assert world.told == [ErrorCode.NONE] * 2


def test_after_a_failed_flush_everyone_is_told_and_nothing_goes_on() -> None:
    world = World()
    world.append()
    world.disk.fail_sync = lambda path: path.endswith(".log")
    world.flusher.let_go()
    world.disk.fail_sync = None
    assert world.told == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert world.partition.high_watermark == 0
    with pytest.raises(StorageError):
        world.append()
    with pytest.raises(StorageError):
        world.partition.read(0, 1000)


def test_a_repeat_on_an_offline_log_is_refused_too() -> None:
    world = World()
    data = build_batch([Record(None, b"v", (), NOW_MS)], producer_id=1, producer_epoch=0, base_sequence=0)
    world.partition.append(read_header(data), data, NOW_MS)
    world.disk.fail_sync = lambda path: path.endswith(".log")
    world.flusher.let_go()
    with pytest.raises(StorageError):
        world.partition.append(read_header(data), data, NOW_MS)


def test_with_flushing_left_to_the_system_a_write_is_visible_at_once() -> None:
    world = World({"flush.messages": NEVER})
    world.append()
    assert world.partition.high_watermark == 1
    assert world.flusher.held == []


def test_every_so_many_messages_a_flush_starts_behind_the_acknowledgement() -> None:
    world = World({"flush.messages": "3"})
    for _ in range(2):
        world.append()
    assert world.flusher.held == []
    world.append()
    assert world.partition.high_watermark == 3
    assert len(world.flusher.held) == 1


def test_a_roll_starts_a_flush_also_when_flushing_is_left_to_the_system() -> None:
    world = World({"flush.messages": NEVER})
    world.append()
    flush_blocking(world.disk, world.partition.log)
    world.append()
    assert world.partition.log.roll(NOW_MS)
    assert world.flusher.held == []
    world.append()
    assert len(world.flusher.held) == 1
    world.flusher.let_go()
    assert world.partition.log.stable_offset == 3
    assert not world.partition.log.wants_flush
    world.append()
    assert world.flusher.held == []


def test_a_full_segment_grows_on_until_its_name_is_stable() -> None:
    """If the next one survives a crash, so must this one, and the loop does not wait for a sync."""
    world = World({"flush.messages": NEVER})
    log = world.partition.log
    log.config = LogConfig(segment_bytes=100)
    world.disk.fail_sync = lambda path: True
    for _ in range(3):
        world.append()
    assert len(log.segments) == 1
    assert len(world.flusher.held) == 1
    world.disk.fail_sync = None
    world.flusher.let_go()
    world.append()
    assert len(log.segments) == 2


def test_a_segment_that_the_format_has_no_room_in_waits_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.segments.rolling.MAX_SEGMENT_BYTES", 100)
    world = World({"flush.messages": NEVER})
    log = world.partition.log
    log.config = LogConfig(segment_bytes=100)
    world.append()
    world.append()
    assert len(log.segments) == 2
    world.disk.crash()
    assert "00000000000000000000.log" in world.disk.list_directory("/data/t-0")


def test_retention_keeps_the_last_segment_until_its_name_is_stable() -> None:
    world = World({"flush.messages": NEVER})
    log = world.partition.log
    log.config = LogConfig(retention_ms=1)
    world.append()
    later_ms = NOW_MS + 1000
    assert log.begin_retention(later_ms, 1) is None
    assert log.wants_flush
    flush_blocking(world.disk, log)
    assert log.begin_retention(later_ms, 1) is not None


def test_a_roll_that_was_put_off_asks_for_no_flush_once_the_name_is_stable() -> None:
    world = World({"flush.messages": NEVER})
    log = world.partition.log
    log.config = LogConfig(retention_ms=1)
    world.append()
    assert log.begin_retention(NOW_MS + 1000, 1) is None
    flush_blocking(world.disk, log)
    log.config = LogConfig()
    for _ in range(3):
        world.append()
    assert world.flusher.held == []


def test_changing_the_policy_releases_or_holds_from_then_on() -> None:
    world = World()
    world.append()
    broker = BrokerConfig.load(None, {"log.dirs": "/data"})[0]
    world.partition.apply_config(TopicConfig.resolve({"flush.messages": NEVER}, broker))
    assert world.told == [ErrorCode.NONE]
    assert world.partition.high_watermark == 1
    world.flusher.let_go()
    world.append()
    assert world.partition.high_watermark == 2
    world.partition.apply_config(TopicConfig.resolve({}, broker))
    assert world.partition.high_watermark == 2
    world.append()
    assert world.partition.high_watermark == 2
    world.flusher.let_go()
    world.flusher.let_go()
    assert world.partition.high_watermark == 3


def test_recovered_bytes_are_stable_before_anybody_is_served() -> None:
    """A killed process leaves whole batches in the page cache; a power failure after the restart must not take them."""
    disk = SimDisk(Random(2))
    disk.make_directory("/data")
    disk.sync_directory("")
    broker = BrokerConfig.load(None, {"log.dirs": "/data"})[0]
    image = MetadataImage()
    image.replay(TopicCreated("t", (b"t" * 16).hex(), ((1,),)))

    def host() -> HostedPartitions:
        commit = GroupCommit(lambda callback: callback(), HeldFlusher(disk))
        hosted = HostedPartitions(disk, "/data", broker, image, commit, NoWorkers(), FixedClock(), NoEntropy(), ALONE)
        hosted.open_all(lambda done, total: None, threads=2)
        return hosted

    partition = host().get("t", 0)
    data = build_batch([Record(None, b"v", (), NOW_MS)])
    partition.append(read_header(data), data, NOW_MS)  # written, never flushed: the process dies here
    restarted = host().get("t", 0)
    assert restarted.high_watermark == restarted.log.stable_offset == 1
    disk.crash()
    assert host().get("t", 0).log.log_end_offset == 1


class FixedClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0


class NoEntropy:
    def random_bytes(self, size: int) -> bytes:
        raise AssertionError("not needed here")


class NoWorkers:
    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        raise AssertionError("not needed here")

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        return map(work, items)
