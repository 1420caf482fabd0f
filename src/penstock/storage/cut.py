"""Cutting a log: the log's state changes at once, its files follow in a worker.

    begin    `Log.begin_cut`, on the loop: the log ends at the cut. Until the end of the cut it is not read, appended
             to, flushed or checkpointed
    run      in a worker: segments are dropped from the end, each with a sync, the last one is truncated, producers
             are replayed. The log's segments belong to the worker meanwhile
    end      `Log.end_cut`, on the loop: the log is usable again, or offline because a step failed. A log that begins
             inside a batch has that batch by then

A step without a free file descriptor changes nothing and postpones the cut (`Cut.put_off_by`). `run` continues when it
is called again; until then the log stays reserved for the cut. If compaction left a gap before the cut, the log ends
where its last batch ends, as recovery would find it: the worker checks and reports that. Must not know: what is cut,
and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.storage.durability import is_passing
from penstock.storage.producers.producer_state import ProducerStates


class Remainder(NamedTuple):
    """The log after the cut."""

    producers: ProducerStates  # state before its end
    end_offset: int
    is_anew: bool  # the log has no batch


class Cut:
    __slots__ = ("_files", "_is_begun", "append_first", "end_offset", "failure", "remainder")

    def __init__(self, end_offset: int, files: Callable[[bool], Remainder]) -> None:
        """`files` makes the files match the log, whose end is `end_offset` or a little less. Its argument says whether
        the cut was postponed before."""
        self._files = files
        self._is_begun = False
        self.end_offset = end_offset
        self.remainder: Remainder | None = None
        self.failure: Exception | None = None
        self.append_first: Callable[[], None] | None = None
        """Restores what the log must hold before it is usable again. Part of the end, on the loop."""

    @property
    def put_off_by(self) -> OSError | None:
        """The error if no descriptor was free: call `run` again later. None: the cut is not postponed."""
        failure = self.failure
        cause = failure if isinstance(failure, OSError) or failure is None else failure.__cause__
        return cause if isinstance(cause, OSError) and is_passing(cause) else None

    def run(self) -> None:
        """Blocks; may run in a thread. `Log.end_cut` raises the error, if any."""
        is_again, self._is_begun = self._is_begun, True
        self.failure = None
        try:
            self.remainder = self._files(is_again)
        except Exception as error:  # any error must keep the log from being used
            self.failure = error
