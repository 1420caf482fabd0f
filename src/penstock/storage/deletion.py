"""Deleting the oldest segments: the log starts after them at once, their files follow in a worker.

    begin    `Log.begin_deletion`, on the loop: the segments no longer belong to the log, which is read, appended to,
             flushed and checkpointed as usual
    run      in a worker: a stable snapshot takes over the producer state of their batches; then they are renamed,
             oldest first, each permanently before the next
    end      `Log.end_deletion`, on the loop: segments that could not be renamed belong to the log again

Each rename is permanent before the next, because recovery takes a hole among scanned segments for the end of the log.
In a log with gaps recovery sees no hole, and an old segment would bring back keys whose tombstone is gone. The last
rename becomes permanent with the next flush, or before the next deletion.
Must not know: why segments are deleted. Invariant: nothing that the loop may change meanwhile is touched here.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ports.disk import Disk
from penstock.storage.checkpoint_builder import ProducersBefore
from penstock.storage.cleaner.swap import Swap
from penstock.storage.segments.segments import Doomed


class Deletion:
    __slots__ = ("_directory", "_disk", "_producers", "_swap", "aside", "doomed", "failure", "gone", "is_secured")

    def __init__(
        self,
        disk: Disk,
        directory: str,
        doomed: Sequence[Doomed],
        swap: Swap | None,
        producers: ProducersBefore,
    ) -> None:
        """`swap`: a compaction in progress, to be cancelled."""
        self._disk = disk
        self._directory = directory
        self._producers = producers
        self._swap = swap
        self.is_secured = False
        self.doomed = doomed
        self.aside: list[str] = []  # renamed files
        self.gone = 0  # number of deleted segments, from the oldest
        self.failure: Exception | None = None

    def run(self) -> None:
        """Blocks; may run in a thread. `Log.end_deletion` raises the error, if any."""
        try:
            self._delete()
        except Exception as error:  # the log must learn the progress, whatever the error
            self.failure = error

    def _delete(self) -> None:
        if self._swap is not None:
            self._swap.cancel()
        self._producers.make_stable()
        self.is_secured = True
        # This makes the following segment, and the renames of an earlier deletion, permanent.
        self._disk.sync_directory(self._directory)
        for number, one in enumerate(self.doomed):
            if number:
                self._disk.sync_directory(self._directory)
            log, *indexes = one.names
            self._set_aside(*log)
            self.gone += 1
            for name, aside in indexes:
                self._set_aside(name, aside)
        self._producers.remove_needless()

    def end_snapshots(self) -> None:
        """On the loop."""
        self._producers.end(is_stable=self.is_secured, are_removed=self.failure is None)

    def _set_aside(self, name: str, aside: str) -> None:
        if self._disk.exists(name):
            self._disk.rename(name, aside)
            self.aside.append(aside)
