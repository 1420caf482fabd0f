"""Terms that cannot be true: not heard from others, not entered by oneself."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.raft.configuration import Configuration
from penstock.core.raft.core import RaftCore
from penstock.core.raft.exchange import HardState, Received, Stored, Tick
from penstock.core.raft.messages import (
    AppendEntries,
    AppendResponse,
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
from penstock.core.raft.states import Role
from penstock.core.raft.terms import HEALED_TERM, LAST_TERM, MAX_JUMP, is_plausible

VOTERS = Configuration((1, 2, 3))
INT32_MAX = 2**31 - 1


def server(term: int, voters: Configuration = VOTERS) -> RaftCore:
    core = RaftCore(1, voters, RaftSettings(), Random(1), Stored(HardState(term)))
    core.step(Tick(), 0)
    return core


def every_message(term: int) -> list[Message]:
    return [
        PreVote(2, 1, term, 9, 9),
        PreVoteResponse(2, 1, term, False),
        PreVoteResponse(2, 1, term, True),
        RequestVote(2, 1, term, 9, 9, False),
        RequestVote(2, 1, term, 9, 9, True),
        VoteResponse(2, 1, term, False),
        AppendEntries(2, 1, term, 0, 0, (), 0),
        AppendResponse(2, 1, term, False, 0),
        InstallSnapshot(2, 1, term, 9, 9, VOTERS, 0, b"", True),
        SnapshotResponse(2, 1, term, 9, 0),
        TimeoutNow(2, 1, term),
    ]


@pytest.mark.parametrize(
    "term", [INT32_MAX, LAST_TERM + 1, HEALED_TERM + MAX_JUMP + 1, HEALED_TERM - 1, 7 + MAX_JUMP + 1]
)
@pytest.mark.parametrize("place", range(len(every_message(0))))
def test_a_message_of_a_term_that_jumps_is_not_heard(term: int, place: int) -> None:
    core = server(7)
    before = core.status
    message = every_message(term)[place]
    outcome = core.step(Received(message), 1)
    assert outcome.implausible == message
    assert core.status == before
    assert (outcome.has_writes, outcome.send_now, outcome.send_after_persist) == (False, [], [])


@pytest.mark.parametrize("term", [8, 7 + MAX_JUMP, HEALED_TERM, HEALED_TERM + MAX_JUMP])
def test_a_term_that_can_be_true_is_taken_up(term: int) -> None:
    core = server(7)
    outcome = core.step(Received(AppendEntries(2, 1, term, 0, 0, (), 0)), 1)
    assert outcome.implausible is None
    assert (core.status.term, core.status.leader) == (term, 2)


@pytest.mark.parametrize("voters", [VOTERS, Configuration((1,))])
def test_nobody_campaigns_beyond_the_last_term(voters: Configuration) -> None:
    core = server(LAST_TERM, voters)
    for now_ms in range(0, 20_000, 500):
        outcome = core.step(Tick(), now_ms)
        assert not outcome.send_now
    core.step(Received(TimeoutNow(2, 1, LAST_TERM)), 20_000)
    assert (core.status.role, core.status.term) == (Role.FOLLOWER, LAST_TERM)


def test_the_way_up_from_what_was_healed_is_open() -> None:
    assert is_plausible(HEALED_TERM + 1, HEALED_TERM)
    assert is_plausible(5, 9), "what is past is answered, not ignored"
    assert LAST_TERM + MAX_JUMP == INT32_MAX
