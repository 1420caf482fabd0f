"""Planting: every place exists, and is as before afterwards."""

from __future__ import annotations

import pytest

from penstock.replica.partition import Partition
from penstock.sim.places import NoSuchPlace, replaced
from penstock.sim.planted.bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_finds_its_place(name: str) -> None:
    with BUGS[name].planted():
        assert BUGS[name].story


def test_a_bug_is_there_only_while_it_is_planted() -> None:
    before = Partition.claimed_offset
    with BUGS["claims-unflushed"].planted():
        assert Partition.claimed_offset is not before
    assert Partition.claimed_offset is before


@pytest.mark.parametrize("place", ["penstock.model.errors:Nothing.at_all", "penstock.model.errors:nothing"])
def test_a_place_that_is_gone_is_named(place: str) -> None:
    with pytest.raises(NoSuchPlace, match="no longer exists"), replaced(place, lambda original: original):
        pytest.fail("planted into nothing")
