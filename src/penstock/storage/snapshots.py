"""The `.snapshot` files of one log: which there are, taking one, dropping those no longer needed.

Kept are those at the base of a segment (truncation and recovery start from them) and the two newest: the newest may
lie beyond the end of the log after a crash, the one before it does not. Where there was one there is always one: none
at all tells recovery that there was no producer before the segment of the recovery point.

One that nobody needs at once waits for the next checkpoint, which encodes and writes it in a worker. Those that wait do
not count as files: a crash loses them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from penstock.ports.disk import Disk
from penstock.storage.files import SNAPSHOT, file_path, read_whole, write_again, write_atomic, write_whole
from penstock.storage.producer_state import FrozenProducers, ProducerStates

_MAX_WAITING = 4  # each keeps producers of its moment in memory


class WaitingSnapshot(NamedTuple):
    """The state before `offset`, to be written as `path`."""

    offset: int
    path: str
    producers: FrozenProducers


class Snapshots:
    __slots__ = ("_directory", "_disk", "_doubtful", "_torn", "_waiting", "offsets", "stable_paths")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = offsets  # rising, also of those that wait
        self._waiting: dict[int, WaitingSnapshot] = {}
        self._torn: set[int] = set()  # of the offsets
        self.stable_paths: set[str] = set()  # of those known to be synced
        self._doubtful: set[str] = set()  # whose last sync failed

    def path(self, offset: int) -> str:
        return file_path(self._directory, offset, SNAPSHOT)

    def take(self, producers: ProducerStates, offset: int) -> str:
        """Write the state before `offset`, not synced (a torn one shows by its checksum); its path. Blocks."""
        path = self.path(offset)
        frozen = producers.freeze()
        if offset in self.offsets:
            # The batches that it stands for may be deleted: it is replaced whole, or it stays.
            self._replace(WaitingSnapshot(offset, path, frozen))
            return path
        write_whole(self._disk, path, frozen.encode(), sync=False)
        self._add(offset)
        frozen.is_kept()
        return path

    def take_later(self, producers: ProducerStates, offset: int) -> list[str]:
        """At the next checkpoint. Its path if it was written here and now, as too many wait already."""
        if len(self._waiting) >= _MAX_WAITING and offset not in self._waiting:
            return [self.take(producers, offset)]
        self._waiting[offset] = WaitingSnapshot(offset, self.path(offset), producers.freeze())
        self._add(offset)
        self._torn.discard(offset)
        return []

    @property
    def waiting(self) -> list[WaitingSnapshot]:
        return list(self._waiting.values())

    def were_written(self, snapshots: Iterable[WaitingSnapshot]) -> None:
        """They are stable, and so are their names. Raises OSError."""
        for snapshot in snapshots:
            if self._waiting.get(snapshot.offset) is snapshot:
                self._is_stable(snapshot)
            elif snapshot.offset not in self.offsets:  # the log was cut meanwhile
                with suppress(FileNotFoundError):
                    self._disk.remove(snapshot.path)

    def _replace(self, snapshot: WaitingSnapshot) -> None:
        write_atomic(self._disk, snapshot.path, snapshot.producers.encode())
        self._is_stable(snapshot)

    def _is_stable(self, snapshot: WaitingSnapshot) -> None:
        self._waiting.pop(snapshot.offset, None)
        self._torn.discard(snapshot.offset)
        self._doubtful.discard(snapshot.path)
        self.stable_paths.add(snapshot.path)
        snapshot.producers.is_kept()

    def _add(self, offset: int) -> None:
        if offset not in self.offsets:
            self.offsets.append(offset)
            self.offsets.sort()

    def load_newest(self, end_offset: int) -> tuple[int, ProducerStates] | None:
        """The newest sound snapshot at `end_offset` or before: (its offset, the state)."""
        for offset in reversed(self.offsets):
            if offset <= end_offset and offset not in self._torn:
                waiting = self._waiting.get(offset)
                data = waiting.producers.encode() if waiting else read_whole(self._disk, self.path(offset))
                states = ProducerStates.decode_snapshot(data) if data is not None else None
                if states is not None:
                    return offset, states
                self._torn.add(offset)
        return None

    def copy_of_files(self) -> Snapshots:
        """For a worker, which may take one more and make it stable: then `is_there`."""
        copy = Snapshots(self._disk, self._directory, self._files)
        copy._torn |= self._torn
        copy._doubtful |= self._doubtful
        return copy

    def doubt(self, worker: Snapshots) -> None:
        """Whatever its last sync failed of: to sync that again would not make it stable."""
        self._doubtful |= worker._doubtful

    def waiting_at(self, offset: int) -> WaitingSnapshot | None:
        return self._waiting.get(offset)

    def is_there(self, offset: int, waited: WaitingSnapshot | None) -> None:
        """A worker has made it stable; `waited`: from what it was written."""
        self._add(offset)
        if waited is not None and self._waiting.get(offset) is waited:
            self._is_stable(waited)
        else:
            self._torn.discard(offset)
            self._doubtful.discard(self.path(offset))
            self.stable_paths.add(self.path(offset))

    def make_stable(self, offset: int) -> None:
        """Blocks."""
        waiting = self._waiting.get(offset)
        if waiting is not None:
            self._replace(waiting)
            return
        self.sync_file(self.path(offset))
        self._disk.sync_directory(self._directory)
        self.stable_paths.add(self.path(offset))

    def sync_file(self, path: str) -> None:
        """Blocks. Also of another small file of this log, as it lies in the page cache.

        After a sync that failed the kernel takes the pages for clean, and the next one would do nothing: then the
        bytes are written once more.
        """
        file = self._disk.open(path)
        try:
            if path in self._doubtful:
                write_again(file, 0, file.size())
            file.sync()
        except OSError:
            self._doubtful.add(path)
            raise
        finally:
            file.close()
        self._doubtful.discard(path)

    def are_stable(self, paths: Iterable[str]) -> None:
        """These were synced, and so were their names. Those dropped meanwhile are of no interest."""
        self.stable_paths.update({self.path(offset) for offset in list(self.offsets)}.intersection(paths))

    def drop_useless(self, producers: ProducerStates, end_offset: int) -> None:
        """Drop the torn ones and those beyond the end; if none is left, first take one of the state at the end.

        For good: one that came back after other batches took those offsets would be believed. Blocks, if any.
        """
        useless = [offset for offset in self.offsets if offset > end_offset or offset in self._torn]
        if not useless:
            return
        if not set(self._files).difference(useless):
            self.take(producers, end_offset)
            self.make_stable(end_offset)
        self._drop([offset for offset in useless if offset != end_offset])
        self._disk.sync_directory(self._directory)

    def needless_before(self, start_offset: int) -> list[int]:
        """Offsets of the files that are not needed any more if the log starts there."""
        return [offset for offset in self._files[:-2] if offset < start_offset]

    def were_removed(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if offset in self.offsets:
                self._forget(offset)

    def drop_strays(self, segment_bases: Collection[int]) -> None:
        self._drop([offset for offset in self._files[:-2] if offset not in segment_bases])

    def drop_all(self) -> None:
        self._drop(list(self.offsets))

    @property
    def _files(self) -> list[int]:
        return [offset for offset in self.offsets if offset not in self._waiting]

    def _drop(self, offsets: list[int]) -> None:
        for offset in offsets:
            # It waits, unless a checkpoint that failed has come this far; or a deletion has removed it just now.
            with suppress(FileNotFoundError):
                self._disk.remove(self.path(offset))
            self._forget(offset)

    def _forget(self, offset: int) -> None:
        path = self.path(offset)
        self._waiting.pop(offset, None)
        self.offsets.remove(offset)
        self._torn.discard(offset)
        self.stable_paths.discard(path)
        self._doubtful.discard(path)
