"""Times and bounds of the core. Times are virtual: the core sees `now_ms` and nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftSettings:
    election_timeout_ms: int = 1000
    """A silent leader is suspected after this time plus a random time of up to the same length."""
    heartbeat_interval_ms: int = 150
    lost_leader_grace_ms: int = 300
    """A leader whose connection broke is suspected after this time plus a random time of up to half of it."""
    election_retry_ms: int = 100
    """An undecided campaign is retried after this time plus a random time of up to twice that; doubled each time."""
    max_append_bytes: int = 1 << 20
    """Maximum bytes of entries in one AppendEntries; at least one entry is sent, whatever its size."""
    max_inflight_messages: int = 64
    max_inflight_bytes: int = 8 << 20
    """Limit of unanswered appends to one follower."""
    snapshot_chunk_bytes: int = 256 << 10
    max_uncommitted_bytes: int = 32 << 20
    """Further proposals are refused until some have committed."""
    catch_up_entries: int = 100
    """An observer this close to the end of the log may become a voter."""
    entries_kept_behind_snapshot: int = 1000
    """A follower this far behind a snapshot is still served from the log."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_ms < self.election_timeout_ms:
            raise ValueError("the heartbeat interval must be shorter than the election timeout")
        if not 0 <= self.lost_leader_grace_ms <= self.election_timeout_ms:
            raise ValueError("the lost leader grace must not exceed the election timeout")
        if not 0 < self.election_retry_ms <= self.election_timeout_ms:
            raise ValueError("the election retry time must not exceed the election timeout")
        bounds = (self.max_append_bytes, self.max_inflight_messages, self.max_inflight_bytes)
        if min(*bounds, self.snapshot_chunk_bytes, self.max_uncommitted_bytes) < 1:
            raise ValueError("every bound must be at least 1")
        if min(self.catch_up_entries, self.entries_kept_behind_snapshot) < 0:
            raise ValueError("the number of entries must not be negative")
