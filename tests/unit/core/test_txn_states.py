"""The tables of a transactional id: whole, and as Kafka has them."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.txn.states import ANSWERS, MOVES, Act, IllegalMove, Move, Request, State, answer, moved
from penstock.model.errors import ErrorCode

# From Kafka's TransactionState: which states may come before each.
BEFORE = {
    State.EMPTY: {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.ONGOING: {State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.PREPARE_COMMIT: {State.ONGOING},
    State.PREPARE_ABORT: {
        State.ONGOING,
        State.PREPARE_EPOCH_FENCE,
        State.EMPTY,
        State.COMPLETE_COMMIT,
        State.COMPLETE_ABORT,
    },
    State.COMPLETE_COMMIT: {State.PREPARE_COMMIT},
    State.COMPLETE_ABORT: {State.PREPARE_ABORT},
    State.DEAD: {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.PREPARE_EPOCH_FENCE: {State.ONGOING},
}
PASSING = {State.DEAD, State.PREPARE_EPOCH_FENCE}
NEXT = {
    Act.INIT: Move.INIT,
    Act.FENCE: Move.FENCE,
    Act.ADD: Move.ADD,
    Act.COMMIT: Move.COMMIT,
    Act.ABORT: Move.ABORT,
    Act.ABORT_EMPTY: Move.ABORT,
}


@pytest.mark.parametrize("state", State)
def test_what_comes_before_a_state_is_as_in_kafka(state: State) -> None:
    assert {before for (before, _), after in MOVES.items() if after is state} == BEFORE[state]


@pytest.mark.parametrize(("state", "move"), list(itertools.product(State, Move)))
def test_every_move_is_in_the_table_or_refused(state: State, move: Move) -> None:
    if (state, move) in MOVES:
        assert moved(state, move) is MOVES[state, move]
    else:
        with pytest.raises(IllegalMove, match=state.title):
            moved(state, move)


@pytest.mark.parametrize(("state", "request_"), list(itertools.product(State, Request)))
def test_every_request_has_an_answer_that_the_state_allows(state: State, request_: Request) -> None:
    if state in PASSING:
        with pytest.raises(IllegalMove, match=state.title):
            answer(state, request_)
        return
    found = answer(state, request_)
    if isinstance(found, Act) and found is not Act.CONFIRM:
        assert (state, NEXT[found]) in MOVES


def test_only_requests_that_begin_or_repeat_are_told_to_wait() -> None:
    busy = {key for key, found in ANSWERS.items() if found is ErrorCode.CONCURRENT_TRANSACTIONS}
    assert {state for state, _ in busy} == {State.PREPARE_COMMIT, State.PREPARE_ABORT}


def test_titles_are_those_of_kafka() -> None:
    assert [state.title for state in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
