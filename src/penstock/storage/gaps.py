"""Whether a log has offsets that no batch holds. It belongs to the log, whatever `cleanup.policy` says today.

    offsets.contiguous   there never was a gap since the log was empty: one that a reader meets is damage
    offsets.gaps         compaction here or at a leader left some
    neither              not known (of an earlier version, or of Kafka): gaps are taken for what compaction left

Empty files, of which the name alone counts: it becomes stable with the directory, so with the flush that makes the
batch after a gap stable, and before compaction replaces a segment. What a crash leaves beyond that, recovery scans.
"""

from __future__ import annotations

from collections.abc import Container

from penstock.ports.disk import Disk

CONTIGUOUS = "offsets.contiguous"
GAPS = "offsets.gaps"


class OffsetGaps:
    __slots__ = ("_directory", "_disk", "are_known", "is_contiguous")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.is_contiguous = False
        self.are_known = False

    def read(self, names: Container[str]) -> None:
        """What the files of the directory say. A crash between a mark and the next may leave both: then gaps."""
        self.are_known = GAPS in names
        self.is_contiguous = CONTIGUOUS in names and not self.are_known

    def begin(self) -> None:
        """The log is empty, and its directory is there. Raises OSError."""
        if self.is_contiguous:
            return
        old, new = f"{self._directory}/{GAPS}", f"{self._directory}/{CONTIGUOUS}"
        if self._disk.exists(old):
            self._disk.rename(old, new)
        else:
            self._disk.open(new, create=True).close()
        self.is_contiguous, self.are_known = True, False

    def found(self) -> bool:
        """There is a gap, or will be. True: the names in the directory have changed. Raises OSError."""
        if self.are_known:
            return False
        old, new = f"{self._directory}/{CONTIGUOUS}", f"{self._directory}/{GAPS}"
        if self._disk.exists(old):
            self._disk.rename(old, new)
        else:
            self._disk.open(new, create=True).close()
        self.is_contiguous, self.are_known = False, True
        return True
