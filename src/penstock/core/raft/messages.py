"""Messages between servers and the entries of their logs. Values without behaviour.

Every message has a sender, a recipient and a term: the sender's own, except in PreVote and a granted
PreVoteResponse, where it is the term of the possible election.
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
    """The first entry of every term: entries of older terms commit with it."""
    CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    kind: EntryKind
    data: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Size for the bounds; an entry without data has a size too."""
        return ENTRY_OVERHEAD_BYTES + len(self.data)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine after `index`; `data` is opaque. Index 0 is the empty initial state of every server."""

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
    """Asks whether the recipient would vote for the sender in a new election."""

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
    """The leader requested this election, so voters need not protect it."""
    kind: ClassVar[Kind] = Kind.REQUEST_VOTE


@dataclass(frozen=True, slots=True)
class VoteResponse(Message):
    granted: bool
    kind: ClassVar[Kind] = Kind.VOTE_RESPONSE


@dataclass(frozen=True, slots=True)
class AppendEntries(Message):
    """Entries that follow `prev_index`; a heartbeat if there are none."""

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit_index: int
    kind: ClassVar[Kind] = Kind.APPEND_ENTRIES


@dataclass(frozen=True, slots=True)
class AppendResponse(Message):
    """Accepted: the log matches the leader's up to `match_index`, and is stable.

    Refused: `conflict_term` is the term at `prev_index`, and `conflict_index` its first entry. If the log is too
    short, `conflict_term` is 0 and `conflict_index` the end of the log.
    """

    accepted: bool
    prev_index: int
    match_index: int = 0
    conflict_index: int = 0
    conflict_term: int = 0
    kind: ClassVar[Kind] = Kind.APPEND_RESPONSE


@dataclass(frozen=True, slots=True)
class InstallSnapshot(Message):
    """One chunk of a snapshot. The answer to the last is an AppendResponse with the snapshot's index."""

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
    """The leader tells a voter to campaign at once, because its log is complete."""

    kind: ClassVar[Kind] = Kind.TIMEOUT_NOW
