"""The table of a followed partition, walked whole: every state x input x reasons to hold it."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.partition.following import (
    DELAYED_STATES,
    HOLDS,
    LETS_GO,
    MOVES,
    WAITING_STATES,
    Followed,
    Hold,
    IllegalMove,
    Input,
    State,
    moved,
)

EPOCH, END = 7, 100

ANSWERS = {
    Input.RECORDS,
    Input.NOTHING_NEW,
    Input.DIVERGES,
    Input.OUT_OF_RANGE,
    Input.BEGINS_INSIDE,
    Input.METADATA_IS_COMING,
    Input.REFUSED,
    Input.NOT_APPENDED,
}
DELAYS = {
    Input.METADATA_IS_COMING,
    Input.REFUSED,
    Input.FETCH_REFUSED,
    Input.NOT_APPENDED,
    Input.NOT_FITTED,
    Input.THROTTLED,
}
WAYS: dict[State, tuple[Input, ...]] = {
    State.UNKNOWN: (),
    State.MATCHING: (Input.NAMED,),
    State.MATCHED: (Input.NAMED, Input.AGREED),
    State.DELAYED: (Input.NAMED, Input.REFUSED),
    State.MATCHED_DELAYED: (Input.NAMED, Input.AGREED, Input.REFUSED),
    State.HELD: (Input.NAMED, Input.DIVERGES),
    State.HELD_DELAYED: (Input.NAMED, Input.DIVERGES, Input.NOT_FITTED),
    State.GONE: (Input.UNASSIGNED,),
}
HELD = (State.HELD, State.HELD_DELAYED)
ALL_HOLDS = [frozenset(some) for count in range(4) for some in itertools.combinations(Hold, count)]


def in_state(state: State) -> Followed:
    followed = Followed()
    followed.ask(EPOCH, END)
    for met in WAYS[state]:
        followed.meet(met)
    return followed


def allows(state: State, holds: frozenset[Hold]) -> bool:
    return bool(holds) is (state in HELD)


@pytest.mark.parametrize("state", State)
def test_every_state_is_reached(state: State) -> None:
    followed = in_state(state)
    assert followed.state is state
    assert allows(state, followed.holds)


@pytest.mark.parametrize(("state", "met"), list(itertools.product(State, Input)))
def test_every_input_leads_somewhere_or_is_a_named_error(state: State, met: Input) -> None:
    for holds in ALL_HOLDS:
        if not allows(state, holds):
            continue
        followed = in_state(state)
        followed.holds = holds
        if (state, met) not in MOVES:
            with pytest.raises(IllegalMove, match=f"{state.value} cannot {met.value}"):
                followed.meet(met)
            assert (followed.state, followed.holds) == (state, holds)
            continue
        left = (holds | {HOLDS[met]} if met in HOLDS else holds) - {LETS_GO.get(met)}
        expected = state if met in LETS_GO and left else MOVES[state, met]
        assert followed.meet(met) is expected is followed.state
        assert followed.holds == (frozenset() if expected is State.GONE else left)
        assert allows(followed.state, followed.holds), "held for a reason, and for a reason only"


def test_every_input_is_possible_in_some_state() -> None:
    assert {met for _, met in MOVES} == {*Input}


def test_nothing_leads_back_from_gone() -> None:
    """Work that is under way for it may end; the metadata makes another one."""
    assert {met: target for (state, met), target in MOVES.items() if state is State.GONE} == {
        Input.NOT_FITTED: State.GONE,
        Input.FITTED: State.GONE,
    }


def test_the_metadata_and_a_lost_connection_find_every_living_partition_ready() -> None:
    for state in set(State) - {State.GONE}:
        assert moved(state, Input.UNASSIGNED) is State.GONE
        for met in (Input.ASSIGNED, Input.SESSION_LOST):
            assert not _is_matched(moved(state, met)), "who leads now, or is connected now, was not compared with"
        for met in (Input.ASSIGNED, Input.ASSIGNED_AGAIN):
            assert moved(state, met) not in DELAYED_STATES, "at once"


def test_only_an_answer_without_divergence_makes_a_match() -> None:
    """A pause keeps a match, and so does everything that leaves the log as it is."""
    made = {(state, met) for (state, met), target in MOVES.items() if _is_matched(target) and not _is_matched(state)}
    assert made == {(State.MATCHING, Input.AGREED)}
    lost = {met for (state, met), target in MOVES.items() if _is_matched(state) and not _is_matched(target)}
    assert lost == {*HOLDS, Input.ASSIGNED, Input.SESSION_LOST, Input.UNASSIGNED}


def test_a_partition_that_waits_is_neither_named_nor_answered() -> None:
    for state in WAITING_STATES:
        for met in ANSWERS | {Input.NAMED}:
            assert (state, met) not in MOVES


def test_what_delays_and_what_ends_a_delay() -> None:
    begins = {met for (state, met), target in MOVES.items() if target in DELAYED_STATES and state not in DELAYED_STATES}
    ends = {met for (state, met), target in MOVES.items() if state in DELAYED_STATES and target not in DELAYED_STATES}
    assert begins == DELAYS
    assert ends == {Input.DELAY_OVER, Input.ASSIGNED, Input.ASSIGNED_AGAIN, Input.UNASSIGNED}


def test_a_partition_is_let_go_when_the_last_reason_ends() -> None:
    followed = in_state(State.HELD)
    followed.meet(Input.DAMAGED)
    followed.meet(Input.WITHDRAWN)
    followed.meet(Input.TAKEN_UP)
    followed.meet(Input.FITTED)
    assert followed.state is State.HELD
    followed.meet(Input.DAMAGED)  # said again
    followed.meet(Input.MENDED)
    assert followed.state is State.UNKNOWN


def test_the_pause_goes_on_when_a_partition_is_let_go() -> None:
    followed = in_state(State.MATCHED_DELAYED)
    followed.meet(Input.WITHDRAWN)
    followed.meet(Input.TAKEN_UP)
    assert followed.state is State.DELAYED
    followed.meet(Input.WITHDRAWN)
    followed.meet(Input.DELAY_OVER)
    assert followed.state is State.HELD
    followed.meet(Input.TAKEN_UP)
    assert followed.state is State.UNKNOWN


@pytest.mark.parametrize("state", [state for state in State if state is not State.GONE])
def test_an_answer_counts_while_the_question_would_be_the_same(state: State) -> None:
    followed = in_state(state)
    assert followed.counts(EPOCH, END) is (state not in WAITING_STATES)
    assert not followed.counts(EPOCH + 1, END)
    assert not followed.counts(EPOCH, END + 1)


def test_a_leader_of_the_epoch_that_was_asked_is_no_new_one() -> None:
    followed = Followed()
    assert followed.assigned(EPOCH) is Input.ASSIGNED
    followed.ask(EPOCH, END)
    assert followed.assigned(EPOCH) is Input.ASSIGNED_AGAIN
    assert followed.assigned(EPOCH + 1) is Input.ASSIGNED


def _is_matched(state: State) -> bool:
    return state in (State.MATCHED, State.MATCHED_DELAYED)
