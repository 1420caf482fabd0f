"""A change becomes a version: its actions are decided in view of the newest state, and decided again if another writer
was faster.

Invariant: the state that a change was decided in is the one before its version. A writer that stood still for long may
find its next version free because old entries were deleted, so the entry of its own version must still be there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock import __version__
from penstock.tables.actions import Action, AddFile, CommitInfo, RemoveFile, Transaction, line_of
from penstock.tables.errors import CommitConflict, file_errors
from penstock.tables.log import TableLog
from penstock.tables.positions import Span
from penstock.tables.state import TableState, check_writable, read_state

logger = logging.getLogger(__name__)

ATTEMPTS = 100
"""Each failed one is a commit of somebody else."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does. `operation` is Delta's word for it."""

    operation: str
    parameters: Mapping[str, Any]
    actions: Sequence[Action]
    positions: Mapping[str, Span] = field(default_factory=dict)
    is_blind_append: bool = False


Decide = Callable[[TableState], Change | None]
"""Decides in view of a state. None: there is nothing to do. It may raise."""


class Committer:
    """The state of a table, as far as it is known, and the way to change it."""

    def __init__(self, log: TableLog, state: TableState) -> None:
        self.log = log
        self.state = state

    def refresh(self) -> None:
        """Takes in what others have committed."""
        for version, lines in self.log.since(self.state.version):
            self.state.replay(version, lines)
        if self.log.last_checkpoint() > self.state.version:  # entries in between are gone
            self.state = read_state(self.log)

    def commit(self, decide: Decide) -> bool:
        """False if there was nothing to do. Raises CommitConflict, TableFailed, and what `decide` raises."""
        for _ in range(ATTEMPTS):
            check_writable(self.state, self.log.table)
            change = decide(self.state)
            if change is None:
                return False
            if self._is_at_the_end() and self.put(change):
                return True
            self.refresh()
        raise CommitConflict(f"{self.log.table}: other writers were faster {ATTEMPTS} times in a row")

    def put(self, change: Change) -> bool:
        """Makes the next version. False if another writer has made it."""
        version = self.state.version + 1
        lines = [line_of(action) for action in self._actions(change)]
        with file_errors(self.log.directory, "commit to"):
            if not self.log.put(version, lines):
                return False
        self.state.replay(version, lines)
        return True

    def _is_at_the_end(self) -> bool:
        version = self.state.version
        return version < 0 or self.log.entry(version).exists() or self.log.last_checkpoint() == version

    def _actions(self, change: Change) -> list[Action]:
        now_ms = max(round(time.time() * 1000), self.state.timestamp_ms)
        moved = {
            stream: span for stream, span in change.positions.items() if self.state.positions.get(stream) != span.end
        }
        return [
            CommitInfo(
                timestamp=now_ms,
                operation=change.operation,
                operation_parameters=dict(change.parameters),
                operation_metrics=_metrics(change.actions),
                engine_info=f"penstock/{__version__}",
                is_blind_append=change.is_blind_append,
                positions={stream: (span.start, span.end) for stream, span in moved.items()} or None,
            ),
            *change.actions,
            *(Transaction(stream, span.end, now_ms) for stream, span in moved.items()),
        ]


def _metrics(actions: Sequence[Action]) -> dict[str, str]:
    added = [one for one in actions if isinstance(one, AddFile)]
    removed = sum(isinstance(one, RemoveFile) for one in actions)
    return {
        "numFiles": str(len(added)),
        "numOutputBytes": str(sum(one.size for one in added)),
        "numRemovedFiles": str(removed),
    }
