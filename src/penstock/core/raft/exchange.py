"""What a shell tells the core, and what the core wants done: inputs, `Outcome`, and what was stored.

Durability order. `Outcome.generation` numbers what is to be stored; a shell stores outcomes in order, and one
outcome in this order: hard state, snapshot, truncation, appended entries. A crash may leave any prefix of that.
Then

- `send_now` may leave at once, together with the write;
- `send_after_persist` may leave when everything up to the outcome's `generation` is stable, which may be so already;
- `PersistDone(generation)` tells the core, which only then counts its own vote and its own log.

`restore` and then `committed` go to the state machine in this order and need not wait for the disk: what is
committed is stable elsewhere. Entries up to `compact_to` may be deleted once `snapshot_to_store` is stable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final, NamedTuple, TypeAlias

from penstock.core.raft.configuration import NodeId
from penstock.core.raft.messages import Entry, Message, Snapshot
from penstock.core.raft.states import Kind, Role

Token: TypeAlias = int
"""The caller's name for whoever waits. Every token is answered by the step it came with."""


# ---- inputs


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: at the latest when `next_deadline_ms` is reached, and once to begin with."""

    kind: ClassVar[Kind] = Kind.TICK


@dataclass(frozen=True, slots=True)
class Received:
    message: Message


class Proposal(NamedTuple):
    token: Token
    data: bytes


@dataclass(frozen=True, slots=True)
class Propose:
    """Each proposal becomes an entry. It has happened when an entry of its index *and term* is committed."""

    proposals: tuple[Proposal, ...]
    kind: ClassVar[Kind] = Kind.PROPOSE


@dataclass(frozen=True, slots=True)
class PersistDone:
    generation: int
    kind: ClassVar[Kind] = Kind.PERSIST_DONE


@dataclass(frozen=True, slots=True)
class SnapshotReady:
    """The state machine as it was after the committed entry `index`."""

    index: int
    data: bytes
    kind: ClassVar[Kind] = Kind.SNAPSHOT_READY


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection to a peer broke: its process is probably gone."""

    peer: NodeId
    kind: ClassVar[Kind] = Kind.PEER_LOST


@dataclass(frozen=True, slots=True)
class PeerBack:
    """It can be reached again. Perhaps another process: who leads is shown by what it sends."""

    peer: NodeId
    kind: ClassVar[Kind] = Kind.PEER_BACK


class Change(Enum):
    """Stranger, observer, voter: one server, one rung at a time."""

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
    """To a voter, or to the one with the longest log. Over when the role changes or an election timeout has passed."""

    token: Token
    to: NodeId | None = None
    kind: ClassVar[Kind] = Kind.TRANSFER_LEADERSHIP


LocalInput: TypeAlias = (
    Tick | Propose | PersistDone | SnapshotReady | PeerLost | PeerBack | ChangeMembership | TransferLeadership
)
Input: TypeAlias = LocalInput | Received


# ---- what comes back


class HardState(NamedTuple):
    term: int = 0
    voted_for: NodeId | None = None
    is_new: bool = False
    """Its disk began empty, and it has not caught up with a leader: it may have voted before, on another disk."""


NEVER_VOTED: Final = HardState()


class Refusal(Enum):
    NOT_LEADER = "not the leader"
    TRANSFERRING = "leadership is being transferred"
    TOO_MUCH_UNCOMMITTED = "too many bytes wait to be committed"
    CHANGE_IN_PROGRESS = "another change is not committed yet"
    TERM_NOT_COMMITTED = "nothing of this term is committed yet"
    NOT_CAUGHT_UP = "the observer is too far behind"
    NOT_A_VOTER = "not a voter"
    NOT_AN_OBSERVER = "not an observer"
    ALREADY_A_MEMBER = "already a member"
    LAST_VOTER = "the last voter cannot be removed"


@dataclass(frozen=True, slots=True)
class Accepted:
    """For a proposal or change its place in the log; for a transfer, which makes no entry, index 0."""

    token: Token
    index: int
    term: int


class Refused(NamedTuple):
    token: Token
    refusal: Refusal
    leader: NodeId | None


class Leadership(NamedTuple):
    """Who leads, as this server knows it."""

    role: Role
    term: int
    leader: NodeId | None


@dataclass(slots=True)
class Outcome:
    generation: int = 0
    hard_state: HardState | None = None
    snapshot_to_store: Snapshot | None = None
    truncate_from: int | None = None
    """1 is the whole log, also what of it `compact_to` has not deleted yet."""
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
    """Of a term that cannot be true (`core.raft.terms`): it was not heard."""

    @property
    def has_writes(self) -> bool:
        return bool(self.hard_state or self.snapshot_to_store or self.append) or self.truncate_from is not None


@dataclass(frozen=True, slots=True)
class Stored:
    """What a server finds on its disk when it starts. Entries follow each other; they may begin before the snapshot."""

    hard_state: HardState = NEVER_VOTED
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
