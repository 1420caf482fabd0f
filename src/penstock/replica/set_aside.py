"""What repair takes out of damaged logs, kept beside them until a sound copy is back in sync.

    <topic>-<partition>.<random>-damaged        the end of a log that was cut, or a whole one that could not be opened
    <topic>-<partition>.<random>-damaged.tmp    on its way there; removed at start

A reader may be wrong about damage, and so may the copy that is fetched instead. So nothing that was cut is deleted
before the partition is in sync again. What is cut a second time until then was fetched after the first time: only
what lies before it is kept as well.

Must not know: what damage is, when a log may be cut. Files are moved and removed in workers.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import NamedTuple

from penstock.ports.clock import Entropy
from penstock.ports.disk import Disk
from penstock.ports.workers import Workers
from penstock.replica.partition import Partition
from penstock.storage.files import read_whole, write_atomic
from penstock.storage.log_tail import LogTail

log = logging.getLogger(__name__)

SUFFIX = "-damaged"
UNFINISHED = f"{SUFFIX}.tmp"
DESCRIPTION = "set-aside.json"
MAX_FILE_NAME = 255


class Aside(NamedTuple):
    path: str
    start_offset: int
    """Everything from here on that was there is in it."""
    committed_end: int
    """What was known to be committed ended here: a sound copy holds as much."""


class SetAside:
    def __init__(self, disk: Disk, directory: str, workers: Workers, entropy: Entropy) -> None:
        self._disk = disk
        self._directory = directory
        self._workers = workers
        self._entropy = entropy
        self._kept: dict[str, list[Aside]] = {}  # by the name of the partition's directory

    @property
    def count(self) -> int:
        return sum(map(len, self._kept.values()))

    def read(self) -> None:
        """What earlier runs have left. Blocks."""
        for name in self._disk.list_directory(self._directory):
            path = f"{self._directory}/{name}"
            if name.endswith(UNFINISHED):
                self._remove_unfinished(path)
            elif name.endswith(SUFFIX) and self._disk.is_directory(path):
                self._read_one(path)

    def _remove_unfinished(self, path: str) -> None:
        """The log that it was to be a part of was not cut."""
        try:
            self._disk.remove_directory(path)
        except OSError as error:
            log.warning("%s stays until the next start: %s", path, error)

    def _read_one(self, path: str) -> None:
        try:
            said = json.loads(read_whole(self._disk, f"{path}/{DESCRIPTION}") or b"")
            kept = Aside(path, int(said["start"]), int(said["committed"]))
            self._kept.setdefault(str(said["partition"]), []).append(kept)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s does not say what it is (%s): it stays until somebody removes it", path, error)

    def holds(self, partition: Partition) -> bool:
        return _name(partition) in self._kept

    async def keep_tail(self, partition: Partition, offset: int) -> None:
        """Before the log is cut at `offset`. Raises StorageError and OSError."""
        name = _name(partition)
        if any(kept.start_offset <= offset for kept in self._kept.get(name, ())):
            return
        tail = partition.log.tail_from(offset)
        kept = Aside(self._path(name), tail.start_offset, partition.high_watermark)
        await self._workers.run(lambda: self._write_tail(name, tail, kept))
        self._note(partition, kept)

    def _write_tail(self, name: str, tail: LogTail, kept: Aside) -> None:
        unfinished = kept.path.removesuffix(SUFFIX) + UNFINISHED
        try:
            tail.write(self._disk, unfinished)
            self._describe(name, unfinished, kept)
            self._disk.rename(unfinished, kept.path)
            self._disk.sync_directory(self._directory)
        except OSError:
            with suppress(OSError):
                self._disk.remove_directory(unfinished)
            raise

    async def move(self, partition: Partition) -> None:
        """The whole directory of a log that could not be opened goes out of the way. Raises StorageError, OSError."""
        name, directory = _name(partition), partition.log.directory
        if not self._disk.exists(directory):
            return
        is_copy = any(kept.start_offset <= 0 for kept in self._kept.get(name, ()))
        kept = Aside(self._path(name), 0, partition.high_watermark)

        def move() -> None:
            self._describe(name, directory, kept)
            self._disk.rename(directory, kept.path)
            # Stable before another directory takes its name: a crash could leave that one alone.
            self._disk.sync_directory(self._directory)
            if is_copy:
                self._disk.remove_directory(kept.path)

        await self._workers.run(move)
        if not is_copy:
            self._note(partition, kept)

    def _describe(self, name: str, directory: str, kept: Aside) -> None:
        said = {"partition": name, "start": kept.start_offset, "committed": kept.committed_end}
        write_atomic(self._disk, f"{directory}/{DESCRIPTION}", json.dumps(said).encode())

    def _note(self, partition: Partition, kept: Aside) -> None:
        self._kept.setdefault(_name(partition), []).append(kept)
        log.warning(
            "%r: what is taken out of it is kept in %s until this replica is in sync again", partition, kept.path
        )

    async def remove(self, partition: Partition) -> None:
        """A sound copy is in sync, or the partition is gone. Raises OSError: then they are still there."""
        kept = self._kept.get(_name(partition), [])
        done = [one for one in kept if partition.is_deleted or one.committed_end <= partition.log.log_end_offset]

        def remove() -> None:
            for one in done:
                self._disk.remove_directory(one.path)

        if done:
            await self._workers.run(remove)
            left = [one for one in self._kept.get(_name(partition), []) if one not in done]
            self._kept[_name(partition)] = left
            if not left:
                del self._kept[_name(partition)]
            log.info("%r: %s removed: a sound copy is in sync", partition, ", ".join(one.path for one in done))

    def _path(self, name: str) -> str:
        unique = f".{self._entropy.random_bytes(16).hex()}{SUFFIX}"
        return f"{self._directory}/{name[: MAX_FILE_NAME - len(unique) - len('.tmp')]}{unique}"


def _name(partition: Partition) -> str:
    return f"{partition.topic}-{partition.index}"
