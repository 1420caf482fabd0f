"""The steps of an exactly-once batch at which a process may die: `docs/internals/spark.md` describes them.

Crash tests name a step by a file in the directory of PENSTOCK_SINK_CRASHES. The first process that reaches the step
removes the file and kills itself, as kill -9 would. Without that variable `reach` does nothing.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from pathlib import Path

VARIABLE = "PENSTOCK_SINK_CRASHES"


class Step(StrEnum):
    # -- a task ---------------------------------------------------------------------------
    TASK_BEGUN = "task-begun"
    """The task has a transaction and has written nothing."""
    TASK_WRITING = "task-writing"
    """The first batch is on its way."""
    TASK_FLUSHED = "task-flushed"
    """All rows are acknowledged. The driver does not know yet."""
    # -- the driver: commit ---------------------------------------------------------------
    COMMIT_CALLED = "commit-called"
    TAKEN_OVER = "taken-over"
    """Other drivers of the query are fenced."""
    CHECKED = "checked"
    """All transactions of the batch are open."""
    DECISION_WRITTEN = "decision-written"
    """The decision is in the log, in an open transaction."""
    MARKER_WRITTEN = "marker-written"
    """So is the marker. The decision does not count yet."""
    DECIDED = "decided"
    """The decision counts. No transaction of the batch is committed."""
    ENDED_ONE = "ended-one"
    """At least one transaction of the batch is committed."""
    FINISHED = "finished"
    """All are committed."""
    SWEPT = "swept"
    """Transactions that no decision names are aborted. Spark does not know yet."""
    # -- the driver: abort ----------------------------------------------------------------
    ABORT_CALLED = "abort-called"
    ABORTED = "aborted"


def reach(step: Step) -> None:
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    try:
        Path(directory, step).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
