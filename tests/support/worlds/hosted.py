"""The partitions of a broker on a simulated disk, without a broker: work runs in place, time stands still."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from penstock.config.broker import BrokerConfig
from penstock.core.metadata.image import NO_LEADER, MetadataImage
from penstock.core.metadata.records import ConfigChanged, TopicCreated
from penstock.ports.disk import File
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import SimDisk
from penstock.storage.group_commit import GroupCommit
from support.worlds.hosts import ALONE

NOW_MS = 1_700_000_000_000
A = TypeVar("A")
T = TypeVar("T")


class FixedClock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class NoEntropy:
    def random_bytes(self, size: int) -> bytes:
        return bytes(size)


class Flusher:
    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def flush(
        self, files: Sequence[File], directories: Sequence[str], on_stable: Callable[[OSError | None], None]
    ) -> None:
        try:
            for file in files:
                file.sync()
            for directory in directories:
                self._disk.sync_directory(directory)
        except OSError as error:
            on_stable(error)
        else:
            on_stable(None)


class HeldFlusher:
    """Flushes when told to."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.held: list[tuple[Sequence[File], Sequence[str], Callable[[OSError | None], None]]] = []

    def flush(
        self, files: Sequence[File], directories: Sequence[str], on_stable: Callable[[OSError | None], None]
    ) -> None:
        self.held.append((files, directories, on_stable))

    def let_go(self) -> None:
        held, self.held = self.held, []
        for files, directories, on_stable in held:
            failure: OSError | None = None
            try:
                for file in files:
                    file.sync()
                for directory in directories:
                    self.disk.sync_directory(directory)
            except OSError as error:
                failure = error
            on_stable(failure)


class Workers:
    """Runs work in place, after whatever a test wants to happen first."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None
        self.error: OSError | None = None

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        async def run() -> T:
            self.before()
            if self.error is not None:
                raise self.error
            return work()

        return run()

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        return map(work, items)


class HostedWorld:
    def __init__(self, topics: dict[str, dict[str, str]], disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk(Random(1))
        self.disk.make_directory("/data")
        self.disk.sync_directory("")
        self.image = MetadataImage()
        for number, (name, overrides) in enumerate(topics.items()):
            self.image.replay(TopicCreated(name, bytes([number] * 16).hex(), ((1,),)))
            self.image.replay(ConfigChanged(2, name, overrides))
        self.open()

    def open(self) -> None:
        self.clock, self.workers = FixedClock(), Workers()
        broker, _ = BrokerConfig.load(None, {"log.dirs": "/data", "log.cleaner.dedupe.buffer.size": "100000"})
        commit = GroupCommit(lambda callback: callback(), Flusher(self.disk))
        self.hosted = HostedPartitions(
            self.disk, "/data", broker, self.image, commit, self.workers, self.clock, NoEntropy(), ALONE
        )
        self.report = self.hosted.open_all(lambda done, total: None, threads=1)

    def close(self) -> None:
        self.hosted.close_all(lambda done, total: None, threads=1)

    def append(self, partition: Partition, key: bytes) -> None:
        data = build_batch([Record(key, b"v", (), self.clock.ms)])
        partition.append(read_header(data), data, self.clock.ms)


def follow_nobody(partition: Partition) -> None:
    """There is no leader from now on: a leader's log is never cut."""
    _give_leader(partition, NO_LEADER)


def lead_again(partition: Partition) -> None:
    _give_leader(partition, partition.node_id)


def _give_leader(partition: Partition, leader: int) -> None:
    known = partition.metadata
    epochs = known.leader_epoch + 1, known.partition_epoch + 1
    partition.apply_state(replace(known, leader=leader, leader_epoch=epochs[0], partition_epoch=epochs[1]))


def cut_as_follower(partition: Partition, offset: int) -> None:
    """While another broker leads for a moment. Blocks."""
    follow_nobody(partition)
    partition.truncate_to(offset)
    lead_again(partition)
