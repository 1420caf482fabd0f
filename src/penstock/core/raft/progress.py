"""The leader's view of one follower, and how much may be sent to it.

    PROBE      the matching point is unknown: one append at a time, until answered or a heartbeat is due
    REPLICATE  it is known: appends follow each other, `next_index` runs ahead, messages and bytes in flight are limited
    SNAPSHOT   the entries it needs are compacted: snapshot chunks, one at a time

Invariant: `match_index < next_index`; everything up to `match_index` is stable at a follower that still has its disk.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from penstock.core.raft.configuration import NodeId
from penstock.core.raft.messages import Entry, Snapshot
from penstock.core.raft.settings import RaftSettings


class SendingPace(Enum):
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

    def __init__(self, peer: NodeId, settings: RaftSettings, next_index: int, now_ms: int) -> None:
        self.peer = peer
        self._settings = settings
        self.match_index = 0
        self.next_index = next_index
        self.pace = SendingPace.PROBE
        self.is_waiting = False
        """A probe or a chunk is in flight: send nothing more."""
        self.commit_sent = 0
        self.heard_ms = now_ms
        """Time of the last answer; initially the time of creation."""
        self.caught_up_ms = now_ms
        self.snapshot: Snapshot | None = None
        self.snapshot_offset = 0
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0

    @property
    def may_send(self) -> bool:
        if self.pace is not SendingPace.REPLICATE:
            return not self.is_waiting
        within_bytes = self._inflight_bytes < self._settings.max_inflight_bytes
        return within_bytes and len(self._inflight) < self._settings.max_inflight_messages

    def sent(self, entries: tuple[Entry, ...]) -> None:
        if self.pace is SendingPace.PROBE:
            self.is_waiting = True
        elif entries:
            size = sum(entry.size_bytes for entry in entries)
            self._inflight.append((entries[-1].index, size))
            self._inflight_bytes += size
            self.next_index = entries[-1].index + 1

    def accepted(self, match_index: int, base_index: int) -> None:
        """The follower has the log up to `match_index`: all of its snapshot, or enough to continue from the log."""
        self.match_index = max(self.match_index, match_index)
        self.next_index = max(self.next_index, self.match_index + 1)
        while self._inflight and self._inflight[0][0] <= self.match_index:
            self._inflight_bytes -= self._inflight.popleft()[1]
        needed = base_index if self.snapshot is None else min(self.snapshot.index, base_index)
        if self.pace is SendingPace.PROBE or (self.pace is SendingPace.SNAPSHOT and self.match_index >= needed):
            self._enter(SendingPace.REPLICATE)
            self.next_index = self.match_index + 1

    def is_stale_refusal(self, prev_index: int) -> bool:
        """The answer is to an append older than what is known now."""
        if self.pace is SendingPace.REPLICATE:
            return prev_index <= self.match_index
        return self.pace is SendingPace.SNAPSHOT or prev_index != self.next_index - 1

    def refused(self, prev_index: int, next_index: int) -> None:
        """The logs differ before `prev_index` and may agree before `next_index`."""
        if prev_index <= self.match_index:
            self.match_index = 0  # entries it reported as stable are gone: it lost its disk
        self.probe_from(next_index)

    def probe_from(self, next_index: int) -> None:
        self._enter(SendingPace.PROBE)
        self.next_index = max(next_index, self.match_index + 1)

    def begin_snapshot(self, snapshot: Snapshot) -> None:
        self._enter(SendingPace.SNAPSHOT)
        self.snapshot = snapshot

    def _enter(self, pace: SendingPace) -> None:
        self.pace = pace
        self.is_waiting = False
        self.snapshot = None
        self.snapshot_offset = 0
        self.commit_sent = 0
        self._inflight.clear()
        self._inflight_bytes = 0
