"""Answers to changes of voters, compared with the voters at the end."""

from __future__ import annotations

import pytest

from penstock.sim.checks.votes import check_given, check_last_voters, check_votes
from penstock.sim.judges.history import History, Outcome, Violation
from penstock.sim.workload.operators.voters import GIVE, TAKE

ACKNOWLEDGED, UNKNOWN = Outcome.ACKNOWLEDGED, Outcome.UNKNOWN
FIRST = (1, 2, 3)


def history(*actions: tuple[str, int, Outcome]) -> History:
    told = History(lambda: 0.0)
    for verb, node, outcome in actions:
        told.end_admin(told.begin_admin(verb, "", str(node)), outcome)
    return told


KEPT = "acknowledged changes of votes are kept"


@pytest.mark.parametrize(
    ("actions", "voters", "broken"),
    [
        ([], (1, 2, 3), ""),
        ([], (1, 2), KEPT),
        ([], (1, 2, 3, 4), KEPT),
        ([(TAKE, 3, ACKNOWLEDGED)], (1, 2), ""),
        ([(TAKE, 3, ACKNOWLEDGED)], (1, 2, 3), KEPT),
        ([(TAKE, 3, UNKNOWN)], (1, 2), ""),
        ([(TAKE, 3, UNKNOWN)], (1, 2, 3), ""),
        ([(TAKE, 3, ACKNOWLEDGED), (GIVE, 3, ACKNOWLEDGED)], (1, 2, 3), ""),
        ([(TAKE, 3, ACKNOWLEDGED), (GIVE, 3, ACKNOWLEDGED)], (1, 2), KEPT),
        ([(TAKE, 3, ACKNOWLEDGED), (GIVE, 3, UNKNOWN)], (1, 2), ""),
        ([(GIVE, 4, ACKNOWLEDGED)], (1, 2, 3), KEPT),
        ([(GIVE, 4, ACKNOWLEDGED), (TAKE, 1, UNKNOWN)], (2, 3), KEPT),
    ],
)
def test_votes(actions: list[tuple[str, int, Outcome]], voters: tuple[int, ...], broken: str) -> None:
    known = dict.fromkeys((1, 2, 3, 4), voters)
    if not broken:
        check_votes(history(*actions), known, FIRST)
        return
    with pytest.raises(Violation) as caught:
        check_votes(history(*actions), known, FIRST)
    assert caught.value.what == broken


def test_everybody_has_the_same_voters() -> None:
    with pytest.raises(Violation) as caught:
        check_votes(history((TAKE, 3, UNKNOWN)), {1: (1, 2, 3), 2: (1, 2)}, FIRST)
    assert caught.value.what == "all nodes agree on the voters"


def test_the_last_voters_stay_who_they_are() -> None:
    check_last_voters({1: (1, 3), 2: (3, 1)}, (3, 1))
    with pytest.raises(Violation) as caught:
        check_last_voters({1: (1, 3), 2: (1, 3)}, (1, 2, 3))
    assert caught.value.what == "the voters do not change by themselves"


def test_a_vote_that_is_given_more_often_than_asked_for_is_found() -> None:
    told = history((GIVE, 3, UNKNOWN))
    check_given(told, {3: 1})
    with pytest.raises(Violation, match="a vote is given once"):
        check_given(told, {3: 2})
