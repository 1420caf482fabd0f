"""The oldest segments of a log on their way out: the log starts after them at once, their files follow in a worker.

    begin    `Log.begin_deletion`, on the loop: the segments are no longer the log's. It is read, appended to, flushed
             and checkpointed as ever
    run      in a worker: a stable snapshot knows what their batches said of producers, then they are renamed, oldest
             first, each for good before the next
    end      `Log.end_deletion`, on the loop: what could not be renamed is the log's again

Each for good: recovery takes a hole among segments that it scans for the end of the log. In a log with gaps it does not
see one at all, and with an old segment keys would come back whose deletion is gone. The last one is gone for good with
the next flush, or before the next ones go.

Must not know: why they go. Invariant: nothing that the loop may change meanwhile is touched here.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ports.disk import Disk
from penstock.storage.checkpoint_builder import ProducersBefore
from penstock.storage.cleaner.swap import Swap
from penstock.storage.segments import Doomed


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
        """`swap`: one under way, to be cancelled."""
        self._disk = disk
        self._directory = directory
        self._producers = producers
        self._swap = swap
        self.is_secured = False
        self.doomed = doomed
        self.aside: list[str] = []  # files that were renamed
        self.gone = 0  # of the doomed, counted from the oldest
        self.failure: Exception | None = None

    def run(self) -> None:
        """Blocks; may run in a thread. `Log.end_deletion` raises what went wrong."""
        try:
            self._delete()
        except Exception as error:  # the log must hear how far it came, whatever it is
            self.failure = error

    def _delete(self) -> None:
        if self._swap is not None:
            self._swap.cancel()
        self._producers.make_stable()
        self.is_secured = True
        # The segment after them is there to stay, and those of an earlier deletion are gone for good.
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
