"""A log that is cut: what it says changes at once, its files follow in a worker.

    begin    `Log.begin_cut`, on the loop: the log ends at the cut. Nobody reads it, appends to it, flushes it or writes
             a checkpoint of it until the end
    run      in a worker: segments are dropped from the end, a sync each, the last one is truncated, producers are
             replayed. The log's segments belong to the worker meanwhile
    end      `Log.end_cut`, on the loop: the log may be used again, or is offline because a step failed. One that
             begins inside a batch has the batch by then

A step that found no file descriptor has changed nothing. The cut is put off (`Cut.put_off_by`): `run` goes on with it
when it is called again, and the log is nobody else's until then.

Where compaction left a gap before the cut, the log ends where its last batch does, as recovery would find it: the
worker has looked, and says so.

Must not know: what is cut, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.storage.durability import is_passing
from penstock.storage.producer_state import ProducerStates


class Remainder(NamedTuple):
    """Of a log that was cut."""

    producers: ProducerStates  # before its end
    end_offset: int
    is_anew: bool  # it has no batch


class Cut:
    __slots__ = ("_files", "_is_begun", "append_first", "end_offset", "failure", "remainder")

    def __init__(self, end_offset: int, files: Callable[[bool], Remainder]) -> None:
        """`files` makes the files what the log says already, `end_offset` being its end or a little beyond. It is told
        whether it was put off before."""
        self._files = files
        self._is_begun = False
        self.end_offset = end_offset
        self.remainder: Remainder | None = None
        self.failure: Exception | None = None
        self.append_first: Callable[[], None] | None = None
        """What the log holds when it may be used again. Part of the end, on the loop."""

    @property
    def put_off_by(self) -> OSError | None:
        """No descriptor was left: `run` has to be called again, later. None: the cut is not put off."""
        failure = self.failure
        cause = failure if isinstance(failure, OSError) or failure is None else failure.__cause__
        return cause if isinstance(cause, OSError) and is_passing(cause) else None

    def run(self) -> None:
        """Blocks; may run in a thread. `Log.end_cut` raises what went wrong."""
        is_again, self._is_begun = self._is_begun, True
        self.failure = None
        try:
            self.remainder = self._files(is_again)
        except Exception as error:  # the log must not be used afterwards, whatever it is
            self.failure = error
