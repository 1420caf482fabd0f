"""Replaces old segments with a rewritten one, safely under a crash at any point.

    1  the rewriting process   writes X.log.cleaned and its indexes, stable under these names
    2  `Swap.commit`           renames them to .swap and makes the names stable: from here on the swap happens
    3  `Log.end_swap`          renames old segments to .deleted and .swap files to their final names; memory follows
    4  later                   the directory is synced, before this log is cleaned again

After a crash, `settle_swaps` runs when the log is opened. A `.cleaned` file means that step 2 was not completed: all of
that segment's new files are removed. Otherwise `.swap` files get their final names; an index that may belong to the
other content is removed and rebuilt. A transaction index is never missing and never belongs to the other content: if
one of the old segments had one, the new segment has one too, perhaps empty. Old segments that outlived step 3 begin
before the new one ends, because a rewritten segment keeps its last batch. Recovery recognises them by that, and drops
them (`RecoveredLog`).

Code that truncates or deletes segments meanwhile cancels the swap first: see `Swap.cancel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from penstock.model.errors import StorageError
from penstock.ports.disk import Disk
from penstock.storage.files import CLEANED, INDEX, LOG, SEGMENT_SUFFIXES, SWAP, TIME_INDEX, TRANSACTION_INDEX, file_path


class Swap:
    """One rewritten segment to be swapped in. `commit` runs in a thread, the rest with the log."""

    __slots__ = ("_directory", "_disk", "_is_cancelled", "_lock", "base_offset", "bases", "size")

    def __init__(self, disk: Disk, directory: str, bases: Sequence[int], size: int) -> None:
        self._disk = disk
        self._directory = directory
        self.bases = list(bases)
        self.base_offset = self.bases[0]
        self.size = size
        self._lock = disk.new_lock()
        self._is_cancelled = False

    def commit(self) -> None:
        """Blocks; may run in a thread. Does nothing if cancelled."""
        with self._lock:
            if self._is_cancelled:
                return
            disk, path = self._disk, file_path(self._directory, self.base_offset, LOG)
            file = disk.open(path + CLEANED)
            try:
                if file.size() != self.size:
                    raise StorageError(f"{path}{CLEANED} has {file.size()} bytes, not {self.size}")
            finally:
                file.close()
            for suffix in SEGMENT_SUFFIXES:
                path = file_path(self._directory, self.base_offset, suffix)
                if suffix != TRANSACTION_INDEX or disk.exists(path + CLEANED):
                    disk.rename(path + CLEANED, path + SWAP)
            disk.sync_directory(self._directory)

    def cancel(self) -> None:
        """The swap must not happen, not even after a crash. Blocks briefly."""
        with self._lock:
            self._is_cancelled = True
            remove_rewritten(self._disk, self._directory, self.base_offset)
            self._disk.sync_directory(self._directory)


def remove_rewritten(disk: Disk, directory: str, base_offset: int) -> None:
    """`.swap` first: the swap is not valid while a `.cleaned` file exists."""
    for ending in (SWAP, CLEANED):
        for suffix in SEGMENT_SUFFIXES:
            path = file_path(directory, base_offset, suffix) + ending
            with suppress(FileNotFoundError):
                disk.remove(path)


def remove_unfinished(disk: Disk, directory: str) -> None:
    """Remove segments that a failed cleaning did not hand over. May run in a thread."""
    for name in disk.list_directory(directory):
        if name.endswith(CLEANED):
            with suppress(FileNotFoundError):  # a cancelled swap removes its own
                disk.remove(f"{directory}/{name}")


def settle_swaps(disk: Disk, directory: str, names: list[str]) -> list[int]:
    """Complete or undo interrupted swaps; return the bases of the new segments. Permanent on return."""
    cleaned = {name.partition(".")[0] for name in names if name.endswith(CLEANED)}
    swapped = {name.partition(".")[0] for name in names if name.endswith(SWAP)}
    completed: list[int] = []
    for stem in sorted(cleaned | swapped):
        if not stem.isdigit():
            continue
        base_offset = int(stem)
        if stem in cleaned:
            remove_rewritten(disk, directory, base_offset)
            continue
        path = file_path(directory, base_offset, LOG)
        has_log = disk.exists(path + SWAP)
        for suffix in (INDEX, TIME_INDEX):
            _settle_index(disk, file_path(directory, base_offset, suffix), is_wanted=has_log)
        aborted = file_path(directory, base_offset, TRANSACTION_INDEX)
        if disk.exists(aborted + SWAP):
            disk.rename(aborted + SWAP, aborted)
        if has_log:
            disk.rename(path + SWAP, path)
        completed.append(base_offset)
    if cleaned or swapped:
        disk.sync_directory(directory)
    return completed


def _settle_index(disk: Disk, path: str, *, is_wanted: bool) -> None:
    if is_wanted and disk.exists(path + SWAP):
        disk.rename(path + SWAP, path)
        return
    for stale in (path + SWAP, path):
        if disk.exists(stale):
            disk.remove(stale)
