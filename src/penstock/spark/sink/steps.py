"""The steps of an exactly-once batch at which a process may die: `docs/internals/spark.md` describes them.

Crash tests name a step by a file in the directory of PENSTOCK_SINK_CRASHES. The first process that reaches the step
renames the file to `<step>.reached`, and sends SIGKILL to the processes that it lists: ids, and `self` for the process
itself. An empty file means `self`. Without that variable `reach` does nothing.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

VARIABLE = "PENSTOCK_SINK_CRASHES"
REACHED = ".reached"
SELF = "self"


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
    if directory is not None:
        _reach(Path(directory, step))


def _reach(named: Path) -> None:
    reached = named.with_name(named.name + REACHED)
    try:
        named.rename(reached)
    except FileNotFoundError:
        return
    victims = reached.read_text().split() or [SELF]
    for victim in victims:
        if victim != SELF:
            with suppress(ProcessLookupError):
                os.kill(int(victim), signal.SIGKILL)
    if SELF in victims:
        os.kill(os.getpid(), signal.SIGKILL)
