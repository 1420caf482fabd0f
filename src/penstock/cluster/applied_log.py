"""The state machine behind a Raft log: which entries are applied, and when a snapshot is due.

Entries are applied in order and once; a snapshot replaces everything. A snapshot is due when the bytes applied since
the last one exceed the setting and the size of the last one, because writing one costs as much as its size. It is taken
in steps, so that the loop is not blocked; entries may be applied in between. Must not know: disks, messages, roles, the
meaning of entries.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from penstock.core.raft.exchange import SnapshotReady
from penstock.core.raft.messages import Entry, EntryKind, Snapshot


class StateMachine(Protocol):
    def apply(self, index: int, data: bytes) -> None: ...

    def restore(self, index: int, data: bytes) -> None: ...

    def snapshot(self) -> Generator[None, None, bytes]:
        """The state at the time of the call, whatever is applied between the steps."""
        ...


class AppliedLog:
    def __init__(self, machine: StateMachine, snapshot_every_bytes: int) -> None:
        self._machine = machine
        self._snapshot_every_bytes = snapshot_every_bytes
        self.snapshot_bytes = 0
        self.snapshots_taken = 0
        self._bytes_since = 0
        self._is_being_stored = False
        self._taking: Generator[None, None, bytes] | None = None
        self._taking_index = 0
        self.index = 0

    def restore(self, snapshot: Snapshot) -> None:
        self._machine.restore(snapshot.index, snapshot.data)
        self.index = snapshot.index
        self.snapshot_bytes = len(snapshot.data)
        self._bytes_since = 0

    def apply(self, entry: Entry) -> None:
        if entry.kind is EntryKind.DATA:
            self._machine.apply(entry.index, entry.data)
        self.index = entry.index
        self._bytes_since += entry.size_bytes

    def begin_snapshot_if_due(self) -> bool:
        """Whether a snapshot was begun: then call `go_on_with_snapshot`."""
        due = max(self._snapshot_every_bytes, self.snapshot_bytes)
        if self._bytes_since < due or self._is_being_stored or self._taking is not None:
            return False
        self._bytes_since = 0
        self._taking, self._taking_index = self._machine.snapshot(), self.index
        return True

    def go_on_with_snapshot(self) -> SnapshotReady | None:
        """Take one step. None: more steps follow."""
        assert self._taking is not None
        try:
            next(self._taking)
        except StopIteration as done:
            self._taking = None
            self.snapshots_taken += 1
            return SnapshotReady(self._taking_index, done.value)
        return None

    def begin_storing(self, snapshot: Snapshot) -> None:
        self._is_being_stored = True
        self.snapshot_bytes = len(snapshot.data)

    def end_storing(self) -> None:
        self._is_being_stored = False
