"""Keeps the parts that a repair takes out of damaged logs until an intact copy is back in sync.

    <topic>-<partition>.<random>-damaged        the end of a log that was cut, or a whole one that could not be opened
    <topic>-<partition>.<random>-damaged.tmp    unfinished; removed at start

A reader may be wrong about damage, and the copy fetched instead may be wrong too. So a part that was cut is deleted
only when the partition is in sync again. If the log is cut again before that, the part fetched since the first cut need
not be kept; only an earlier part is. That holds only once the first cut was made (`was_cut` notes it): a repair may
keep the end of a log and then not cut it.

Each part belongs to a topic id: parts of a deleted topic do not concern a new topic of the same name.

Must not know: what damage is, when a log may be cut. Files are moved and removed in workers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from penstock.ports.clock import Entropy
from penstock.ports.disk import Disk
from penstock.ports.workers import Workers
from penstock.replica.partition import Partition
from penstock.storage.files import read_whole, write_atomic
from penstock.storage.log import Log
from penstock.storage.log_tail import LogTail

log = logging.getLogger(__name__)

SUFFIX = "-damaged"
UNFINISHED = f"{SUFFIX}.tmp"
DESCRIPTION = "set-aside.json"
MAX_FILE_NAME = 255

Key: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""


class Aside(NamedTuple):
    path: str
    start_offset: int
    """The part contains everything from this offset to the end of the log."""
    committed_end: int
    """The committed part ended here: an intact copy reaches at least this offset."""
    is_cut: bool
    """Whether it is known to be no longer in the log."""
    source: tuple[Log, int] | None = None
    """The log and its generation: while both are the same, all of this is still in the log."""


class SetAside:
    def __init__(self, disk: Disk, directory: str, workers: Workers, entropy: Entropy) -> None:
        self._disk = disk
        self._directory = directory
        self._workers = workers
        self._entropy = entropy
        self._kept: dict[Key, list[Aside]] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self._kept.values()))

    def read(self) -> None:
        """Read the parts that earlier runs have left. Blocks."""
        for name in self._disk.list_directory(self._directory):
            path = f"{self._directory}/{name}"
            if name.endswith(UNFINISHED):
                self._remove_unfinished(path)
            elif name.endswith(SUFFIX) and self._disk.is_directory(path):
                self._read_one(path)

    def _remove_unfinished(self, path: str) -> None:
        """Remove a part that was not completed: its log was not cut."""
        try:
            self._disk.remove_directory(path)
        except OSError as error:
            log.warning("%s stays until the next start: %s", path, error)

    def _read_one(self, path: str) -> None:
        try:
            said = json.loads(read_whole(self._disk, f"{path}/{DESCRIPTION}") or b"")
            key = bytes.fromhex(said["topic_id"]), int(said["index"])
            kept = Aside(path, int(said["start"]), int(said["committed"]), said["is_cut"] is True)
            self._kept.setdefault(key, []).append(kept)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s has no valid description (%s): it stays until somebody removes it", path, error)

    def forget_others(self, known: Collection[Key]) -> None:
        """Remove the parts of partitions that are gone. Blocks."""
        for key in [key for key in self._kept if key not in known]:
            for one in self._kept.pop(key):
                log.info("%s is removed: its partition is gone", one.path)
                try:
                    self._disk.remove_directory(one.path)
                except OSError as error:
                    log.warning("%s stays until the next start: %s", one.path, error)

    def holds(self, partition: Partition) -> bool:
        return _key(partition) in self._kept

    def _covers(self, partition: Partition, offset: int) -> bool:
        """Whether everything in the log from `offset` on was fetched after its earlier content had been kept."""
        return any(kept.is_cut and kept.start_offset <= offset for kept in self._kept.get(_key(partition), ()))

    async def keep_tail(self, partition: Partition, offset: int) -> None:
        """Call before the log is cut at `offset`. Raises StorageError and OSError."""
        if self._covers(partition, offset):
            return
        key, owner = _key(partition), partition.log
        source, tail = (owner, owner.generation), owner.tail_from(offset)
        kept = Aside(self._path(partition), tail.start_offset, partition.high_watermark, False, source)
        await self._workers.run(lambda: self._write_tail(partition, tail, kept))
        # A log that was not cut since still has all of it: the new part replaces the earlier one.
        is_same = (partition.log, partition.log.generation) == source
        earlier = [one for one in self._kept.get(key, ()) if is_same and one.source == source and not one.is_cut]
        self._note(partition, kept)
        await self._remove(key, earlier)

    async def was_cut(self, partition: Partition) -> None:
        """The kept part is no longer in the log. If that cannot be noted, the next cut keeps its part, too."""
        key = _key(partition)
        for kept in [one for one in self._kept.get(key, ()) if not one.is_cut]:
            if kept.start_offset < partition.log.log_end_offset:
                continue
            noted = kept._replace(is_cut=True, source=None)
            try:
                await self._workers.run(partial(self._describe, partition, kept.path, noted))
            except OSError as error:
                log.warning("cannot note in %s that its log was truncated: %s", kept.path, error)
            self._kept[key] = [noted if one == kept else one for one in self._kept.get(key, ())]

    def _write_tail(self, partition: Partition, tail: LogTail, kept: Aside) -> None:
        unfinished = kept.path.removesuffix(SUFFIX) + UNFINISHED
        try:
            tail.write(self._disk, unfinished)
            self._describe(partition, unfinished, kept)
            self._disk.rename(unfinished, kept.path)
            self._disk.sync_directory(self._directory)
        except OSError:
            with suppress(OSError):
                self._disk.remove_directory(unfinished)
            raise

    async def move(self, partition: Partition) -> None:
        """Move the whole directory of a log that could not be opened. Raises StorageError, OSError."""
        directory, is_copy = partition.log.directory, self._covers(partition, 0)
        kept = Aside(self._path(partition), 0, partition.high_watermark, is_cut=True)

        def move() -> None:
            self._describe(partition, directory, kept)
            self._disk.rename(directory, kept.path)

        if self._disk.exists(directory):
            await self._workers.run(move)
            self._note(partition, kept)
        # Stable before another directory takes the name: a crash could leave only the new one. An earlier attempt may
        # have got no further than the rename.
        await self._workers.run(lambda: self._disk.sync_directory(self._directory))
        if is_copy:
            await self._remove(_key(partition), [one for one in self._kept[_key(partition)] if one == kept])

    def _describe(self, partition: Partition, directory: str, kept: Aside) -> None:
        said = {
            "topic": partition.topic,
            "topic_id": partition.topic_id.hex(),
            "index": partition.index,
            "start": kept.start_offset,
            "committed": kept.committed_end,
            "is_cut": kept.is_cut,
        }
        write_atomic(self._disk, f"{directory}/{DESCRIPTION}", json.dumps(said).encode())

    def _note(self, partition: Partition, kept: Aside) -> None:
        self._kept.setdefault(_key(partition), []).append(kept)
        log.warning("%r: the removed part is kept in %s until this replica is in sync again", partition, kept.path)

    async def remove(self, partition: Partition) -> None:
        """Remove the kept parts: an intact copy is in sync, or the partition is gone. Raises OSError: then the parts
        are still there.
        """
        kept = self._kept.get(_key(partition), [])
        done = [one for one in kept if partition.is_deleted or one.committed_end <= partition.log.log_end_offset]
        if done:
            await self._remove(_key(partition), done)
            why = "the partition is gone" if partition.is_deleted else "an intact copy is in sync"
            log.info("%r: %s removed: %s", partition, ", ".join(one.path for one in done), why)

    async def _remove(self, key: Key, done: list[Aside]) -> None:
        for one in done:
            await self._workers.run(partial(self._disk.remove_directory, one.path))
            left = [other for other in self._kept.get(key, ()) if other.path != one.path]
            if left:
                self._kept[key] = left
            else:
                self._kept.pop(key, None)

    def _path(self, partition: Partition) -> str:
        name = f"{partition.topic}-{partition.index}"
        unique = f".{self._entropy.random_bytes(16).hex()}{SUFFIX}"
        return f"{self._directory}/{name[: MAX_FILE_NAME - len(unique) - len('.tmp')]}{unique}"


def _key(partition: Partition) -> Key:
    return partition.topic_id, partition.index
