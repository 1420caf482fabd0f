"""All partitions of this broker: opened at start, added and removed as the metadata says.

Lookups are plain dictionaries of lists, because produce and fetch use them for every partition of every request. The
list holds None where a partition has no replica here. `log_directories` handles the files; `housekeeping` does the
periodic work on the logs.

Files of a partition that the metadata does not place here are stray. Only current metadata may decide that: see
`open_all`.
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
from penstock.replica.host import BrokerStanding, Host, PartitionEvents
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

SETTLING_S = 0.1  # between two checks
LACKING = "may lack tombstones: the log is fetched again from the leader"


@dataclass(slots=True)
class OpeningReport:
    """The work done at start-up, for the log line after a crash."""

    partitions: int = 0
    was_clean: bool = True
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    rebuilt_indexes: int = 0


@dataclass(slots=True)
class _Held:
    """A partition that is not usable yet."""

    cut: Cut | None
    """Ends the hold. None: the log was offline already, or is offline because the disk hangs."""
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
        standing: BrokerStanding,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.broker = broker
        self._image = image
        self._commit = commit
        self._workers = workers
        self._clock = clock
        self._entropy = entropy
        self.by_name: dict[str, list[Partition | None]] = {}
        self.by_id: dict[bytes, list[Partition | None]] = {}
        self._offsets = OffsetFiles(disk, directory)
        self._directories = LogDirectories(disk, directory, self._offsets, clock, entropy)
        self.set_aside = SetAside(disk, directory, workers, entropy)
        self._outdated: list[str] = []  # directories that were set aside and may be deleted
        self._holding: dict[Partition, _Held] = {}  # until no checkpoint lists a former partition
        self._doubtful: dict[Partition, None] = {}  # the log may be outdated; kept while the partition has no leader
        self.housekeeping = Housekeeping(self, self._offsets, commit, workers, clock)
        self.host = Host(
            broker.node_id,
            clock,
            standing,
            self._broker_epoch_of,
            broker.replica_lag_time_max_ms,
            self.housekeeping.log_start_moved,
        )

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
        """(leader, leader epoch) in the metadata, also of partitions not hosted here; -1 if unknown."""
        state = self._image.topics_by_id.get(topic_id) or self._image.topics.get(topic)
        if state is None or not 0 <= index < len(state.partitions):
            return -1, -1
        return state.partitions[index].leader, state.partitions[index].leader_epoch

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_name.values():
            for partition in partitions:
                if partition is not None:
                    yield partition

    def follow(
        self, image: MetadataImage, broker: BrokerConfig, events: PartitionEvents, *, is_disk_hung: bool
    ) -> None:
        """Send `events` from now on, and one now for every partition. The logs were opened with a copy of the image,
        and with settings that may have changed since.
        """
        self.host.events = events
        self.host.is_disk_hung = is_disk_hung
        if self.broker is not broker:
            self.broker_config_changed(broker)
        self._image = image
        for partition in self:
            events.role_changed(partition)

    # -- start and stop -----------------------------------------------------------------

    def open_all(self, progress: Callable[[int, int], None], threads: int) -> OpeningReport:
        """Open every log of the image. Blocks; runs before the loop serves requests.

        The image includes the registration of this incarnation (`Membership.join`), and so all earlier decisions.
        Directories and checkpoints of partitions that it does not place here are stray and are set aside.
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
        return report

    def _secure_recovered(self, threads: int) -> None:
        """Bytes that a crash left in the page cache may be whole and still not stable. Under the default policy they
        are not readable, so they are made stable before the broker serves requests.
        """
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
            # The log beyond it may differ from other replicas. This does not concern a sole replica.
            high_watermark=known.high_watermark if len(state.replicas) > 1 else None,
        )
        if is_in_the_way or (report is None and self._offsets.speaks_of_former((topic.name, state.index))):
            self._hold(partition, is_in_the_way=is_in_the_way)
        partition.apply_state(state)
        if is_doubtful and state.leader == NO_LEADER:
            self._doubtful[partition] = None
        return partition

    def _may_be_of_an_earlier_stay(self, state: PartitionState, config: TopicConfig, known: Log) -> bool:
        """Whether the replica was removed from here and added again while this broker was away. No tombstones were kept
        for it meanwhile, so deleted keys would come back with its log.

        A replica that is in sync or eligible to lead has fetched since, and others count on it. A replica with records
        of the current leader epoch has fetched since, too, because each removal begins a new epoch. Call this only
        while no leader can have heard of this log: in a new incarnation, or for a leader epoch that is new here.
        """
        own = self.host.node_id
        is_counted_on = own in (*state.isr, *state.elr, *state.last_known_elr)
        is_of_now = known.epochs.latest >= state.leader_epoch
        return own in state.adding and not is_counted_on and not is_of_now and "compact" in config.cleanup_policy

    def _was_away(self, partition: Partition, state: PartitionState) -> bool:
        """Whether the partition may have been removed from here and added again within one update, such as a snapshot
        of the metadata. That takes two changes, and each removal begins a new leader epoch.
        """
        partition_epoch, leader_epoch = partition.newest_epochs
        is_told_late = state.partition_epoch > partition_epoch + 1
        is_doubtful = is_told_late or partition in self._doubtful
        if not is_doubtful or state.leader_epoch <= leader_epoch:
            return False
        if state.leader == NO_LEADER:  # it may be the only copy left
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
        """Begin an empty log in place of one that could not be opened and was set aside. Raises StorageError."""
        directory, settings = partition.log.directory, partition.log.config
        if self._disk.exists(directory):
            raise StorageError(f"{directory} is still there")
        fresh = self._directories.open(directory, settings, KnownOffsets(0, 0, 0, 0), partition.topic_id)
        if fresh.offline is not None:
            raise LogOffline(directory, fresh.offline)
        partition.log = fresh
        return partition.begin_anew(0)

    async def probe(self) -> None:
        """Check that the disk can write and sync a small file. Raises OSError."""
        await self._workers.run(partial(probe, self._disk, self.directory, REVIVAL_PROBE))

    async def reopen(self, partition: Partition) -> Log:
        """Open the log of an offline partition again, beside the old one. It is recovered as after a crash, and all of
        it is stable.

        The part beyond the old log's stable offset is cut if other replicas have it, and written again if not: after a
        failed sync the page cache reports clean pages, whether or not they are on the disk. Raises StorageError; then
        only the files of the old log were closed.
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
            # With a flush before every acknowledgement, recovery writes the scanned part again.
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
            fresh.config = partition.log.config  # the current settings
        return fresh

    async def least_end_after_cut(self, partition: Partition, offset: int) -> int:
        return await self.housekeeping.least_end_after_cut(partition, offset)

    async def deletion_ended(self, partition: Partition) -> None:
        await self.housekeeping.deletion_ended(partition)

    async def lower_recovery_point(self, partition: Partition, offset: int) -> None:
        """Call before a log is cut to `offset`. The cut must begin in the same turn: a checkpoint may come next."""
        await self.housekeeping.lower_recovery_point(partition, offset)

    async def persist_offsets(self) -> None:
        await self.housekeeping.persist_offsets()

    def close_all(self, progress: Callable[[int, int], None], threads: int, broker_epoch: int = -1) -> None:
        """Clean shutdown: make everything stable, write indexes and snapshots, then the marker. Blocks."""
        partitions = list(self)
        # A topic without changes since the last stop costs nothing. The others are synced from several threads, because
        # the disk merges their commits.
        is_clean = True
        failures: list[str] = []
        for count, problem in enumerate(self._workers.each(self._close_one, partitions, threads)):
            is_clean = is_clean and problem is None
            if problem:
                failures.append(problem)
            progress(count + 1, len(partitions))
        if failures:  # one line: the same cause usually affects all partitions
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
        """Return None if the next start may trust this log without a scan; only then does its recovery point rise. Else
        return a sentence, or an empty string if the failure was logged before.
        """
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
        """For a new partition. Returns whether files of a former partition were in its place: they could not be set
        aside when it was removed.
        """
        is_in_the_way = self._disk.exists(path)
        if is_in_the_way:
            self._directories.set_aside(path, STRAY_SUFFIX, "is in the place of a new partition", sync=False)
        self._offsets.forget(key)
        return is_in_the_way

    def _hold(self, partition: Partition, *, is_in_the_way: bool) -> None:
        """Block use of the partition until a worker has erased all checkpoints of the former one. This happens if a
        topic is deleted and at once created again.
        """
        cut = partition.hold() if partition.log.offline is None else None
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
        """After a failure the log is offline and comes back like other offline logs: see `reopen`."""
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
        """Take partitions that wait for the disk offline: another replica may lead them."""
        for partition, held in list(self._holding.items()):
            if held.cut is not None:
                self._end_hold(partition, OSError(errno.ETIMEDOUT, "the disk hangs"))

    def held_since_s(self) -> float | None:
        """The time since which a partition has been waiting for the disk; None: no partition is waiting."""
        return min((held.since_s for held in self._holding.values()), default=None)

    async def _forget_former(self, partition: Partition, *, is_in_the_way: bool) -> None:
        """Stable when this returns. Raises StorageError or OSError."""
        if not partition.is_deleted:
            await self.housekeeping.erase([(partition.topic, partition.index)])
            if is_in_the_way:
                await self._workers.run(partial(self._disk.sync_directory, self.directory))

    async def settled(self) -> None:
        """Wait until no partition is held back, except by a disk that hangs."""
        while any(held.cut is not None for held in self._holding.values()):
            await asyncio.wait([held.task for held in self._holding.values()], timeout=SETTLING_S)

    def _exorcise(self) -> None:
        """Rewrite the checkpoint files. Blocks."""
        try:
            self._offsets.prepare(self)()
            self._directories.is_haunted = False
        except StorageError as error:
            log.error("offsets of deleted partitions may be mistaken for those of new partitions: %s", error)

    def topic_created(self, topic: TopicState) -> None:
        self.by_name[topic.name] = self.by_id[topic.topic_id] = []
        self._add(topic, 0)

    def partitions_added(self, topic: TopicState) -> None:
        self._add(topic, len(self.by_name[topic.name]))

    def _add(self, topic: TopicState, first: int) -> None:
        self._host(topic, topic.partitions[first:])
        for partition in self.by_name[topic.name][first:]:
            if partition is not None and not partition.is_told_later:
                self.host.events.role_changed(partition)

    def partition_changed(self, topic: TopicState, state: PartitionState) -> Awaitable[None] | None:
        """Apply `state`: lead, follow, add or remove the replica. Returns the removal of its files, if any."""
        partitions = self.by_name[topic.name]
        partition = partitions[state.index]
        removal: Awaitable[None] | None = None
        is_here = self.host.node_id in state.replicas
        if partition is not None and (not is_here or self._was_away(partition, state)):
            partitions[state.index] = None
            what = LACKING if is_here else "no longer has a replica on this broker"
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
            self.host.events.role_changed(partition)
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
            if self._disk.exists(partition.log.directory):  # the first append creates it
                aside = self._directories.set_aside(partition.log.directory, DELETED_SUFFIX)
                if aside is not None:
                    doomed.append(aside)
            self.host.events.role_changed(partition)

        return self._remove_directories([(one.topic, one.index) for one in partitions], doomed)

    async def _remove_directories(self, keys: Sequence[Key], doomed: Sequence[str]) -> None:
        """The directories go last: while they exist, a start knows that the checkpoints belong to deleted
        partitions.
        """
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
                partition.apply_config(config, is_of_now=self._has_newest_state(partition))

    def _has_newest_state(self, partition: Partition) -> bool:
        """Not while a snapshot of the metadata, or an entry of several records, is told piece by piece."""
        topic = self._image.topics_by_id.get(partition.topic_id)
        return topic is not None and partition.newest_epochs[0] >= topic.partitions[partition.index].partition_epoch

    def broker_config_changed(self, broker: BrokerConfig) -> None:
        """Broker settings changed at run time. They are the defaults of every topic."""
        self.broker = broker
        self.host.lag_time_max_ms = broker.replica_lag_time_max_ms
        for topic in self.by_name:
            self.config_changed(topic)

    def space(self) -> tuple[int, int]:
        """(total, usable) bytes of the volume that holds the logs."""
        return self._disk.space(self.directory)
