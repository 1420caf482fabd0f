"""The judge of groups: who owns what, and commits that arrive late."""

from __future__ import annotations

import pytest

from penstock.sim.checks.groups import check_groups
from penstock.sim.judges.history import NOTHING, History, OffsetRead, Outcome, Owned, Place, Violation

PLACE = Place("data", 0)
OTHER = Place("data", 1)


def history_of(*owned: Owned) -> History:
    made = History(lambda: 0.0)
    made.owned.extend(owned)
    return made


@pytest.mark.parametrize(
    "next_one",
    [
        Owned("g", PLACE, "b", 3.0, 9.0),
        Owned("g", PLACE, "a", 2.0, 9.0),
        Owned("g", OTHER, "b", 2.0, 9.0),
        Owned("h", PLACE, "b", 2.0, 9.0),
        Owned("g", PLACE, "b", 2.0, 2.0),
    ],
    ids=["afterwards", "the same member", "another partition", "another group", "over when it is heard of"],
)
def test_owners_that_follow_each_other_are_right(next_one: Owned) -> None:
    check_groups(history_of(Owned("g", PLACE, "a", 1.0, 3.0), next_one))


def test_two_owners_at_once_are_seen_in_any_order() -> None:
    owned = [Owned("g", PLACE, "a", 1.0, 5.0), Owned("g", PLACE, "a", 2.0, 3.0), Owned("g", PLACE, "b", 4.0, 9.0)]
    for order in (owned, owned[::-1]):
        with pytest.raises(Violation, match="a partition has one owner"):
            check_groups(history_of(*order))


def with_commits(first_outcome: Outcome, first: tuple[str, int], second: tuple[str, int]) -> History:
    """5 by one, 8 by another, acknowledged later; and then 5 is read."""
    now = iter(range(100))
    made = History(lambda: float(next(now)))
    early = made.begin_commit("g", PLACE, 5, *first)
    if first_outcome is not Outcome.OPEN:
        made.end_commit(early, first_outcome)
    made.end_commit(made.begin_commit("g", PLACE, 8, *second), Outcome.ACKNOWLEDGED)
    made.offset_reads.append(OffsetRead("g", PLACE, 5, made.time(), made.time()))
    return made


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.OPEN])
def test_a_late_commit_of_an_earlier_owner_must_not_show(outcome: Outcome) -> None:
    with pytest.raises(Violation, match="committed offsets are kept"):
        check_groups(with_commits(outcome, ("a", 1), ("b", 2)))


def test_a_late_commit_of_the_same_owner_may_show() -> None:
    check_groups(with_commits(Outcome.UNKNOWN, ("a", 1), ("a", 1)))


def with_deletion(outcome: Outcome, read: int) -> History:
    """5 is acknowledged, then deleted, and then something is read."""
    now = iter(range(100))
    made = History(lambda: float(next(now)))
    for offset, end in ((5, Outcome.ACKNOWLEDGED), (NOTHING, outcome)):
        made.end_commit(made.begin_commit("g", PLACE, offset, "", -1), end)
    made.offset_reads.append(OffsetRead("g", PLACE, read, made.time(), made.time()))
    return made


@pytest.mark.parametrize(
    ("outcome", "read"), [(Outcome.ACKNOWLEDGED, NOTHING), (Outcome.UNKNOWN, NOTHING), (Outcome.UNKNOWN, 5)]
)
def test_what_is_deleted_may_be_gone(outcome: Outcome, read: int) -> None:
    check_groups(with_deletion(outcome, read))


@pytest.mark.parametrize(("outcome", "read"), [(Outcome.ACKNOWLEDGED, 5), (Outcome.REFUSED, NOTHING)])
def test_what_is_deleted_does_not_come_back_and_nothing_else_goes(outcome: Outcome, read: int) -> None:
    with pytest.raises(Violation, match="committed offsets are kept"):
        check_groups(with_deletion(outcome, read))
