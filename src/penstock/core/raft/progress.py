"""What a leader knows of one follower, and how much it may send to it.

    PROBE      where the logs agree is not known: one append at a time, until answered or a heartbeat is due
    REPLICATE  known: appends follow each other, `next_index` runs ahead, in flight at most so many messages and bytes
    SNAPSHOT   what it needs is compacted: chunks of a snapshot, one at a time

Invariant: `match_index < next_index`; everything up to `match_index` is stable at a follower that still has its disk.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from penstock.core.raft.configuration import NodeId
from penstock.core.raft.messages import Entry, Snapshot
from penstock.core.raft.settings import Settings


class Pace(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    __slots__ = (
        "_inflight",
        "_inflight_bytes",
        "_settings",
        "caught_up_ms",
        "commit_sent",
        "heard_ms",
        "is_waiting",
        "match_index",
        "next_index",
        "pace",
        "peer",
        "snapshot",
        "snapshot_offset",
    )

    def __init__(self, peer: NodeId, settings: Settings, next_index: int, now_ms: int) -> None:
        self.peer = peer
        self._settings = settings
        self.match_index = 0
        self.next_index = next_index
        self.pace = Pace.PROBE
        self.is_waiting = False
        """Of a probe or a chunk: it is under way, send nothing more."""
        self.commit_sent = 0
        self.heard_ms = now_ms
        """When it last answered anything; when it became known, to begin with."""
        self.caught_up_ms = now_ms
        self.snapshot: Snapshot | None = None
        self.snapshot_offset = 0
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0

    @property
    def may_send(self) -> bool:
        if self.pace is not Pace.REPLICATE:
            return not self.is_waiting
        within_bytes = self._inflight_bytes < self._settings.max_inflight_bytes
        return within_bytes and len(self._inflight) < self._settings.max_inflight_messages

    def sent(self, entries: tuple[Entry, ...]) -> None:
        if self.pace is Pace.PROBE:
            self.is_waiting = True
        elif entries:
            size = sum(entry.size_bytes for entry in entries)
            self._inflight.append((entries[-1].index, size))
            self._inflight_bytes += size
            self.next_index = entries[-1].index + 1

    def accepted(self, match_index: int, base_index: int) -> None:
        """It has the log up to here: all of its snapshot, or enough for the log to take over."""
        self.match_index = max(self.match_index, match_index)
        self.next_index = max(self.next_index, self.match_index + 1)
        while self._inflight and self._inflight[0][0] <= self.match_index:
            self._inflight_bytes -= self._inflight.popleft()[1]
        needed = base_index if self.snapshot is None else min(self.snapshot.index, base_index)
        if self.pace is Pace.PROBE or (self.pace is Pace.SNAPSHOT and self.match_index >= needed):
            self._enter(Pace.REPLICATE)
            self.next_index = self.match_index + 1

    def is_stale_refusal(self, prev_index: int) -> bool:
        """Answers an append sent before what is known now."""
        if self.pace is Pace.REPLICATE:
            return prev_index <= self.match_index
        return self.pace is Pace.SNAPSHOT or prev_index != self.next_index - 1

    def refused(self, prev_index: int, next_index: int) -> None:
        """The logs part before `prev_index`, and may agree before `next_index`."""
        if prev_index <= self.match_index:
            self.match_index = 0  # it does not hold any more what it said was stable: its disk was lost
        self.probe_from(next_index)

    def probe_from(self, next_index: int) -> None:
        self._enter(Pace.PROBE)
        self.next_index = max(next_index, self.match_index + 1)

    def begin_snapshot(self, snapshot: Snapshot) -> None:
        self._enter(Pace.SNAPSHOT)
        self.snapshot = snapshot

    def _enter(self, pace: Pace) -> None:
        self.pace = pace
        self.is_waiting = False
        self.snapshot = None
        self.snapshot_offset = 0
        self.commit_sent = 0
        self._inflight.clear()
        self._inflight_bytes = 0
