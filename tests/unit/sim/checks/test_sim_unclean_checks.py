"""The judge of what an unclean election may lose."""

from __future__ import annotations

import pytest

from penstock.sim.checks.unclean import UncleanElection, check_unclean
from penstock.sim.judges.history import History, Outcome, Place, Seen, Violation

PLACE = Place("unclean", 0)


def written(*acknowledged_s: float) -> History:
    """One record each, acknowledged at these times, at the next offset."""
    now = [0.0]
    history = History(lambda: now[0])
    for offset, at_s in enumerate(acknowledged_s):
        now[0] = at_s - 0.1
        write = history.begin_write(PLACE, "lane", offset, -1, is_idempotent=False)
        now[0] = at_s
        history.end_write(write, Outcome.ACKNOWLEDGED, offset)
    return history


def seen(*numbers: int) -> dict[int, Seen]:
    return {offset: Seen(b"lane/%d" % number, "last", 9.0, 1, 1) for offset, number in enumerate(numbers)}


def test_what_was_acknowledged_without_the_leader_may_go() -> None:
    history = written(1.0, 2.0, 3.0)
    check_unclean(history, PLACE, seen(0, 1, 2), [])
    check_unclean(history, PLACE, seen(0, 1), [UncleanElection(4.0, 2, 2.5, 4.0)])
    check_unclean(history, PLACE, seen(0, 1), [UncleanElection(2.0, 2, 0.0, 3.5)])


@pytest.mark.parametrize(
    ("final", "elections", "what"),
    [
        ((0, 1), [], "an unclean election loses only what its leader never had"),
        ((0,), [UncleanElection(4.0, 2, 2.5, 9.0)], "an unclean election loses only what its leader never had"),
        ((0, 1), [UncleanElection(1.0, 2, 0.0, 1.9)], "an unclean election loses only what its leader never had"),
        ((0, 2, 1), [], "acknowledged records are at their offset"),
        ((0, 1, 2, 1), [], "no record appears twice"),
        ((0, 1, 2, 7), [], "every record was written"),
    ],
)
def test_nothing_else_may(final: tuple[int, ...], elections: list[UncleanElection], what: str) -> None:
    with pytest.raises(Violation) as caught:
        check_unclean(written(1.0, 2.0, 3.0), PLACE, seen(*final), elections)
    assert caught.value.what == what
