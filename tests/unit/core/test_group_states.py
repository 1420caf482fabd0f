"""The tables of a classic group, walked whole: every state x input has one meaning, and it is Kafka's."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.group.classic import ClassicGroup
from penstock.core.group.states import ANSWERS, MOVES, Act, IllegalMove, Move, Request, State, moved
from penstock.model.errors import ApiError, ErrorCode

# Kafka's ClassicGroupState: which states may come before which.
KAFKA_PREVIOUS = {
    State.PREPARING: {State.STABLE, State.COMPLETING, State.EMPTY},
    State.COMPLETING: {State.PREPARING},
    State.STABLE: {State.COMPLETING},
    State.EMPTY: {State.PREPARING},
}
AT_LOAD_OR_IN_PLACE = {(State.STABLE, Move.STORE), (State.EMPTY, Move.STORE), (State.STABLE, Move.STORE_EMPTY)}
REFUSED_AS_GONE = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.GROUP_ID_NOT_FOUND}


@pytest.mark.parametrize(("state", "move"), list(itertools.product(State, Move)))
def test_every_move_leads_somewhere_or_is_a_named_error(state: State, move: Move) -> None:
    group = ClassicGroup("g")
    group.state = state
    if (state, move) in MOVES:
        group.move(move, 5)
        assert group.state is MOVES[state, move]
        assert group.state_timestamp_ms == 5
    else:
        with pytest.raises(IllegalMove, match=f"{state.value} cannot {move.value}"):
            group.move(move, 5)
        assert group.state is state


@pytest.mark.parametrize(("state", "request_kind"), list(itertools.product(State, Request)))
def test_every_request_has_an_answer_in_every_state(state: State, request_kind: Request) -> None:
    group = ClassicGroup("g")
    group.state = state
    expected = ANSWERS[state, request_kind]
    if isinstance(expected, ErrorCode):
        with pytest.raises(ApiError) as refused:
            group.answer(request_kind)
        assert refused.value.code is expected
    else:
        assert group.answer(request_kind) is expected


def test_moves_of_a_living_group_are_kafkas() -> None:
    for (state, move), target in MOVES.items():
        if target is not State.DEAD and (state, move) not in AT_LOAD_OR_IN_PLACE and state is not target:
            assert state in KAFKA_PREVIOUS[target], (state, move)
    for target, sources in KAFKA_PREVIOUS.items():
        for source in sources:
            assert any(moved(source, move) is target for move in Move if (source, move) in MOVES), (source, target)


def test_nothing_leads_out_of_death() -> None:
    assert not [move for state, move in MOVES if state is State.DEAD]
    for request in Request:
        answer = ANSWERS[State.DEAD, request]
        assert answer in REFUSED_AS_GONE or answer is Act.NOTHING


def test_what_kafka_answers() -> None:
    """Read off GroupMetadataManager and ClassicGroup."""
    assert [ANSWERS[state, Request.HEARTBEAT] for state in State] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        Act.ANSWER,
        Act.ANSWER,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ]
    assert ANSWERS[State.COMPLETING, Request.COMMIT] is ErrorCode.REBALANCE_IN_PROGRESS
    assert ANSWERS[State.PREPARING, Request.COMMIT] is Act.ANSWER
    assert ANSWERS[State.STABLE, Request.COMMIT_SIMPLE] is ErrorCode.UNKNOWN_MEMBER_ID
    assert ANSWERS[State.STABLE, Request.DELETE] is ErrorCode.NON_EMPTY_GROUP
