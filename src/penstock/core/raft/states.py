"""The four roles of a server and their reactions, as two tables.

    Follower ------- SUSPECT ---> PreCandidate   the leader is silent, or its connection broke
    PreCandidate --- CAMPAIGN --> Candidate      a majority would vote: a new term
    Follower ------- CAMPAIGN --> Candidate      the leader handed over (TimeoutNow)
    Candidate ------ WIN -------> Leader         a majority voted
    Candidate ------ SUSPECT ---> PreCandidate   no candidate won in time
    any ------------ FOLLOW ----> Follower       a newer term, a leader of this term, or no quorum left

`MOVES` gives the next role of a move. `REACTIONS` gives the reaction of each role to an input or a message *of the
server's own term*; `core.RaftCore` handles older and newer terms before. A pair missing in the tables is a named
error. Only a second leader of the same term could cause the pairs missing in `REACTIONS`, so they mean that safety
is already lost.
An observer is a follower that is not a voter in the configuration: it has no role of its own. A voter whose removal
is not committed yet may campaign and lead until it is (`node.RaftNode.may_campaign`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.model.errors import PenstockError


class Role(Enum):
    __hash__ = object.__hash__  # by identity, in C: Enum hashes the name in Python on every call

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
    """Every input of a server: from its shell first, then from other servers."""

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

    IGNORE = "ignore: too late to matter"
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
    PROBE_NOW = "find its matching point"
    CHANGE = "append a new configuration"
    TRANSFER = "let a voter catch up, then tell it to campaign"
    WEIGH_PRE_VOTE = "answer whether it would get the vote"
    COUNT_PRE_VOTE = "count, campaign on a majority"
    WEIGH_VOTE = "vote, once per term, for a log at least as up to date"
    COUNT_VOTE = "count, lead on a majority"
    FOLLOW_AND_APPEND = "follow its sender, append what fits"
    COUNT_APPEND = "move the match index, commit"
    FOLLOW_AND_INSTALL = "follow its sender, collect the snapshot"
    CONTINUE = "send the next chunk"
    CAMPAIGN_NOW = "campaign without a pre-vote"


class IllegalMove(PenstockError):
    """A defect: Raft has no such change of role."""


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
        raise ImpossibleMessage(f"a {role.value} got {kind.value} of its own term: there are two leaders") from None
