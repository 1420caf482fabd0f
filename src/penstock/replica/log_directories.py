"""The directories of a broker's logs: opened, recovered, or set aside.

A log that cannot be opened does not stop the broker. Files are renamed, never removed. A directory counts only if it
holds the files of a partition: other directories may exist here, whatever their names. Must not know: partitions,
metadata.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Collection, Iterable

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.model.errors import ForeignDirectory, StorageError
from penstock.ports.clock import Clock, Entropy
from penstock.ports.disk import Disk
from penstock.replica.offset_files import KnownOffsets, OffsetFiles
from penstock.storage.checkpoints import PARTITION_METADATA
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

log = logging.getLogger(__name__)

DELETED_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
MAX_FILE_NAME = 255
MOST_NAMED = 100  # in one log line
METADATA_DIRECTORY = "__cluster_metadata-0"
_OF_A_PARTITION = re.compile(rf"{re.escape(PARTITION_METADATA)}|[0-9]{{20}}\.log")
_DELETED = re.compile(rf".+\.[0-9a-f]{{32}}{DELETED_SUFFIX}")


def log_config(config: TopicConfig, broker: BrokerConfig) -> LogConfig:
    is_compacted = "compact" in config.cleanup_policy
    return LogConfig(
        segment_bytes=config.segment_bytes,
        # Only sealed segments are compacted, so no segment may stay active for longer than `max.compaction.lag.ms`.
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


class LogDirectories:
    def __init__(self, disk: Disk, path: str, offsets: OffsetFiles, clock: Clock, entropy: Entropy) -> None:
        self._disk = disk
        self.path = path
        self._offsets = offsets
        self._clock = clock
        self._entropy = entropy
        self.was_clean = False
        """How the last run ended."""
        self.is_haunted = False
        """The checkpoint files list partitions that are deleted, and their names may be in use again."""

    def open(
        self,
        directory: str,
        settings: LogConfig,
        known: KnownOffsets,
        topic_id: bytes,
        *,
        was_clean: bool | None = None,
    ) -> Log:
        """Open a log. One damaged log does not stop the broker: its partition is offline, the others serve.

        `was_clean`: how this log was left, if not as `self.was_clean` says.
        """
        try:
            return Log.open(
                self._disk,
                directory,
                settings,
                _last_run(known, self.was_clean if was_clean is None else was_clean),
                now_ms=self._clock.now_ms(),
                topic_id=topic_id,
            )
        except ForeignDirectory as error:
            # Files of a topic of this name that was deleted just before a crash, or while this broker was away.
            if self.set_aside(directory, STRAY_SUFFIX, str(error)) is not None:
                self.is_haunted = True
                return self.open(directory, settings, KnownOffsets(), topic_id)
            return self.offline(directory, settings, error, known)
        except StorageError as error:
            return self.offline(directory, settings, error, known)

    def offline(self, directory: str, settings: LogConfig, error: StorageError, known: KnownOffsets) -> Log:
        log.critical("%s; the partition is offline, its files are left as they are", error)
        cause = OSError(errno.EIO, str(error))
        cause.__cause__ = error
        return Log.offline_at(self._disk, directory, settings, cause, _last_run(known, was_clean=False))

    def make_stable(self, owner: Log) -> StorageError | None:
        try:
            flush_blocking(self._disk, owner)
        except StorageError as error:
            return error
        return None

    def set_aside(self, path: str, suffix: str, reason: str | None = None, *, sync: bool = True) -> str | None:
        """Rename a directory out of the way. Returns the new path, or None if that failed.

        With `sync=False` the caller makes a stray's new name stable before another directory takes the old one.
        """
        name = path.rpartition("/")[2]
        unique = f".{self._entropy.random_bytes(16).hex()}{suffix}"
        aside = f"{self.path}/{name[: MAX_FILE_NAME - len(unique)]}{unique}"
        try:
            self._disk.rename(path, aside)
            if suffix == STRAY_SUFFIX and sync:
                self._disk.sync_directory(self.path)
        except OSError as error:
            log.error("cannot set %s aside: %s", path, error)
            return None
        if reason is not None:
            log.warning("%s %s: set aside as %s", path, reason, aside)
        return aside

    def remove(self, paths: Iterable[str]) -> None:
        """Remove directories that were set aside. Blocks. Their new names are made stable first: if a crash undid one,
        the remaining files would lie in the partition's place and pass for its log.
        """
        self._disk.sync_directory(self.path)
        for path in paths:
            self._disk.remove_directory(path)

    def set_strays_aside(self, known: Collection[str]) -> None:
        """Set aside directories that look like partitions but are not in `known`."""
        strays: list[str] = []
        for name in self._disk.list_directory(self.path):
            if name in known or name == METADATA_DIRECTORY or not name.rpartition("-")[2].isdigit():
                continue
            if self._is_partition(f"{self.path}/{name}"):
                aside = self.set_aside(f"{self.path}/{name}", STRAY_SUFFIX)
                if aside is not None:
                    strays.append(aside)
        if strays:
            more = len(strays) - MOST_NAMED
            log.warning(
                "%d director%s of partitions that the metadata does not place on this broker: set aside as %s. "
                "The broker never reads or removes them; you may delete them if nobody needs those topics",
                len(strays),
                "y" if len(strays) == 1 else "ies",
                ", ".join(strays[:MOST_NAMED]) + (f" and {more} more" if more > 0 else ""),
            )

    def _is_partition(self, path: str) -> bool:
        """Decides by the content: a name that ends in a number proves nothing."""
        try:
            return self._disk.is_directory(path) and any(
                map(_OF_A_PARTITION.fullmatch, self._disk.list_directory(path))
            )
        except OSError as error:
            log.warning("%s is left as it is, because it cannot be read: %s", path, error)
            return False

    def deleted(self) -> list[str]:
        """List the directories of deleted partitions. Their checkpoints must not be used for new partitions."""
        deleted = [name for name in self._disk.list_directory(self.path) if _DELETED.fullmatch(name)]
        for name in deleted:
            partition = name.rpartition(".")[0]
            topic, _, index = partition.rpartition("-")
            if index.isdigit() and not self._disk.exists(f"{self.path}/{partition}"):
                self._offsets.forget((topic, int(index)))
                self.is_haunted = True
        return deleted


def _last_run(known: KnownOffsets, was_clean: bool) -> LastRun:
    return LastRun(known.recovery_point, known.log_start, known.cleaned, was_clean)
