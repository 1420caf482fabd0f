"""The table of a shard's life, walked whole, and that it is Kafka's."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.shard.hosting import ABOUT_TO_SERVE, MOVES, IllegalMove, Input, State, moved

# Kafka's CoordinatorRuntime.CoordinatorState: which states may come before which.
KAFKA_PREVIOUS = {
    State.LOADING: {State.INITIAL, State.FAILED},
    State.ACTIVE: {State.LOADING},
    State.FAILED: {State.LOADING},
    State.CLOSED: {State.INITIAL, State.LOADING, State.ACTIVE, State.FAILED},
}
# Kafka goes back to a snapshot where an active shard of ours is loaded anew, and stays active when its log is lost.
OURS = {(State.ACTIVE, State.LOADING), (State.ACTIVE, State.FAILED)}


@pytest.mark.parametrize(("state", "met"), list(itertools.product(State, Input)))
def test_every_input_leads_somewhere_or_is_a_named_error(state: State, met: Input) -> None:
    if (state, met) in MOVES:
        assert moved(state, met) is MOVES[state, met]
    else:
        with pytest.raises(IllegalMove, match=f"{state.value} cannot {met.value}"):
            moved(state, met)


def test_the_moves_are_kafkas() -> None:
    moves = {(state, target) for (state, _), target in MOVES.items() if state is not target}
    assert moves - OURS == {(source, target) for target, sources in KAFKA_PREVIOUS.items() for source in sources}
    assert moves >= OURS


def test_every_state_can_be_closed_and_nothing_leads_out() -> None:
    assert {moved(state, Input.STOP) for state in State} == {State.CLOSED}
    assert {target for (state, _), target in MOVES.items() if state is State.CLOSED} == {State.CLOSED}


def test_only_a_load_makes_a_shard_active() -> None:
    assert {pair for pair, target in MOVES.items() if target is State.ACTIVE} == {(State.LOADING, Input.LOADED)}


def test_a_shard_that_failed_is_not_about_to_serve() -> None:
    assert set(State) - ABOUT_TO_SERVE == {State.FAILED, State.CLOSED}
