"""What servers say to each other, and what their logs are made of. Values without behaviour.

Every message names its sender, its recipient and a term: the sender's own, except in PreVote and a granted
PreVoteResponse, where it is the term that an election would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final

from penstock.core.raft.configuration import Configuration, NodeId
from penstock.core.raft.states import Kind

ENTRY_OVERHEAD_BYTES: Final = 24


class EntryKind(Enum):
    __hash__ = object.__hash__  # as in `states`

    DATA = "data"
    NO_OP = "no-op"
    """The first entry of every term: what older terms left behind commits with it."""
    CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    kind: EntryKind
    data: bytes = b""

    @property
    def size_bytes(self) -> int:
        """What it counts towards the bounds: an entry without data costs something too."""
        return ENTRY_OVERHEAD_BYTES + len(self.data)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine after `index`; `data` is opaque. Index 0 is the empty state every server begins with."""

    index: int
    term: int
    configuration: Configuration
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Message:
    sender: NodeId
    recipient: NodeId
    term: int
    kind: ClassVar[Kind]


@dataclass(frozen=True, slots=True)
class PreVote(Message):
    """Would you vote for me, if I began an election?"""

    last_index: int
    last_term: int
    kind: ClassVar[Kind] = Kind.PRE_VOTE


@dataclass(frozen=True, slots=True)
class PreVoteResponse(Message):
    granted: bool
    kind: ClassVar[Kind] = Kind.PRE_VOTE_RESPONSE


@dataclass(frozen=True, slots=True)
class RequestVote(Message):
    last_index: int
    last_term: int
    is_transfer: bool = False
    """The leader itself asked for this election: voters need not protect it."""
    kind: ClassVar[Kind] = Kind.REQUEST_VOTE


@dataclass(frozen=True, slots=True)
class VoteResponse(Message):
    granted: bool
    kind: ClassVar[Kind] = Kind.VOTE_RESPONSE


@dataclass(frozen=True, slots=True)
class AppendEntries(Message):
    """Entries that follow `prev_index`; without entries a heartbeat."""

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit_index: int
    kind: ClassVar[Kind] = Kind.APPEND_ENTRIES


@dataclass(frozen=True, slots=True)
class AppendResponse(Message):
    """Accepted: the log is the leader's up to `match_index`, and stable.

    Refused: `conflict_term` is the term found at `prev_index` and `conflict_index` the first entry of it; where the
    log is too short, `conflict_term` is 0 and `conflict_index` the end of the log.
    """

    accepted: bool
    prev_index: int
    match_index: int = 0
    conflict_index: int = 0
    conflict_term: int = 0
    kind: ClassVar[Kind] = Kind.APPEND_RESPONSE


@dataclass(frozen=True, slots=True)
class InstallSnapshot(Message):
    """One chunk of a snapshot. The last is answered like an append: AppendResponse with the snapshot's index."""

    snapshot_index: int
    snapshot_term: int
    configuration: Configuration
    offset: int
    chunk: bytes
    is_last: bool
    kind: ClassVar[Kind] = Kind.INSTALL_SNAPSHOT


@dataclass(frozen=True, slots=True)
class SnapshotResponse(Message):
    snapshot_index: int
    next_offset: int
    kind: ClassVar[Kind] = Kind.SNAPSHOT_RESPONSE


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """From the leader: campaign at once, you have my log."""

    kind: ClassVar[Kind] = Kind.TIMEOUT_NOW
