"""The tables of roles and reactions, and the whole product of them against a real core."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.core.raft.configuration import Configuration
from penstock.core.raft.core import RaftCore
from penstock.core.raft.exchange import (
    Change,
    ChangeMembership,
    HardState,
    Input,
    PeerBack,
    PeerLost,
    PersistDone,
    Proposal,
    Propose,
    Received,
    Refusal,
    SnapshotReady,
    Stored,
    Tick,
    TransferLeadership,
)
from penstock.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    Entry,
    EntryKind,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteResponse,
    RequestVote,
    SnapshotResponse,
    TimeoutNow,
    VoteResponse,
)
from penstock.core.raft.settings import RaftSettings
from penstock.core.raft.states import (
    MOVES,
    REACTIONS,
    IllegalMove,
    ImpossibleMessage,
    Kind,
    Move,
    Reaction,
    Role,
    moved,
    reaction_of,
)

VOTERS = Configuration((1, 2, 3))
TERM = 1
"""The term every server below is in."""


def follower(node_id: int = 1) -> RaftCore:
    stored = Stored(HardState(TERM, None), None, (Entry(1, 1, EntryKind.NO_OP),))
    core = RaftCore(node_id, VOTERS, RaftSettings(), Random(node_id), stored)
    core.step(Tick(), 0)
    return core


def pre_candidate() -> RaftCore:
    core = follower()
    core.step(Tick(), 5000)
    return core


def candidate() -> RaftCore:
    """In term TERM: it was in the one before."""
    core = RaftCore(1, VOTERS, RaftSettings(), Random(1), Stored(HardState(TERM - 1, None)))
    core.step(Tick(), 0)
    core.step(Tick(), 5000)
    core.step(Received(PreVoteResponse(2, 1, TERM, True)), 5001)
    return core


def leader() -> RaftCore:
    core = candidate()
    core.step(PersistDone(1), 5002)
    core.step(Received(VoteResponse(2, 1, TERM, True)), 5003)
    return core


MAKERS: dict[Role, Callable[[], RaftCore]] = {
    Role.FOLLOWER: follower,
    Role.PRE_CANDIDATE: pre_candidate,
    Role.CANDIDATE: candidate,
    Role.LEADER: leader,
}

LOCAL: dict[Kind, Input] = {
    Kind.TICK: Tick(),
    Kind.PROPOSE: Propose((Proposal(1, b"x"),)),
    Kind.PERSIST_DONE: PersistDone(1),
    Kind.SNAPSHOT_READY: SnapshotReady(1, b"s"),
    Kind.PEER_LOST: PeerLost(2),
    Kind.PEER_BACK: PeerBack(2),
    Kind.CHANGE_MEMBERSHIP: ChangeMembership(1, Change.ADD_OBSERVER, 4),
    Kind.TRANSFER_LEADERSHIP: TransferLeadership(1, 2),
}


def message(kind: Kind, term: int) -> Message:
    back = 2, 1, term
    messages: dict[Kind, Message] = {
        Kind.PRE_VOTE: PreVote(*back, 1, 1),
        Kind.PRE_VOTE_RESPONSE: PreVoteResponse(*back, False),
        Kind.REQUEST_VOTE: RequestVote(*back, 1, 1),
        Kind.VOTE_RESPONSE: VoteResponse(*back, False),
        Kind.APPEND_ENTRIES: AppendEntries(*back, 0, 0, (), 0),
        Kind.APPEND_RESPONSE: AppendResponse(*back, True, 0),
        Kind.INSTALL_SNAPSHOT: InstallSnapshot(*back, 9, 1, VOTERS, 0, b"s", True),
        Kind.SNAPSHOT_RESPONSE: SnapshotResponse(*back, 9, 0),
        Kind.TIMEOUT_NOW: TimeoutNow(*back),
    }
    return messages[kind]


def fact_of(kind: Kind, term: int) -> Input:
    return LOCAL[kind] if kind in LOCAL else Received(message(kind, term))


IMPOSSIBLE = {(Role.LEADER, kind) for kind in (Kind.APPEND_ENTRIES, Kind.INSTALL_SNAPSHOT, Kind.TIMEOUT_NOW)}


@pytest.mark.parametrize("role", Role)
def test_the_makers_make_their_roles(role: Role) -> None:
    core = MAKERS[role]()
    assert (core.status.role, core.status.term) == (role, TERM)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kind", Kind)
def test_every_role_meets_everything(role: Role, kind: Kind) -> None:
    """Either there is a reaction and the core can carry it out, or the pair is impossible and says so by name."""
    core = MAKERS[role]()
    if (role, kind) in IMPOSSIBLE:
        with pytest.raises(ImpossibleMessage, match=f"a {role.value} got {kind.value}"):
            core.step(fact_of(kind, TERM), 5010)
        with pytest.raises(ImpossibleMessage):
            reaction_of(role, kind)
    else:
        assert isinstance(reaction_of(role, kind), Reaction)
        outcome = core.step(fact_of(kind, TERM), 5010)
        assert outcome.generation >= 0


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in LOCAL])
def test_messages_of_a_newer_term_make_a_follower(role: Role, kind: Kind) -> None:
    """Except those that only talk about the future; and a live leader is not unseated by a stranger to it."""
    core = MAKERS[role]()
    core.step(Received(message(kind, TERM + 1)), 5010)
    if kind is Kind.PRE_VOTE or (kind is Kind.REQUEST_VOTE and role is Role.LEADER):
        assert (core.status.role, core.status.term) == (role, TERM)
    elif kind is Kind.TIMEOUT_NOW:
        assert (core.status.role, core.status.term) == (Role.CANDIDATE, TERM + 2)
    else:
        assert (core.status.role, core.status.term) == (Role.FOLLOWER, TERM + 1)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in LOCAL])
def test_messages_of_an_older_term_change_nothing(role: Role, kind: Kind) -> None:
    core = MAKERS[role]()
    before = core.status
    outcome = core.step(Received(message(kind, TERM - 1)), 5010)
    assert core.status[:6] == before[:6]
    assert not outcome.has_writes
    answers = outcome.send_now + outcome.send_after_persist
    is_request = kind in (Kind.PRE_VOTE, Kind.REQUEST_VOTE, Kind.APPEND_ENTRIES, Kind.INSTALL_SNAPSHOT)
    told = [answer.term for answer in answers if answer.recipient == 2 and answer.kind.value.endswith("Response")]
    assert told == ([TERM] if is_request else [])


def test_the_tables_name_only_what_there_is() -> None:
    assert {*REACTIONS} == {(role, kind) for role in Role for kind in Kind} - IMPOSSIBLE
    assert {*REACTIONS.values()} == {*Reaction}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("move", Move)
def test_every_move_leads_somewhere_or_is_illegal(role: Role, move: Move) -> None:
    if (role, move) in MOVES:
        assert moved(role, move) is MOVES[role, move]
    else:
        with pytest.raises(IllegalMove, match=f"a {role.value} cannot {move.value}"):
            moved(role, move)


def test_what_is_illegal() -> None:
    illegal = {(role, move) for role in Role for move in Move} - {*MOVES}
    assert illegal == {
        (Role.LEADER, Move.SUSPECT),
        (Role.LEADER, Move.CAMPAIGN),
        (Role.CANDIDATE, Move.CAMPAIGN),
        (Role.FOLLOWER, Move.WIN),
        (Role.PRE_CANDIDATE, Move.WIN),
        (Role.LEADER, Move.WIN),
    }


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.LEADER])
def test_only_a_leader_takes_orders(role: Role) -> None:
    core = MAKERS[role]()
    for fact in (LOCAL[Kind.PROPOSE], LOCAL[Kind.CHANGE_MEMBERSHIP], LOCAL[Kind.TRANSFER_LEADERSHIP]):
        (refused,) = core.step(fact, 5010).refused
        assert refused == (1, Refusal.NOT_LEADER, core.get_leader())


def test_two_leaders_of_one_term_are_impossible() -> None:
    core = follower()
    core.step(Received(message(Kind.APPEND_ENTRIES, TERM)), 10)
    with pytest.raises(ImpossibleMessage, match="2 and 3 both lead term 1"):
        core.step(Received(AppendEntries(3, 1, TERM, 0, 0, (), 0)), 20)


def test_a_message_for_another_is_refused() -> None:
    with pytest.raises(ValueError, match="node 1 received a message for node 7"):
        follower().step(Received(TimeoutNow(2, 7, TERM)), 10)
