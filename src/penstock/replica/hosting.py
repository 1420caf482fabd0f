"""All partitions of this broker: opened at start, made and unmade as the metadata says.

Lookups are plain dictionaries of lists, because produce and fetch go through them for
every partition of every request. Housekeeping (retention, flush.ms, checkpoints) runs on
timers of the node and does its blocking parts in workers.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import MetadataImage, PartitionState, TopicState
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.ports.clock import Clock, Entropy
from penstock.ports.disk import Disk
from penstock.ports.workers import Workers
from penstock.replica.partition import Partition
from penstock.storage import checkpoints
from penstock.storage.group_commit import GroupCommit, flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

log = logging.getLogger(__name__)

DELETED_SUFFIX = "-delete"
MAX_FILE_NAME = 255
METADATA_DIRECTORY = "__cluster_metadata-0"


@dataclass(slots=True)
class OpeningReport:
    """What start-up had to do, for the log line a person reads after a crash."""

    partitions: int = 0
    was_clean: bool = True
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    rebuilt_indexes: int = 0


def log_config(config: TopicConfig, broker: BrokerConfig) -> LogConfig:
    is_compacted = "compact" in config.cleanup_policy
    return LogConfig(
        segment_bytes=config.segment_bytes,
        # Only sealed segments are compacted, so none may grow for longer than a record may stay uncompacted.
        segment_ms=min(config.segment_ms, config.max_compaction_lag_ms) if is_compacted else config.segment_ms,
        segment_jitter_ms=config.segment_jitter_ms,
        index_interval_bytes=config.index_interval_bytes,
        segment_index_bytes=config.segment_index_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        flush_messages=config.flush_messages,
        flush_ms=config.flush_ms,
        compact=is_compacted,
        delete="delete" in config.cleanup_policy,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        max_message_bytes=config.max_message_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
    )


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
        self.by_name: dict[str, list[Partition]] = {}
        self.by_id: dict[bytes, list[Partition]] = {}
        self._recovery_points: dict[tuple[str, int], int] = {}
        self._log_starts: dict[tuple[str, int], int] = {}
        self._cleaned_offsets: dict[tuple[str, int], int] = {}
        self._persisted_cleaned_offsets: dict[tuple[str, int], int] = {}
        self.was_clean = False
        self._checkpointing = asyncio.Lock()
        self._deleted_since: dict[Partition, int] = {}

    # -- lookup -------------------------------------------------------------------------

    def get(self, topic: str, index: int) -> Partition:
        partitions = self.by_name.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partitions[index]

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        partitions = self.by_id.get(topic_id)
        if partitions is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if not 0 <= index < len(partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partitions[index]

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_name.values():
            yield from partitions

    # -- start and stop -----------------------------------------------------------------

    def open_all(self, progress: Callable[[int, int], None], threads: int) -> OpeningReport:
        """Open every log of the image. Blocks; runs before the loop serves anyone."""
        disk, directory = self._disk, self.directory
        self.was_clean = checkpoints.take_clean_shutdown_marker(disk, directory)
        self._recovery_points = checkpoints.read_offsets(disk, f"{directory}/{checkpoints.RECOVERY_POINTS}")
        self._log_starts = checkpoints.read_offsets(disk, f"{directory}/{checkpoints.LOG_START_OFFSETS}")
        self._cleaned_offsets = checkpoints.read_offsets(disk, f"{directory}/{checkpoints.CLEANED_OFFSETS}")
        self._persisted_cleaned_offsets = dict(self._cleaned_offsets)
        self._remove_leftovers()
        report = OpeningReport(was_clean=self.was_clean)
        total = sum(len(topic.partitions) for topic in self._image.topics.values())
        for topic in self._image.topics.values():
            self.by_name[topic.name] = self.by_id[topic.topic_id] = []
            self._host(topic, topic.partitions, report)
            progress(report.partitions, total)
        self._secure_recovered(threads)
        if self._recovery_points or self._log_starts:
            # Left by topics that were deleted just before a crash.
            self._recovery_points.clear()
            self._log_starts.clear()
            self._write_offsets(
                checkpoints.RECOVERY_POINTS,
                {(partition.topic, partition.index): partition.log.persisted_recovery_point for partition in self},
            )
            self._write_offsets(checkpoints.LOG_START_OFFSETS, self._current_log_starts())
        self._cleaned_offsets.clear()
        self._write_cleaned_offsets(self._current_cleaned_offsets())
        return report

    def _secure_recovered(self, threads: int) -> None:
        """What a crash left in the page cache may be whole and still not stable. Under the default
        policy nobody reads such bytes, so they are made stable before anybody is served."""
        with ThreadPoolExecutor(threads, thread_name_prefix="penstock-open") as pool:
            for outcome in [
                pool.submit(flush_blocking, self._disk, partition.log)
                for partition in self
                if partition.is_durable and partition.log.stable_offset < partition.log.log_end_offset
            ]:
                outcome.result()

    def _directory_of_deleted(self, topic: str, partition: int) -> str:
        """As Kafka: a long topic's name is cut, since a file's name has an end."""
        suffix = f"-{partition}.{self._entropy.random_bytes(16).hex()}{DELETED_SUFFIX}"
        return f"{self.directory}/{topic[: MAX_FILE_NAME - len(suffix)]}{suffix}"

    def _remove_leftovers(self) -> None:
        known = {f"{topic.name}-{state.index}" for topic in self._image.topics.values() for state in topic.partitions}
        for name in self._disk.list_directory(self.directory):
            path = f"{self.directory}/{name}"
            if name.endswith(DELETED_SUFFIX):
                self._disk.remove_directory(path)
            elif name not in known and name.rpartition("-")[2].isdigit() and name != METADATA_DIRECTORY:
                log.warning("%s belongs to no topic in the metadata; left as it is", path)

    def _host(self, topic: TopicState, states: list[PartitionState], report: OpeningReport | None = None) -> None:
        config = self.resolve_config(topic.name)
        settings = log_config(config, self.broker)
        partitions = self.by_name[topic.name]
        for state in states:
            key = (topic.name, state.index)
            opened = self._open(
                f"{self.directory}/{topic.name}-{state.index}",
                settings,
                self._recovery_points.pop(key, 0),
                self._log_starts.pop(key, 0),
                self._cleaned_offsets.pop(key, 0),
                topic.topic_id,
            )
            if report is not None:
                report.partitions += 1
                report.scanned_bytes += opened.recovery.scanned_bytes
                report.truncated_bytes += opened.recovery.truncated_bytes
                report.rebuilt_indexes += opened.recovery.rebuilt_indexes
                for message in opened.recovery.messages:
                    log.warning("%s-%d: %s", topic.name, state.index, message)
            partitions.append(
                Partition(
                    topic.name,
                    topic.topic_id,
                    state.index,
                    opened,
                    config,
                    self._commit,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    isr=state.isr,
                )
            )

    def _open(
        self,
        directory: str,
        settings: LogConfig,
        recovery_point: int,
        log_start_offset: int,
        cleaned_offset: int,
        topic_id: bytes,
    ) -> Log:
        """One damaged log does not stop the broker: its partition is offline, the others serve."""
        try:
            return Log.open(
                self._disk,
                directory,
                settings,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                clean_shutdown=self.was_clean,
                now_ms=self._clock.now_ms(),
                topic_id=topic_id,
                cleaned_offset=cleaned_offset,
            )
        except StorageError as error:
            log.critical("%s; the partition is offline, its files are left as they are", error)
            placeholder = Log.offline_at(
                self._disk,
                directory,
                settings,
                OSError(errno.EIO, str(error)),
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
            )
            placeholder.cleaned_offset = cleaned_offset
            return placeholder

    def close_all(self, progress: Callable[[int, int], None], threads: int) -> None:
        """Clean shutdown: everything stable, indexes and snapshots written, marker last. Blocks."""
        partitions = list(self)
        # A topic that changed nothing since the last stop costs nothing; the others are
        # synced from several threads because the disk merges their commits.
        with ThreadPoolExecutor(threads, thread_name_prefix="penstock-close") as pool:
            closing = [pool.submit(self._close_one, partition) for partition in partitions]
            for count, outcome in enumerate(closing):
                outcome.result()
                progress(count + 1, len(partitions))
        self._write_offsets(
            checkpoints.RECOVERY_POINTS,
            {(partition.topic, partition.index): partition.log.stable_offset for partition in partitions},
        )
        self._write_offsets(checkpoints.LOG_START_OFFSETS, self._current_log_starts())
        if all(partition.log.offline is None for partition in partitions):
            checkpoints.write_clean_shutdown_marker(self._disk, self.directory)

    def _close_one(self, partition: Partition) -> None:
        try:
            partition.log.close(clean=partition.log.offline is None)
        except StorageError as error:
            log.critical("%r could not be closed cleanly: %s", partition, error)

    # -- metadata changes ---------------------------------------------------------------

    def topic_created(self, topic: TopicState) -> None:
        self.by_name[topic.name] = self.by_id[topic.topic_id] = []
        self._host(topic, topic.partitions)

    def partitions_added(self, topic: TopicState) -> None:
        self._host(topic, topic.partitions[len(self.by_name[topic.name]) :])

    def topic_deleted(self, name: str, topic_id: bytes) -> Awaitable[None]:
        """Forget the topic and rename its files at once; a worker removes them."""
        partitions = self.by_name.pop(name)
        self.by_id.pop(topic_id)
        doomed: list[str] = []
        for partition in partitions:
            self._deleted_since.pop(partition, None)
            partition.delete()
            partition.log.close(clean=False)
            aside = self._directory_of_deleted(name, partition.index)
            self._disk.rename(partition.log.directory, aside)
            doomed.append(aside)

        def remove() -> None:
            for path in doomed:
                self._disk.remove_directory(path)

        return self._workers.run(remove)

    def resolve_config(self, topic: str) -> TopicConfig:
        return TopicConfig.resolve(self._image.topic_overrides(topic), self.broker)

    def config_changed(self, topic: str) -> None:
        config = self.resolve_config(topic)
        settings = log_config(config, self.broker)
        for partition in self.by_name[topic]:
            partition.log.config = settings
            partition.apply_config(config)

    def broker_config_changed(self, broker: BrokerConfig) -> None:
        """Settings of the broker changed at run time: they are the defaults of every topic."""
        self.broker = broker
        for topic in self.by_name:
            self.config_changed(topic)

    def space(self) -> tuple[int, int]:
        """(total, usable) bytes of the volume that holds the logs."""
        return self._disk.space(self.directory)

    # -- housekeeping -------------------------------------------------------------------

    async def remove_deleted_files(self) -> None:
        """Segments set aside `file.delete.delay.ms` ago go for good, in a worker."""
        now_ms = self._clock.now_ms()
        due: list[Log] = []
        for partition in self:
            if not partition.log.has_deleted_files:
                self._deleted_since.pop(partition, None)
            elif now_ms - self._deleted_since.setdefault(partition, now_ms) >= partition.config.file_delete_delay_ms:
                del self._deleted_since[partition]
                due.append(partition.log)

        def remove() -> None:
            for owner in due:
                owner.remove_deleted()

        if due:
            await self._workers.run(remove)

    def flush_overdue(self) -> None:
        """`flush.ms`: logs whose oldest unflushed message has waited long enough."""
        now_ms = self._clock.now_ms()
        for partition in self:
            first = partition.log.first_unflushed_ms
            if first is not None and now_ms - first >= partition.config.flush_ms:
                self._commit.request(partition)

    def apply_retention(self) -> int:
        """Delete what is too old or too much; returns the number of segments removed."""
        now_ms = self._clock.now_ms()
        removed = 0
        for partition in list(self):
            if partition.log.offline is not None or partition.log.is_being_cleaned:
                continue
            try:
                bases = partition.log.apply_retention(now_ms, partition.high_watermark)
            except StorageError as error:
                log.error("retention of %r: %s", partition, error)
                continue
            if bases:
                log.info(
                    "%r: retention removed %d segment(s), log start is %d",
                    partition,
                    len(bases),
                    partition.log.log_start_offset,
                )
            removed += len(bases)
        return removed

    async def checkpoint(self, only: Sequence[Partition] | None = None) -> None:
        """Persist recovery points and log starts; what recovery needs up to there goes first.

        Prepared on the loop, made stable in a worker. `only`: of these partitions alone.
        """
        async with self._checkpointing:
            prepared = [
                (partition, partition.log.prepare_checkpoint())
                for partition in (self if only is None else only)
                if partition.log.offline is None and not partition.is_deleted
            ]

            def make_stable() -> None:
                for partition, checkpoint in prepared:
                    try:
                        checkpoint.make_stable()
                    except FileNotFoundError:
                        if not partition.is_deleted:
                            raise

            await self._workers.run(make_stable)
            for partition, checkpoint in prepared:
                partition.log.persisted_recovery_point = checkpoint.recovery_point
            await self._persist_offsets()

    async def persist_offsets(self) -> None:
        """Write both checkpoint files anew: after delete-records, and after a topic is gone.

        What was deleted stays deleted; and a new topic of an old name must not inherit the old
        one's recovery points, or a torn tail would be taken for stable.
        """
        async with self._checkpointing:
            await self._persist_offsets()

    async def _persist_offsets(self) -> None:
        recovery_points = {
            (partition.topic, partition.index): partition.log.persisted_recovery_point for partition in self
        }
        log_starts = self._current_log_starts()
        cleaned_offsets = self._current_cleaned_offsets()

        def write() -> None:
            self._write_offsets(checkpoints.RECOVERY_POINTS, recovery_points)
            self._write_offsets(checkpoints.LOG_START_OFFSETS, log_starts)
            self._write_cleaned_offsets(cleaned_offsets)

        await self._workers.run(write)

    def _current_log_starts(self) -> dict[tuple[str, int], int]:
        return {
            (partition.topic, partition.index): partition.log.log_start_offset
            for partition in self
            if partition.log.log_start_offset > 0
        }

    def _current_cleaned_offsets(self) -> dict[tuple[str, int], int]:
        return {
            (partition.topic, partition.index): partition.log.cleaned_offset
            for partition in self
            if partition.log.cleaned_offset > 0
        }

    def _write_cleaned_offsets(self, offsets: dict[tuple[str, int], int]) -> None:
        """Only if it says something new: most brokers compact little."""
        if offsets != self._persisted_cleaned_offsets:
            self._write_offsets(checkpoints.CLEANED_OFFSETS, offsets)
            self._persisted_cleaned_offsets = offsets

    def _write_offsets(self, name: str, offsets: dict[tuple[str, int], int]) -> None:
        checkpoints.write_offsets(self._disk, f"{self.directory}/{name}", offsets)
