"""All partitions of this broker: opened at start, made and unmade as the metadata says.

Lookups are plain dictionaries of lists, because produce and fetch go through them for
every partition of every request; where a partition has no replica here the list holds None.
Files are the business of `log_directories`, what logs need now and then that of `housekeeping`.

Files of a partition that the metadata does not place here are nobody's, but only metadata that
is current may say so: see `open_all`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import NO_LEADER, MetadataImage, PartitionState, TopicState
from penstock.model.errors import ApiError, ErrorCode, LogOffline, StorageError
from penstock.ports.clock import Clock, Entropy
from penstock.ports.disk import Disk
from penstock.ports.workers import Workers
from penstock.replica.host import Host
from penstock.replica.housekeeping import Housekeeping
from penstock.replica.log_directories import DELETED_SUFFIX, STRAY_SUFFIX, LogDirectories, log_config
from penstock.replica.offset_files import Key, KnownOffsets, OffsetFiles
from penstock.replica.partition import Partition
from penstock.replica.set_aside import SetAside
from penstock.storage import checkpoints
from penstock.storage.cut import Cut
from penstock.storage.group_commit import GroupCommit, flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.probe import REVIVAL_PROBE, probe

log = logging.getLogger(__name__)

SETTLING_S = 0.1  # between two looks
LACKING = "may lack deletions of keys, and is fetched anew"


@dataclass(slots=True)
class OpeningReport:
    """What start-up had to do, for the log line a person reads after a crash."""

    partitions: int = 0
    was_clean: bool = True
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    rebuilt_indexes: int = 0


@dataclass(slots=True)
class _Held:
    """A partition that nobody may use yet."""

    cut: Cut | None
    """Ends it; None: its log was offline, or is because the disk hangs."""
    since_s: float
    task: asyncio.Task[None]


class HostedPartitions:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        broker: BrokerConfig,
        image: MetadataImage,
        commit: GroupCommit,
        workers: Workers,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.broker = broker
        self._image = image
        self._commit = commit
        self._workers = workers
        self._clock = clock
        self._entropy = entropy
        self.host = Host(broker.node_id, clock)
        self.host.lag_time_max_ms = broker.replica_lag_time_max_ms
        self.host.broker_epoch_of = self._broker_epoch_of
        self.host.on_told = lambda partition: self.on_role(partition)
        self.by_name: dict[str, list[Partition | None]] = {}
        self.by_id: dict[bytes, list[Partition | None]] = {}
        self.on_role: Callable[[Partition], None] = lambda _: None
        """After a partition has come, gone (`is_deleted`), or heard what the metadata says of it."""
        self._offsets = OffsetFiles(disk, directory)
        self._directories = LogDirectories(disk, directory, self._offsets, clock, entropy)
        self.set_aside = SetAside(disk, directory, workers, entropy)
        self._outdated: list[str] = []  # directories that were set aside, and may go
        self._holding: dict[Partition, _Held] = {}  # back, until nothing speaks of a former one
        self._doubtful: dict[Partition, None] = {}  # perhaps of an earlier stay, and kept while nobody leads
        self.housekeeping = Housekeeping(self, self._offsets, commit, workers, clock)
        self.host.on_log_start = self.housekeeping.log_start_moved

    def _broker_epoch_of(self, broker_id: int) -> int | None:
        broker = self._image.brokers.get(broker_id)
        return None if broker is None or broker.is_fenced or broker.in_controlled_shutdown else broker.epoch

    # -- lookup -------------------------------------------------------------------------

    def get(self, topic: str, index: int) -> Partition:
        partitions = self.by_name.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = partitions[index]
        if partition is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        partitions = self.by_id.get(topic_id)
        if partitions is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if not 0 <= index < len(partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = partitions[index]
        if partition is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def rack_of(self, broker_id: int) -> str | None:
        broker = self._image.brokers.get(broker_id)
        return None if broker is None else broker.rack

    def leader_of(self, topic_id: bytes, topic: str, index: int) -> tuple[int, int]:
        """(leader, leader epoch) by the metadata, also of what is not hosted here; -1 where unknown."""
        state = self._image.topics_by_id.get(topic_id) or self._image.topics.get(topic)
        if state is None or not 0 <= index < len(state.partitions):
            return -1, -1
        return state.partitions[index].leader, state.partitions[index].leader_epoch

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_name.values():
            for partition in partitions:
                if partition is not None:
                    yield partition

    def use_image(self, image: MetadataImage) -> None:
        """From now on; the logs were opened by a copy of it."""
        self._image = image

    # -- start and stop -----------------------------------------------------------------

    def open_all(self, progress: Callable[[int, int], None], threads: int) -> OpeningReport:
        """Open every log of the image. Blocks; runs before the loop serves anyone.

        The image knows of this life's registration (`Membership.join`), and so of all that was decided in earlier ones:
        directories and checkpoints of partitions that it does not place here are nobody's. They are set aside.
        """
        self._directories.was_clean = checkpoints.take_clean_shutdown_marker(self._disk, self.directory)
        self._offsets.read()
        self.set_aside.read()
        deleted = self._directories.deleted()
        self._set_strays_aside()
        report = OpeningReport(was_clean=self._directories.was_clean)
        total = sum(len(topic.partitions) for topic in self._image.topics.values())
        for topic in self._image.topics.values():
            self.by_name[topic.name] = self.by_id[topic.topic_id] = []
            self._host(topic, topic.partitions, report)
            progress(report.partitions, total)
        self._secure_recovered(threads)
        self._offsets.forget_all(self)
        self.set_aside.forget_others({(partition.topic_id, partition.index) for partition in self})
        self._forget_earlier_stays()
        if deleted:
            self._directories.remove(f"{self.directory}/{name}" for name in deleted)
        for partition in self:
            self.on_role(partition)
        return report

    def _secure_recovered(self, threads: int) -> None:
        """What a crash left in the page cache may be whole and still not stable. Under the default
        policy nobody reads such bytes, so they are made stable before anybody is served."""
        unstable = [
            partition.log
            for partition in self
            if partition.is_durable and partition.log.stable_offset < partition.log.log_end_offset
        ]
        for error in self._workers.each(self._directories.make_stable, unstable, threads):
            if error is not None:
                log.critical("%s", error)

    def _set_strays_aside(self) -> None:
        known = {
            f"{topic.name}-{state.index}"
            for topic in self._image.topics.values()
            for state in topic.partitions
            if self.host.node_id in state.replicas
        }
        self._directories.set_strays_aside(known)

    def _host(self, topic: TopicState, states: Sequence[PartitionState], report: OpeningReport | None = None) -> None:
        """Append to the topic's list: a partition for each state that has a replica here."""
        config = self.resolve_config(topic.name)
        settings = log_config(config, self.broker)
        partitions = self.by_name[topic.name]
        for state in states:
            if self.host.node_id not in state.replicas:
                partitions.append(None)
                continue
            partitions.append(self._open_partition(topic, state, config, settings, report))

    def _open_partition(
        self,
        topic: TopicState,
        state: PartitionState,
        config: TopicConfig,
        settings: LogConfig,
        report: OpeningReport | None = None,
    ) -> Partition:
        path = f"{self.directory}/{topic.name}-{state.index}"
        is_in_the_way = report is None and self._clear_the_way((topic.name, state.index), path)
        known = self._offsets.take((topic.name, state.index))
        opened = self._directories.open(path, settings, known, topic.topic_id)
        is_doubtful = self._may_be_of_an_earlier_stay(state, config, opened) and self._disk.exists(path)
        if is_doubtful and state.leader != NO_LEADER:
            opened.close(clean=False)
            aside = self._directories.set_aside(path, DELETED_SUFFIX, LACKING)
            if aside is None:
                cause = StorageError(f"{path} {LACKING}, but cannot be set aside")
                opened = self._directories.offline(path, settings, cause, known)
            else:
                known, self._directories.is_haunted = KnownOffsets(), True
                self._outdated.append(aside)
                opened = self._directories.open(path, settings, known, topic.topic_id)
        if report is not None:
            report.partitions += 1
            report.scanned_bytes += opened.recovery.scanned_bytes
            report.truncated_bytes += opened.recovery.truncated_bytes
            report.rebuilt_indexes += opened.recovery.rebuilt_indexes
        elif config.flush_messages <= 1 and (error := self._directories.make_stable(opened)) is not None:
            log.critical("%s", error)
        for message in opened.recovery.messages:
            log.warning("%s-%d: %s", topic.name, state.index, message)
        partition = Partition(
            topic.name,
            topic.topic_id,
            state.index,
            opened,
            config,
            self._commit,
            self.host,
            # What lies beyond it may differ from what other replicas hold: a sole one has no such doubts.
            high_watermark=known.high_watermark if len(state.replicas) > 1 else None,
        )
        if is_in_the_way or (report is None and self._offsets.speaks_of_former((topic.name, state.index))):
            self._hold(partition, is_in_the_way=is_in_the_way)
        partition.apply_state(state)
        if is_doubtful and state.leader == NO_LEADER:
            self._doubtful[partition] = None
        return partition

    def _may_be_of_an_earlier_stay(self, state: PartitionState, config: TopicConfig, known: Log) -> bool:
        """A replica that was taken from here and given back while this broker was away: nobody kept tombstones for it,
        and keys that were deleted meanwhile would come back with its log.

        One that is in sync or eligible to lead has fetched since, and others count on it. So has one that holds
        something of the present leader epoch: whoever is taken off, a new one begins. To be asked only while no leader
        can have heard of this log: in a new life, or of a leader epoch that is new here.
        """
        own = self.host.node_id
        is_counted_on = own in (*state.isr, *state.elr, *state.last_known_elr)
        is_of_now = known.epochs.latest >= state.leader_epoch
        return own in state.adding and not is_counted_on and not is_of_now and "compact" in config.cleanup_policy

    def _was_away(self, partition: Partition, state: PartitionState) -> bool:
        """Whether the partition was perhaps taken from here and given back in what this broker hears of at once, as by
        a snapshot of the metadata. That takes two changes, and whoever is taken off a new leader epoch."""
        partition_epoch, leader_epoch = partition.newest_epochs
        is_told_late = state.partition_epoch > partition_epoch + 1
        is_doubtful = is_told_late or partition in self._doubtful
        if not is_doubtful or state.leader_epoch <= leader_epoch:
            return False
        if state.leader == NO_LEADER:  # it may be all that is left
            self._doubtful[partition] = None
            return False
        self._doubtful.pop(partition, None)
        return self._may_be_of_an_earlier_stay(state, self.resolve_config(partition.topic), partition.log)

    def _forget_earlier_stays(self) -> None:
        if self._directories.is_haunted:
            self._exorcise()
        outdated, self._outdated = self._outdated, []
        if outdated:
            try:
                self._directories.remove(outdated)
            except OSError as error:
                log.error("files of earlier replicas stay until the next start: %s", error)

    def start_over(self, partition: Partition) -> Cut:
        """An empty log in place of one that could not be opened, and was set aside. Raises StorageError."""
        directory, settings = partition.log.directory, partition.log.config
        if self._disk.exists(directory):
            raise StorageError(f"{directory} is still there")
        fresh = self._directories.open(directory, settings, KnownOffsets(0, 0, 0, 0), partition.topic_id)
        if fresh.offline is not None:
            raise LogOffline(directory, fresh.offline)
        partition.log = fresh
        return partition.begin_anew(0)

    async def probe(self) -> None:
        """Whether the disk takes in and keeps a small file. Raises OSError."""
        await self._workers.run(partial(probe, self._disk, self.directory, REVIVAL_PROBE))

    async def reopen(self, partition: Partition) -> Log:
        """The log of a partition that is offline, opened once more beside it: as after a crash, and all of it stable.

        What lies beyond the old one's stable offset is cut where others have it, and written once more where not: after
        a failed sync pages count as clean, whatever the disk has. Raises StorageError; then nothing has changed but
        that the old log let go of its files.
        """
        old, is_cut = partition.log, partition.log.was_opened and not partition.is_needed
        settings, end = old.config, old.stable_offset
        known = KnownOffsets(
            old.persisted_recovery_point, old.log_start_offset, old.cleaned_offset, partition.high_watermark
        )
        was_clean = self._directories.was_clean and not old.was_opened

        if self._offsets.speaks_of_former((partition.topic, partition.index)):
            await self._forget_former(partition, is_in_the_way=True)

        def open_again() -> Log:
            old.close(clean=False)
            # With a flush before every acknowledgement recovery writes what it has scanned once more.
            fresh = self._directories.open(
                old.directory, replace(settings, flush_messages=1), known, partition.topic_id, was_clean=was_clean
            )
            if fresh.offline is None and is_cut:
                fresh.truncate_to(end)
            if fresh.offline is None:
                flush_blocking(self._disk, fresh)
            return fresh

        fresh = await self._workers.run(open_again)
        if fresh.offline is None:
            fresh.config = partition.log.config  # as it is by now
        return fresh

    async def least_end_after_cut(self, partition: Partition, offset: int) -> int:
        return await self.housekeeping.least_end_after_cut(partition, offset)

    async def deletion_ended(self, partition: Partition) -> None:
        await self.housekeeping.deletion_ended(partition)

    async def lower_recovery_point(self, partition: Partition, offset: int) -> None:
        """Before a log is cut to `offset`. The cut must begin in the same turn: a checkpoint may come next."""
        await self.housekeeping.lower_recovery_point(partition, offset)

    async def persist_offsets(self) -> None:
        await self.housekeeping.persist_offsets()

    def close_all(self, progress: Callable[[int, int], None], threads: int, broker_epoch: int = -1) -> None:
        """Clean shutdown: everything stable, indexes and snapshots written, marker last. Blocks."""
        partitions = list(self)
        # A topic that changed nothing since the last stop costs nothing; the others are
        # synced from several threads because the disk merges their commits.
        is_clean = True
        failures: list[str] = []
        for count, problem in enumerate(self._workers.each(self._close_one, partitions, threads)):
            is_clean = is_clean and problem is None
            if problem:
                failures.append(problem)
            progress(count + 1, len(partitions))
        if failures:  # one line: what keeps one from being closed mostly keeps them all
            log.critical(
                "%d of %d partitions could not be closed cleanly: the next start recovers them as after a crash. %s",
                len(failures),
                len(partitions),
                failures[0],
            )
        self._offsets.prepare(self)()
        if is_clean:
            checkpoints.write_clean_shutdown_marker(self._disk, self.directory, broker_epoch)

    def _close_one(self, partition: Partition) -> str | None:
        """None if the next start may trust this log unseen; only then does its recovery point rise. Else a sentence,
        empty where it was said before."""
        try:
            partition.log.close(clean=True)
        except StorageError as error:
            return f"{partition!r}: {error}"
        if partition.log.offline is not None:
            return ""
        partition.log.persisted_recovery_point = partition.log.stable_offset
        return None

    # -- metadata changes ---------------------------------------------------------------

    def _clear_the_way(self, key: Key, path: str) -> bool:
        """For a partition that is new here. Whether files of a former one were in its place: they could not be set
        aside when they should have been."""
        is_in_the_way = self._disk.exists(path)
        if is_in_the_way:
            self._directories.set_aside(path, STRAY_SUFFIX, "is in the way of a new partition", sync=False)
        self._offsets.forget(key)
        return is_in_the_way

    def _hold(self, partition: Partition, *, is_in_the_way: bool) -> None:
        """Nobody uses the partition until nothing on the disk speaks of the former one, as of a topic that is made
        again at once. A worker sees to that."""
        cut = partition.log.hold() if partition.log.offline is None else None
        work = self._release(partition, is_in_the_way=is_in_the_way)
        since_s = asyncio.get_running_loop().time()
        held = self._holding[partition] = _Held(cut, since_s, asyncio.ensure_future(work))
        held.task.add_done_callback(lambda _: self._holding.pop(partition, None))
        if self.host.is_disk_hung:
            self.disk_hung()

    async def _release(self, partition: Partition, *, is_in_the_way: bool) -> None:
        failure: StorageError | OSError | None = None
        try:
            await self._forget_former(partition, is_in_the_way=is_in_the_way)
        except (StorageError, OSError) as error:
            failure = error
        self._end_hold(partition, failure)

    def _end_hold(self, partition: Partition, failure: StorageError | OSError | None) -> None:
        """With a failure the log is offline, and comes back as others do: see `reopen`."""
        held = self._holding[partition]
        cut, held.cut = held.cut, None
        if cut is None:
            if failure is not None:
                log.error(
                    "%r: checkpoint files still list a deleted partition of the same name: %s", partition, failure
                )
            return
        if failure is None:
            cut.run()
        else:
            cut.failure = failure
        try:
            partition.end_cut(cut)
        except StorageError as error:
            log.error(
                "%r is offline, because checkpoint files still list a deleted partition of the same name: %s",
                partition,
                error,
            )

    def disk_hung(self) -> None:
        """Partitions that wait for it are offline: another replica may lead them."""
        for partition, held in list(self._holding.items()):
            if held.cut is not None:
                self._end_hold(partition, OSError(errno.ETIMEDOUT, "the disk hangs"))

    def held_since_s(self) -> float | None:
        """Since when a partition has been waiting for the disk; None: none does."""
        return min((held.since_s for held in self._holding.values()), default=None)

    async def _forget_former(self, partition: Partition, *, is_in_the_way: bool) -> None:
        """Stable when this returns. Raises StorageError or OSError."""
        if not partition.is_deleted:
            await self.housekeeping.erase([(partition.topic, partition.index)])
            if is_in_the_way:
                await self._workers.run(partial(self._disk.sync_directory, self.directory))

    async def settled(self) -> None:
        """No partition is held back any more, but for a disk that hangs."""
        while any(held.cut is not None for held in self._holding.values()):
            await asyncio.wait([held.task for held in self._holding.values()], timeout=SETTLING_S)

    def _exorcise(self) -> None:
        """Write the files beside the logs anew. Blocks."""
        try:
            self._offsets.prepare(self)()
            self._directories.is_haunted = False
        except StorageError as error:
            log.error("offsets of deleted partitions may be taken for those of new ones: %s", error)

    def topic_created(self, topic: TopicState) -> None:
        self.by_name[topic.name] = self.by_id[topic.topic_id] = []
        self._add(topic, 0)

    def partitions_added(self, topic: TopicState) -> None:
        self._add(topic, len(self.by_name[topic.name]))

    def _add(self, topic: TopicState, first: int) -> None:
        self._host(topic, topic.partitions[first:])
        for partition in self.by_name[topic.name][first:]:
            if partition is not None and not partition.is_told_later:
                self.on_role(partition)

    def partition_changed(self, topic: TopicState, state: PartitionState) -> Awaitable[None] | None:
        """Lead, follow, come or go as `state` says. When it goes: its files are being removed, as those of a topic."""
        partitions = self.by_name[topic.name]
        partition = partitions[state.index]
        removal: Awaitable[None] | None = None
        is_here = self.host.node_id in state.replicas
        if partition is not None and (not is_here or self._was_away(partition, state)):
            partitions[state.index] = None
            what = LACKING if is_here else "has no replica on this broker any more"
            log.info("%r %s", partition, what)
            removal = self._remove([partition], ErrorCode.NOT_LEADER_OR_FOLLOWER)
            partition = None
        if not is_here:
            return removal
        if partition is None:
            config = self.resolve_config(topic.name)
            partition = self._open_partition(topic, state, config, log_config(config, self.broker))
            partitions[state.index] = partition
        else:
            partition.apply_state(state)
        if not partition.is_told_later:
            self.on_role(partition)
        return removal

    def topic_deleted(self, name: str, topic_id: bytes) -> Awaitable[None]:
        """Forget the topic and rename its files at once; a worker removes them."""
        partitions = self.by_name.pop(name)
        self.by_id.pop(topic_id)
        hosted = [partition for partition in partitions if partition is not None]
        return self._remove(hosted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _remove(self, partitions: Sequence[Partition], code: ErrorCode) -> Awaitable[None]:
        doomed: list[str] = []
        for partition in partitions:
            self.housekeeping.forget(partition)
            self._doubtful.pop(partition, None)
            self._offsets.forget((partition.topic, partition.index))
            partition.delete(code)
            partition.log.close(clean=False)
            if self._disk.exists(partition.log.directory):  # made by the first append
                aside = self._directories.set_aside(partition.log.directory, DELETED_SUFFIX)
                if aside is not None:
                    doomed.append(aside)
            self.on_role(partition)

        return self._remove_directories([(one.topic, one.index) for one in partitions], doomed)

    async def _remove_directories(self, keys: Sequence[Key], doomed: Sequence[str]) -> None:
        """They go last: as long as they are there, a start knows whose offsets the files beside the logs speak of."""
        try:
            await self.housekeeping.erase(keys)
            if doomed:
                await self._workers.run(partial(self._directories.remove, doomed))
        except (StorageError, OSError) as error:
            log.error("files of deleted partitions stay until the next start: %s", error)

    def resolve_config(self, topic: str) -> TopicConfig:
        return TopicConfig.resolve(self._image.topic_overrides(topic), self.broker)

    def config_changed(self, topic: str) -> None:
        config = self.resolve_config(topic)
        settings = log_config(config, self.broker)
        for partition in self.by_name[topic]:
            if partition is not None:
                partition.log.config = settings
                partition.apply_config(config)

    def broker_config_changed(self, broker: BrokerConfig) -> None:
        """Settings of the broker changed at run time: they are the defaults of every topic."""
        self.broker = broker
        self.host.lag_time_max_ms = broker.replica_lag_time_max_ms
        for topic in self.by_name:
            self.config_changed(topic)

    def space(self) -> tuple[int, int]:
        """(total, usable) bytes of the volume that holds the logs."""
        return self._disk.space(self.directory)
