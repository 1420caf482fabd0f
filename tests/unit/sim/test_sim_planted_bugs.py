"""Planting: every place exists, and is as before afterwards."""

from __future__ import annotations

import pytest

from penstock.replica.committed_log import CommittedLog
from penstock.sim.places import NoSuchPlace, replaced
from penstock.sim.planted_bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_finds_its_place(name: str) -> None:
    with BUGS[name].planted():
        assert BUGS[name].story


def test_a_bug_is_there_only_while_it_is_planted() -> None:
    before = CommittedLog.claimed_offset
    with BUGS["claims-unflushed"].planted():
        assert CommittedLog.claimed_offset is not before
    assert CommittedLog.claimed_offset is before


@pytest.mark.parametrize("place", ["penstock.model.errors:Nothing.at_all", "penstock.model.errors:nothing"])
def test_a_place_that_is_gone_is_named(place: str) -> None:
    with pytest.raises(NoSuchPlace, match="say where it is now"), replaced(place, lambda original: original):
        pytest.fail("planted into nothing")
