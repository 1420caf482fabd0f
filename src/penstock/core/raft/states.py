"""The four roles of a server and what each makes of everything that can reach it, as two tables.

    Follower ------- SUSPECT ---> PreCandidate   the leader is silent, or its connection broke
    PreCandidate --- CAMPAIGN --> Candidate      a majority would vote: a new term
    Follower ------- CAMPAIGN --> Candidate      the leader handed over (TimeoutNow)
    Candidate ------ WIN -------> Leader         a majority voted
    Candidate ------ SUSPECT ---> PreCandidate   nobody won in time
    any ------------ FOLLOW ----> Follower       a newer term, a leader of this term, or no quorum left

`MOVES` says where a move leads, `REACTIONS` what an input or a message *of the server's own term*
meets in each role; messages of older and newer terms are sorted out before (`core.RaftCore`).
What is in neither table is a named error. The pairs left out of `REACTIONS` are those that only a
second leader of the same term could cause, so meeting one means that safety is already gone.

An observer is a follower that the configuration does not count as a voter: it has no role of its own. One that has
lost its vote, but perhaps not for good, may campaign and lead until that is committed (`node.Node.may_campaign`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.model.errors import PenstockError


class Role(Enum):
    __hash__ = object.__hash__  # members are one of a kind; the hash of Enum, of the name, is made in Python every time

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Move(Enum):
    __hash__ = object.__hash__

    SUSPECT = "suspect its leader"
    CAMPAIGN = "campaign"
    WIN = "win"
    FOLLOW = "follow"


class Kind(Enum):
    """Everything that can reach a server: what its shell says first, then what other servers say."""

    __hash__ = object.__hash__

    TICK = "Tick"
    PROPOSE = "Propose"
    PERSIST_DONE = "PersistDone"
    SNAPSHOT_READY = "SnapshotReady"
    PEER_LOST = "PeerLost"
    PEER_BACK = "PeerBack"
    CHANGE_MEMBERSHIP = "ChangeMembership"
    TRANSFER_LEADERSHIP = "TransferLeadership"
    PRE_VOTE = "PreVote"
    PRE_VOTE_RESPONSE = "PreVoteResponse"
    REQUEST_VOTE = "RequestVote"
    VOTE_RESPONSE = "VoteResponse"
    APPEND_ENTRIES = "AppendEntries"
    APPEND_RESPONSE = "AppendResponse"
    INSTALL_SNAPSHOT = "InstallSnapshot"
    SNAPSHOT_RESPONSE = "SnapshotResponse"
    TIMEOUT_NOW = "TimeoutNow"


class Reaction(Enum):
    __hash__ = object.__hash__

    IGNORE = "ignore: it comes too late to matter"
    REFUSE = "refuse and name the leader"
    CHECK_LEADER = "begin an election if the time is up"
    LEAD = "heartbeats, quorum, transfer"
    APPEND_OWN = "append to the own log and replicate"
    NOTE_STABLE = "remember how much of the log is stable"
    COUNT_OWN_VOTE = "the own vote is stable: count it"
    COUNT_OWN_LOG = "the own log is stable: count it"
    COMPACT = "keep the snapshot, shorten the log"
    DOUBT_LEADER = "begin an election after a short grace, if it was the leader"
    PROBE_LATER = "send to it only with heartbeats"
    PROBE_NOW = "find out where it stands"
    CHANGE = "append a new configuration"
    TRANSFER = "let a voter catch up, then tell it to campaign"
    WEIGH_PRE_VOTE = "say whether it would get the vote"
    COUNT_PRE_VOTE = "count, campaign on a majority"
    WEIGH_VOTE = "vote, once a term, for a log at least as good"
    COUNT_VOTE = "count, lead on a majority"
    FOLLOW_AND_APPEND = "follow its sender, append what fits"
    COUNT_APPEND = "move the match index, commit"
    FOLLOW_AND_INSTALL = "follow its sender, collect the snapshot"
    CONTINUE = "send the next chunk"
    CAMPAIGN_NOW = "campaign without a pre-vote"


class IllegalMove(PenstockError):
    """A defect: a server was asked to change its role in a way that Raft does not know."""


class ImpossibleMessage(PenstockError):
    """Only a second leader in the same term could have sent this: some server broke its promises."""


MOVES: Final[dict[tuple[Role, Move], Role]] = {
    (Role.FOLLOWER, Move.SUSPECT): Role.PRE_CANDIDATE,
    (Role.PRE_CANDIDATE, Move.SUSPECT): Role.PRE_CANDIDATE,
    (Role.CANDIDATE, Move.SUSPECT): Role.PRE_CANDIDATE,
    (Role.FOLLOWER, Move.CAMPAIGN): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, Move.CAMPAIGN): Role.CANDIDATE,
    (Role.CANDIDATE, Move.WIN): Role.LEADER,
    (Role.FOLLOWER, Move.FOLLOW): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Move.FOLLOW): Role.FOLLOWER,
    (Role.CANDIDATE, Move.FOLLOW): Role.FOLLOWER,
    (Role.LEADER, Move.FOLLOW): Role.FOLLOWER,
}

_R = Reaction
_COLUMNS = (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER)
# fmt: off
_ROWS: dict[Kind, tuple[Reaction | None, ...]] = {
    Kind.TICK:                (_R.CHECK_LEADER,       _R.CHECK_LEADER,       _R.CHECK_LEADER,       _R.LEAD),
    Kind.PROPOSE:             (_R.REFUSE,             _R.REFUSE,             _R.REFUSE,             _R.APPEND_OWN),
    Kind.PERSIST_DONE:        (_R.NOTE_STABLE,        _R.NOTE_STABLE,        _R.COUNT_OWN_VOTE,     _R.COUNT_OWN_LOG),
    Kind.SNAPSHOT_READY:      (_R.COMPACT,            _R.COMPACT,            _R.COMPACT,            _R.COMPACT),
    Kind.PEER_LOST:           (_R.DOUBT_LEADER,       _R.IGNORE,             _R.IGNORE,             _R.PROBE_LATER),
    Kind.PEER_BACK:           (_R.IGNORE,             _R.IGNORE,             _R.IGNORE,             _R.PROBE_NOW),
    Kind.CHANGE_MEMBERSHIP:   (_R.REFUSE,             _R.REFUSE,             _R.REFUSE,             _R.CHANGE),
    Kind.TRANSFER_LEADERSHIP: (_R.REFUSE,             _R.REFUSE,             _R.REFUSE,             _R.TRANSFER),
    Kind.PRE_VOTE:            (_R.WEIGH_PRE_VOTE,     _R.WEIGH_PRE_VOTE,     _R.WEIGH_PRE_VOTE,     _R.WEIGH_PRE_VOTE),
    Kind.PRE_VOTE_RESPONSE:   (_R.IGNORE,             _R.COUNT_PRE_VOTE,     _R.IGNORE,             _R.IGNORE),
    Kind.REQUEST_VOTE:        (_R.WEIGH_VOTE,         _R.WEIGH_VOTE,         _R.WEIGH_VOTE,         _R.WEIGH_VOTE),
    Kind.VOTE_RESPONSE:       (_R.IGNORE,             _R.IGNORE,             _R.COUNT_VOTE,         _R.IGNORE),
    Kind.APPEND_ENTRIES:      (_R.FOLLOW_AND_APPEND,  _R.FOLLOW_AND_APPEND,  _R.FOLLOW_AND_APPEND,  None),
    Kind.APPEND_RESPONSE:     (_R.IGNORE,             _R.IGNORE,             _R.IGNORE,             _R.COUNT_APPEND),
    Kind.INSTALL_SNAPSHOT:    (_R.FOLLOW_AND_INSTALL, _R.FOLLOW_AND_INSTALL, _R.FOLLOW_AND_INSTALL, None),
    Kind.SNAPSHOT_RESPONSE:   (_R.IGNORE,             _R.IGNORE,             _R.IGNORE,             _R.CONTINUE),
    Kind.TIMEOUT_NOW:         (_R.CAMPAIGN_NOW,       _R.CAMPAIGN_NOW,       _R.IGNORE,             None),
}
# fmt: on

REACTIONS: Final[dict[tuple[Role, Kind], Reaction]] = {
    (role, kind): reaction
    for kind, row in _ROWS.items()
    for role, reaction in zip(_COLUMNS, row, strict=True)
    if reaction is not None
}


def moved(role: Role, move: Move) -> Role:
    try:
        return MOVES[role, move]
    except KeyError:
        raise IllegalMove(f"a {role.value} cannot {move.value}") from None


def reaction_of(role: Role, kind: Kind) -> Reaction:
    try:
        return REACTIONS[role, kind]
    except KeyError:
        raise ImpossibleMessage(f"a {role.value} met {kind.value} of its own term: there are two leaders") from None
