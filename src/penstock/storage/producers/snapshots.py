"""The `.snapshot` files of one log: which exist, taking one, dropping those no longer needed.

Snapshots at the base of a segment are kept (truncation and recovery start from them), and the two newest: after a
crash the newest may be beyond the end of the log, the one before is not. If the log ever had a snapshot it always has
one: none at all tells recovery that there was no producer before the segment of the recovery point.
A snapshot that is not needed at once waits for the next checkpoint, which encodes and writes it in a worker. Waiting
snapshots do not count as files: a crash loses them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from penstock.ports.disk import Disk
from penstock.storage.files import SNAPSHOT, file_path, read_whole, write_again, write_atomic, write_whole
from penstock.storage.producers.producer_state import FrozenProducers, ProducerStates

_MAX_WAITING = 4  # each keeps a copy of producers in memory


class WaitingSnapshot(NamedTuple):
    """The state before `offset`, to be written to `path`."""

    offset: int
    path: str
    producers: FrozenProducers


class Snapshots:
    __slots__ = ("_directory", "_disk", "_doubtful", "_torn", "_waiting", "offsets", "stable_paths")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = offsets  # ascending, including waiting ones
        self._waiting: dict[int, WaitingSnapshot] = {}
        self._torn: set[int] = set()  # offsets of torn ones
        self.stable_paths: set[str] = set()  # known to be synced
        self._doubtful: set[str] = set()  # paths whose last sync failed

    def path(self, offset: int) -> str:
        return file_path(self._directory, offset, SNAPSHOT)

    def take(self, producers: ProducerStates, offset: int) -> str:
        """Write the state before `offset`, not synced (its checksum reveals a torn one); return its path. Blocks."""
        path = self.path(offset)
        frozen = producers.freeze()
        if offset in self.offsets:
            # The batches that it covers may be deleted, so it is replaced atomically or stays.
            self._replace(WaitingSnapshot(offset, path, frozen))
            return path
        write_whole(self._disk, path, frozen.encode(), sync=False)
        self._add(offset)
        frozen.is_kept()
        return path

    def take_later(self, producers: ProducerStates, offset: int) -> list[str]:
        """Take a snapshot at the next checkpoint. Return its path if too many wait and it was written at once."""
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
        """These snapshots and their names are stable. Raises OSError."""
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

    def load_newest(self, end_offset: int, start_offset: int = 0) -> tuple[int, ProducerStates] | None:
        """The newest intact snapshot from `start_offset` to `end_offset`: (its offset, the state)."""
        return self._load_first(offset for offset in reversed(self.offsets) if start_offset <= offset <= end_offset)

    def load_oldest(self, start_offset: int) -> tuple[int, ProducerStates] | None:
        """The oldest intact snapshot at `start_offset` or after: (its offset, the state)."""
        return self._load_first(offset for offset in self.offsets if offset >= start_offset)

    def _load_first(self, offsets: Iterable[int]) -> tuple[int, ProducerStates] | None:
        """The first of them that is intact."""
        for offset in offsets:
            if offset not in self._torn:
                waiting = self._waiting.get(offset)
                data = waiting.producers.encode() if waiting else read_whole(self._disk, self.path(offset))
                states = ProducerStates.decode_snapshot(data) if data is not None else None
                if states is not None:
                    return offset, states
                self._torn.add(offset)
        return None

    def copy_of_files(self) -> Snapshots:
        """A copy for a worker, which may take one more and make it stable: then `is_there`."""
        copy = Snapshots(self._disk, self._directory, self._files)
        copy._torn |= self._torn
        copy._doubtful |= self._doubtful
        return copy

    def doubt(self, worker: Snapshots) -> None:
        """Take over the failed syncs of the worker: syncing those files again would not make them stable."""
        self._doubtful |= worker._doubtful

    def waiting_at(self, offset: int) -> WaitingSnapshot | None:
        return self._waiting.get(offset)

    def is_there(self, offset: int, waited: WaitingSnapshot | None) -> None:
        """A worker has made it stable; `waited`: the snapshot from which it was written."""
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
        """Blocks. Also for another small file of this log, as it is in the page cache.

        After a failed sync the kernel considers the pages clean, and the next sync would do nothing: so the
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
        """These paths and their names were synced. Dropped ones are ignored."""
        self.stable_paths.update({self.path(offset) for offset in list(self.offsets)}.intersection(paths))

    def drop_useless(self, producers: ProducerStates, end_offset: int) -> None:
        """Drop torn snapshots and those beyond the end; if none would be left, first take one at the end. Permanent:
        otherwise a dropped one could come back after other batches took its offsets, and would be trusted. Blocks if
        there are any.
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
        """Offsets of the files that are not needed if the log starts there."""
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
            # It may only be waiting, or a deletion may have just removed it.
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
