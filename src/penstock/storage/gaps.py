"""Marks whether a log has missing offsets. They belong to the log, whatever the current `cleanup.policy`.

    offsets.contiguous   no gap since the log was empty: a gap that a reader meets is damage
    offsets.gaps         compaction, here or on a leader, left gaps
    neither              unknown (an earlier version, or Kafka): gaps count as left by compaction

The files are empty; only the names count. A name becomes stable with the directory: in the flush that makes the batch
after a gap stable, and before compaction replaces a segment. Recovery scans what a crash leaves beyond that.
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
        """Read the marks from the directory. A crash may leave both; then there are gaps."""
        self.are_known = GAPS in names
        self.is_contiguous = CONTIGUOUS in names and not self.are_known

    def begin(self) -> None:
        """The log is empty and its directory exists. Raises OSError."""
        if self.is_contiguous:
            return
        old, new = f"{self._directory}/{GAPS}", f"{self._directory}/{CONTIGUOUS}"
        if self._disk.exists(old):
            self._disk.rename(old, new)
        else:
            self._disk.open(new, create=True).close()
        self.is_contiguous, self.are_known = True, False

    def found(self) -> bool:
        """Note that there is or will be a gap. Return True if names in the directory changed. Raises OSError."""
        if self.are_known:
            return False
        old, new = f"{self._directory}/{CONTIGUOUS}", f"{self._directory}/{GAPS}"
        if self._disk.exists(old):
            self._disk.rename(old, new)
        else:
            self._disk.open(new, create=True).close()
        self.is_contiguous, self.are_known = False, True
        return True
