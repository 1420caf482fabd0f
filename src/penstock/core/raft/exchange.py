"""Inputs of the core, its `Outcome`, and the stored state.

Durability order. `Outcome.generation` numbers the writes. A shell stores outcomes in order, and the parts of
one outcome in this order: hard state, snapshot, truncation, appended entries. A crash may leave any prefix.
Then

- `send_now` may leave at once, in parallel with the write;
- `send_after_persist` may leave when everything up to the outcome's `generation` is stable, perhaps already;
- `PersistDone(generation)` informs the core, which only then counts its own vote and its own log.

`restore` and then `committed` go to the state machine in this order and need not wait for the disk: committed
entries are stable on a majority. Entries up to `compact_to` may be deleted once `snapshot_to_store` is stable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final, NamedTuple, TypeAlias

from penstock.core.raft.configuration import NodeId
from penstock.core.raft.messages import Entry, Message, Snapshot
from penstock.core.raft.states import Kind, Role

Token: TypeAlias = int
"""The caller's name for a pending request. Every token is answered by the step that receives it."""


# ---- inputs


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: due at `next_deadline_ms` at the latest, and once at start."""

    kind: ClassVar[Kind] = Kind.TICK


@dataclass(frozen=True, slots=True)
class Received:
    message: Message


class Proposal(NamedTuple):
    token: Token
    data: bytes


@dataclass(frozen=True, slots=True)
class Propose:
    """Each proposal becomes an entry. It has taken effect when an entry of its index *and term* is committed."""

    proposals: tuple[Proposal, ...]
    kind: ClassVar[Kind] = Kind.PROPOSE


@dataclass(frozen=True, slots=True)
class PersistDone:
    generation: int
    kind: ClassVar[Kind] = Kind.PERSIST_DONE


@dataclass(frozen=True, slots=True)
class SnapshotReady:
    """The state machine after the committed entry `index`."""

    index: int
    data: bytes
    kind: ClassVar[Kind] = Kind.SNAPSHOT_READY


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection to a peer broke: its process is probably dead."""

    peer: NodeId
    kind: ClassVar[Kind] = Kind.PEER_LOST


@dataclass(frozen=True, slots=True)
class PeerBack:
    """The peer is reachable again. It may be another process: only its messages show whether it leads."""

    peer: NodeId
    kind: ClassVar[Kind] = Kind.PEER_BACK


class Change(Enum):
    """Non-member, observer, voter: one server moves one step at a time."""

    ADD_OBSERVER = "AddObserver"
    ADD_VOTER = "AddVoter"
    REMOVE_VOTER = "RemoveVoter"
    REMOVE_OBSERVER = "RemoveObserver"


@dataclass(frozen=True, slots=True)
class ChangeMembership:
    token: Token
    change: Change
    node: NodeId
    kind: ClassVar[Kind] = Kind.CHANGE_MEMBERSHIP


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Transfer leadership to the given voter, or to the voter with the longest log. Ends on a role change or after an
    election timeout.
    """

    token: Token
    to: NodeId | None = None
    kind: ClassVar[Kind] = Kind.TRANSFER_LEADERSHIP


LocalInput: TypeAlias = (
    Tick | Propose | PersistDone | SnapshotReady | PeerLost | PeerBack | ChangeMembership | TransferLeadership
)
Input: TypeAlias = LocalInput | Received


# ---- results


class HardState(NamedTuple):
    term: int = 0
    voted_for: NodeId | None = None
    is_new: bool = False
    """The disk was empty at start and has not caught up with a leader: the server may have voted on a lost disk."""


NEVER_VOTED: Final = HardState()


class Refusal(Enum):
    NOT_LEADER = "not the leader"
    TRANSFERRING = "leadership is being transferred"
    TOO_MUCH_UNCOMMITTED = "too many uncommitted bytes"
    CHANGE_IN_PROGRESS = "another change is not committed yet"
    TERM_NOT_COMMITTED = "no entry of this term is committed yet"
    NOT_CAUGHT_UP = "the observer is too far behind"
    NOT_A_VOTER = "not a voter"
    NOT_AN_OBSERVER = "not an observer"
    ALREADY_A_MEMBER = "already a member"
    LAST_VOTER = "the last voter cannot be removed"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The log position of a proposal or change; index 0 for a transfer, which makes no entry."""

    token: Token
    index: int
    term: int


class Refused(NamedTuple):
    token: Token
    refusal: Refusal
    leader: NodeId | None


class Leadership(NamedTuple):
    """The leadership as this server knows it."""

    role: Role
    term: int
    leader: NodeId | None


@dataclass(slots=True)
class Outcome:
    generation: int = 0
    hard_state: HardState | None = None
    snapshot_to_store: Snapshot | None = None
    truncate_from: int | None = None
    """1 is the whole log, including entries that `compact_to` has not deleted yet."""
    append: list[Entry] = field(default_factory=list)
    compact_to: int | None = None
    send_now: list[Message] = field(default_factory=list)
    send_after_persist: list[Message] = field(default_factory=list)
    restore: Snapshot | None = None
    """Replaces the whole state machine."""
    committed: list[Entry] = field(default_factory=list)
    leadership: Leadership | None = None
    """Set when it changed."""
    accepted: list[Accepted] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    next_deadline_ms: int | None = None
    implausible: Message | None = None
    """Messages ignored because their term is implausible (`core.raft.terms`)."""

    @property
    def has_writes(self) -> bool:
        return bool(self.hard_state or self.snapshot_to_store or self.append) or self.truncate_from is not None


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored state at start. Entries are consecutive; they may begin before the snapshot."""

    hard_state: HardState = NEVER_VOTED
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
